from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal.core.function import as_function, takes_second


@cereal.pytree_dataclass
class Linear:
    weight: jax.Array

    def __call__(self, x: Any) -> Any:
        return x * self.weight


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True

    def __call__(self, x: Any) -> Any:
        return x


def plain(x: Any) -> Any:
    return x


def with_mask(x: Any, mask: Any) -> Any:
    return x


def test_a_plain_function_is_structure_compared_by_identity() -> None:
    function = as_function(plain, "Test")
    assert jax.tree.leaves(function) == []
    assert jax.tree.structure(function) == jax.tree.structure(as_function(plain, "Test"))
    assert jax.tree.structure(function) != jax.tree.structure(as_function(lambda x: x, "Test"))


def test_the_arrays_of_a_callable_pytree_are_leaves() -> None:
    function = as_function(Linear(jnp.float32(3)), "Test")
    assert jax.tree.leaves(function) == [jnp.float32(3)]
    doubled = jax.tree.map(lambda leaf: leaf * 2, function)
    assert float(doubled(1.0)) == 6.0


def test_a_function_is_wrapped_once() -> None:
    function = as_function(plain, "Test")
    assert as_function(function, "Test") is function


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (plain, "plain"),
        (functools.partial(with_mask, 1), "with_mask"),
        (jnp.square, "square"),
        (np.square, "square"),
        (Linear(jnp.float32(1)), "Linear"),
        (lambda x: x, "<lambda>"),
        (jax.jit(plain), "plain"),
    ],
)
def test_functions_have_the_names_that_users_gave_them(fn: Any, name: str) -> None:
    assert as_function(fn, "Test").name == name


@pytest.mark.parametrize(
    ("fn", "second"),
    [
        (plain, False),
        (with_mask, True),
        (lambda x, mask=None: x, True),
        (lambda x, scale=2.0: x * scale, False),
        (lambda x, *, mask=None: x, False),
        (lambda *args: args[0], False),
        (functools.partial(with_mask, mask=None), False),
        (functools.partial(lambda a, x, mask: x, 1), True),
        (Linear(jnp.float32(1)), False),
        (jnp.square, False),
        (jnp.negative, False),
        (abs, False),
        (dict, False),
    ],
)
def test_the_signature_decides_whether_the_second_argument_is_passed(fn: Any, second: bool) -> None:
    assert takes_second(fn, "mask") is second


@pytest.mark.parametrize("fn", [None, 3, "fn", {"a": 1}])
def test_what_cannot_be_called_is_refused(fn: Any) -> None:
    message = rf"Test: `fn` must be callable, got {type(fn).__name__} .*write `Test\(lambda batch"
    with pytest.raises(cereal.PipelineError, match=message):
        as_function(fn, "Test")


def test_a_callable_that_is_neither_hashable_nor_a_pytree_is_refused() -> None:
    with pytest.raises(cereal.PipelineError, match="Unhashable is neither a pytree nor hashable"):
        as_function(Unhashable(), "Test")
