"""A function is proved unchanged if all that it refers to, to the end, cannot change unseen."""

from __future__ import annotations

import argparse
import builtins
import collections
import dataclasses
import enum
import functools
import os
import time
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cereal.functions.unchanged import proof_of

Fn = Callable[..., Any]
NUMBER: Any = 1
ARRAY = jnp.ones(3)
SMALL = np.ones(3)
OPTIMIZER = optax.chain(optax.clip(1.0), optax.adam(1e-3))


@pytest.fixture(autouse=True)
def globals_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "NUMBER", NUMBER)


def bind(value: Any) -> None:
    globals()["NUMBER"] = value


def over(value: Any) -> Fn:
    return lambda x: (x, value)


def with_default(value: Any) -> Fn:
    def fn(x: Any, k: Any = value) -> Any:
        return (x, k)

    return fn


def with_keyword(value: Any) -> Fn:
    def fn(x: Any, *, k: Any = value) -> Any:
        return (x, k)

    return fn


def calling(value: Any) -> Fn:
    def helper(x: Any) -> Any:
        return (x, value)

    return lambda x: helper(x)


def in_a_partial(value: Any) -> Fn:
    return functools.partial(over, value)


def in_keywords(value: Any) -> Fn:
    return functools.partial(with_default, value=value)


def in_jit(value: Any) -> Fn:
    return jax.jit(over(value))


MAKERS = [over, with_default, with_keyword, calling, in_a_partial, in_keywords, in_jit]


@dataclasses.dataclass(slots=True)
class Slotted:
    rate: float = 1.0


class Colour(enum.Enum):
    RED = 1


class Thing:
    rate = 1.0

    def method(self, x: Any) -> Any:
        return x * self.rate


MAY_CHANGE: dict[str, Any] = {
    "an object": Thing(),
    "a class": Thing,
    "an enum": Colour.RED,
    "a list": [1],
    "a dict": {"a": 1},
    "a set": {1},
    "a deque": collections.deque([1]),
    "a namespace": types.SimpleNamespace(a=1),
    "arguments": argparse.Namespace(a=1),
    "slots": Slotted(),
    "a large NumPy array": np.zeros(100_000),
    "an array of objects": np.array([1, None], object),
    "a module of the user": types.ModuleType("settings"),
    "a tuple with a list in it": (1, [2]),
    "a method": Thing().method,
    "a method of a list": [1].append,
    "the environment": os.environ,
    "a random generator": np.random.default_rng(0),
    "a property of the run": jax.config,
    "a row of a structured array": np.zeros(1, [("x", "f4")])[0],
    "the system": os,
    "a look at the environment": os.getenv,
    "the clock": time.time,
    "a file": open,
    "a file of NumPy": np.load,
    "text as code": eval,
    "all globals": globals,
}

FIXED: dict[str, Any] = {
    "nothing": None,
    "a number": 1,
    "text": "a",
    "a tuple": (1, ("a", 2.0)),
    "a dtype": np.dtype("float32"),
    "a scalar of NumPy": np.float32(1),
    "a type of NumPy": np.float32,
    "a type of JAX": jnp.float32,
    "a class of JAX": jax.Array,
    "a library": jnp,
    "a function of a library": jnp.sum,
    "a jitted function of a library": jnp.where,
    "a ufunc": np.add,
    "a ufunc of JAX": jnp.add,
    "a function with a rule": jax.nn.relu,
    "a built-in": len,
    "a small NumPy array": np.arange(3),
    "an array": ARRAY,
    "an optimizer": OPTIMIZER,
}


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("kind", MAY_CHANGE)
def test_what_may_change_unseen_is_no_proof(kind: str, make: Any) -> None:
    assert proof_of(make(MAY_CHANGE[kind])) is None


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("kind", FIXED)
def test_what_cannot_change_is_proved(kind: str, make: Any) -> None:
    proof = proof_of(make(FIXED[kind]))
    assert proof is not None
    assert proof.holds()


CONSTANTS: list[Any] = [0, 1, True, 1.0, "1", b"1", None, 0.0, -0.0, (1, 2), (1, 2.0), np.int8(1)]


@pytest.mark.parametrize("make", [over, with_default, with_keyword, calling, in_a_partial])
def test_functions_made_anew_are_one_if_their_code_and_values_are(make: Any) -> None:
    found = [[proof_of(make(value)) for value in CONSTANTS] for _ in range(2)]
    for number, one in enumerate(found[0]):
        for other, another in enumerate(found[1]):
            assert one is not None
            assert another is not None
            assert (one.key == another.key) == (number == other), (number, other)


def test_equal_code_elsewhere_is_another_function() -> None:
    one, other = proof_of(lambda x: x + 1), proof_of(lambda x: x + 2)
    assert one is not None
    assert other is not None
    assert one.key != other.key


