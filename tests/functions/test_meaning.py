"""What functions trace to tells whether they are one program."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cereal.functions.meaning import trace, tracing_context

X = jnp.arange(3.0)


@jax.custom_jvp
def doubled(x: Any) -> Any:
    return 2 * x


doubled.defjvp(lambda primals, tangents: (2 * primals[0], 2 * tangents[0]))


def scanned(x: Any) -> Any:
    return jax.lax.scan(lambda c, y: (c + y, c * 2), 0.0, x)


def branched(x: Any) -> Any:
    return jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "arithmetic": lambda x: 2 * x + 1,
    "a network": lambda x: jax.nn.softmax(jax.nn.relu(x) @ jnp.ones((3, 2))),
    "a gradient": jax.grad(lambda x: jnp.sum(jax.nn.silu(x) ** 2)),
    "a scan": scanned,
    "a branch": branched,
    "random": lambda x: x + jax.random.normal(jax.random.key(0), x.shape),
    "rematerialised": jax.checkpoint(lambda x: jnp.sin(jnp.cos(x))),
    "a print": lambda x: (jax.debug.print("{x}", x=x), x)[1],
    "an array": lambda x: x + jnp.asarray(np.arange(3.0, dtype=np.float32)),
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_one_function_traced_twice_is_one_program(kind: str) -> None:
    one, other = (trace(FUNCTIONS[kind], X) for _ in range(2))
    assert one[0] == other[0]
    assert hash(one[0]) == hash(other[0])


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_a_program_does_what_the_function_does(kind: str) -> None:
    traced, arrays = trace(FUNCTIONS[kind], X)
    found = jax.jit(lambda arrays, x: traced(arrays, [x]))(arrays, X)
    jax.tree.map(np.testing.assert_array_equal, found, jax.jit(lambda x: FUNCTIONS[kind](x))(X))


def test_all_of_these_functions_are_different_programs() -> None:
    assert len({trace(fn, X)[0] for fn in FUNCTIONS.values()}) == len(FUNCTIONS)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x + 0.0, lambda x: x + -0.0),
        (lambda x: x * 1.0, lambda x: x * 1.0000001),
        (lambda x: x.sum(), lambda x: x.max()),
        (lambda x: x + jnp.inf, lambda x: x + jnp.nan),
        (lambda x: (x, x + 1), lambda x: (x + 1, x)),
        (lambda x: {"a": x}, lambda x: {"b": x}),
        (lambda x: jax.lax.cond(x[0] > 0, jnp.cos, jnp.sin, x), branched),
        (lambda x: jnp.dot(x, x), lambda x: jnp.dot(x, x, precision="highest")),
        (lambda x: jax.lax.scan(lambda c, y: (c + y, c), 0.0, x), scanned),
        (lambda x: (jax.debug.print("a"), x), lambda x: (jax.debug.print("b"), x)),
    ],
)
def test_what_differs_in_anything_is_another_program(one: Any, other: Any) -> None:
    assert trace(one, X)[0] != trace(other, X)[0]


def test_a_changed_number_is_another_program_and_a_changed_array_the_same() -> None:
    box = SimpleNamespace(rate=0.1, weight=jnp.ones(3))

    def fn(x: Any) -> Any:
        return x * box.rate + box.weight

    before, arrays = trace(fn, X)
    assert arrays[0] is box.weight
    box.weight = jnp.zeros(3)
    same, arrays = trace(fn, X)
    assert same == before
    assert arrays[0] is box.weight
    box.rate = 0.2
    assert trace(fn, X)[0] != before


def test_arrays_inside_of_jitted_helpers_are_told_apart() -> None:
    def program(value: float) -> Any:
        weight = jnp.full(3, value)
        return trace(jax.jit(lambda x: x + weight), X)

    (one, first), (other, second) = program(1.0), program(2.0)
    found = [traced(arrays, [X])[0] for traced, arrays in ((one, first), (other, second))]
    assert found == [1.0, 2.0]
    assert one != other or first != second


def test_other_shapes_are_other_programs() -> None:
    assert trace(lambda x: x + 1, X)[0] != trace(lambda x: x + 1, jnp.ones(4))[0]
    assert trace(lambda x: x + 1, X)[0] != trace(lambda x: x + 1, jnp.ones(3, jnp.int32))[0]


def test_the_users_callback_is_compared_by_what_can_be_proved() -> None:
    def asking(fn: Any) -> Any:
        return lambda x: jax.pure_callback(fn, jax.ShapeDtypeStruct((3,), jnp.float32), x)

    def plain(x: Any) -> Any:
        return np.asarray(x) + 1

    seen: list[Any] = []

    def fresh(x: Any) -> Any:
        seen.append(x)
        return np.asarray(x)

    assert trace(asking(plain), X)[0] == trace(asking(plain), X)[0]
    assert trace(asking(fresh), X)[0] != trace(asking(lambda x: fresh(x)), X)[0]


def test_a_rule_of_the_users_counts_unless_nobody_can_ask_for_it() -> None:
    def fn(x: Any) -> Any:
        return doubled(x)

    assert trace(fn, X, compiled_only=True)[0] == trace(fn, X, compiled_only=True)[0]
    traced, arrays = trace(fn, X)
    grads = jax.grad(lambda x: traced(arrays, [x]).sum())(X)
    np.testing.assert_array_equal(grads, [2.0, 2.0, 2.0])


def test_a_traced_function_holds_none_of_its_arrays() -> None:
    weight = jnp.ones(3)
    gone = weakref.ref(weight)
    traced, arrays = trace(lambda x, weight=weight: x + weight, X)
    del weight, arrays
    gc.collect()
    assert gone() is None
    assert traced([jnp.ones(3)], [X])[0] == 1


def test_arrays_of_numpy_are_as_they_were_when_traced() -> None:
    table = np.ones(3, np.float32)
    traced, arrays = trace(lambda x: x + table, X)
    table[:] = 5
    assert traced(arrays, [X]).tolist() == [1, 2, 3]


def test_the_context_of_a_trace_is_that_of_the_settings() -> None:
    before = tracing_context()
    assert before == tracing_context()
    for setting in (
        jax.enable_x64(True),
        jax.default_matmul_precision("float32"),
        jax.numpy_dtype_promotion("strict"),
        jax.threefry_partitionable(False),
    ):
        with setting:
            assert tracing_context() != before
    assert before == tracing_context()


class Alike:
    """A callback; all of them are equal."""

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, x: Any) -> Any:
        return np.asarray(x) * np.float32(self.by)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike)

    def __hash__(self) -> int:
        return 0


def test_callbacks_are_the_same_only_if_they_are_one() -> None:
    def asking(fn: Any) -> Any:
        return trace(lambda x: jax.pure_callback(fn, jax.ShapeDtypeStruct((3,), x.dtype), x), X)[0]

    one = Alike(1.0)
    assert asking(one) == asking(one)
    assert asking(one) != asking(Alike(2.0))
    assert asking(one.__call__) == asking(one.__call__)
    assert asking(one.__call__) != asking(Alike(2.0).__call__)