def test_a_global_that_is_bound_anew_ends_the_proof() -> None:
    def inner(x: Any) -> Any:
        return [each + NUMBER for each in x]

    def fn(x: Any) -> Any:
        return inner(x)

    proof = proof_of(fn)
    assert proof is not None
    assert proof.holds()
    bind(2)
    again = proof_of(fn)
    assert not proof.holds()
    assert again is not None
    assert again.key != proof.key


def test_a_name_that_is_defined_later_ends_the_proof() -> None:
    def fn(x: Any) -> Any:
        return abs(x)

    proof = proof_of(fn)
    assert proof is not None
    try:
        globals()["abs"] = lambda x: -x
        assert not proof.holds()
    finally:
        del globals()["abs"]
    assert proof.holds()


def test_a_cell_that_is_set_ends_the_proof() -> None:
    value = 1

    def fn(x: Any) -> Any:
        return x + value

    proof = proof_of(fn)
    assert proof is not None
    assert proof.holds()
    value = 2
    assert not proof.holds()


def test_a_small_array_that_is_written_to_ends_the_proof() -> None:
    table = np.zeros(3)
    proof = proof_of(lambda x: x + table)
    assert proof is not None
    table[1] = 1
    assert not proof.holds()


def test_a_keyword_that_is_added_ends_the_proof() -> None:
    made: Any = functools.partial(with_default)
    proof = proof_of(made)
    assert proof is not None
    made.keywords["value"] = 3
    assert not proof.holds()


def test_a_function_with_attributes_is_no_proof() -> None:
    def fn(x: Any) -> Any:
        return x * fn.rate  # type: ignore[attr-defined]

    fn.rate = 1.0  # type: ignore[attr-defined]
    assert proof_of(fn) is None


def test_what_a_function_imports_must_be_of_a_library() -> None:
    def good(x: Any) -> Any:
        import math

        return x * math.pi

    def bad(x: Any) -> Any:
        from tests.functions.test_unchanged import NUMBER

        return x * NUMBER

    assert proof_of(good) is not None
    assert proof_of(bad) is None


def test_flags_and_the_environment_in_libraries_are_no_proof() -> None:
    assert proof_of(lambda x: x * float(os.environ.get("RATE", "1"))) is None
    assert proof_of(lambda x: x if jax.config.read("jax_enable_x64") else -x) is None
    assert proof_of(lambda x: x + np.random.normal()) is None


def test_a_function_that_calls_itself_is_proved() -> None:
    def down(x: int) -> int:
        return 0 if x == 0 else down(x - 1)

    assert proof_of(down) is not None


def test_a_value_of_a_trace_is_no_proof() -> None:
    found = []

    @jax.jit
    def traced(y: Any) -> Any:
        found.append(proof_of(lambda x: x + y))
        return y

    traced(1.0)
    assert found == [None]


def test_a_name_that_is_not_bound_yet_is_no_proof() -> None:
    def fn(x: Any) -> Any:
        return later(x)

    assert proof_of(fn) is None

    def later(x: Any) -> Any:
        return x


def test_arrays_are_named_apart() -> None:
    proof = proof_of(lambda x: x + ARRAY)
    assert proof is not None
    assert len(proof.arrays) == 1
    assert proof.arrays[0] is ARRAY


@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")  # of NumPy 2.5
def test_an_array_of_another_shape_is_another_one() -> None:
    array = np.arange(4)
    proof: Any = proof_of(over(array))
    array.shape = (2, 2)
    assert not proof.holds()


def test_a_function_that_gets_an_attribute_is_another_one() -> None:
    fn: Any = over(1)
    proof: Any = proof_of(fn)
    fn.rate = 2.0
    assert not proof.holds()


def test_a_module_in_a_closure_is_looked_at_as_a_global_is() -> None:
    library: Any = jax
    assert proof_of(lambda: library.config.jax_enable_x64) is None
    assert proof_of(lambda: library.numpy.pi) is not None


def test_a_name_that_python_itself_gets_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn() -> Any:
        return cereal_test_rate  # type: ignore[name-defined]  # noqa: F821

    proof: Any = proof_of(fn)
    monkeypatch.setattr(builtins, "cereal_test_rate", 1.0, raising=False)
    assert not proof.holds()


def test_an_import_from_the_package_is_not_taken_for_a_library_of_that_name() -> None:
    code = "def fn(x):\n    from .types import RATE\n    return x * RATE"
    scope: dict[str, Any] = {"__package__": "mine"}
    exec(code, scope)
    assert proof_of(scope["fn"]) is None


def test_an_attribute_may_have_the_name_of_a_built_in() -> None:
    assert proof_of(lambda batch: batch.input + batch.vars) is not None
