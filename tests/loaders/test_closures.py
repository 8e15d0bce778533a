"""Functions are told apart by their code and what it refers to; arrays can be lifted out."""

from __future__ import annotations

import functools
import gc
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from cereal.loaders.closures import identity_of, lifted

Fn = Callable[..., Any]

# Globals that tests bind anew.
NUMBER: Any = 1
WEIGHT: Any = jnp.float32(1)


@pytest.fixture(autouse=True)
def globals_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "NUMBER", NUMBER)
    monkeypatch.setitem(globals(), "WEIGHT", WEIGHT)


def bind(name: str, value: Any) -> None:
    globals()[name] = value


def same(a: Fn, b: Fn) -> bool:
    """Whether the two are one function, asked while both live."""
    one, other = identity_of(a), identity_of(b)
    assert one is not None
    assert other is not None
    return one.key == other.key and hash(one.key) == hash(other.key)


class Thing:
    """An object that is itself and nothing else."""


# What tells functions apart


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


def with_inner(value: Any) -> Fn:
    def fn(x: Any) -> Any:
        return [each + value for each in x]

    return fn


CONSTANTS: list[Any] = [
    0, 1, True, 1.0, "1", b"1", None, 0.0, (1, 2), [1, 2], {"a": 1}, {"a": 2}, {"b": 1}, (),
]  # fmt: skip


@pytest.mark.parametrize("make", [over, with_default, with_keyword, calling, with_inner])
def test_one_code_over_equal_constants_is_one_function(make: Callable[[Any], Fn]) -> None:
    for number, value in enumerate(CONSTANTS):
        for other, another in enumerate(CONSTANTS):
            expected = number == other
            copied = another.copy() if isinstance(another, list | dict) else another
            assert same(make(value), make(copied)) == expected, (value, another)


def test_minus_zero_is_another_constant_than_zero() -> None:
    assert not same(over(0.0), over(-0.0))


def test_equal_code_elsewhere_is_another_function() -> None:
    assert not same(lambda x: x + 1, lambda x: x + 2)
    assert not same(over(1), with_default(1))


def test_a_global_that_is_bound_anew_makes_another_function() -> None:
    def fn(x: Any) -> Any:
        return x + NUMBER

    before = identity_of(fn)
    assert before == identity_of(fn)
    bind("NUMBER", 2)
    assert before != identity_of(fn)


def test_a_global_that_only_a_function_inside_uses_counts() -> None:
    def fn(x: Any) -> Any:
        return [each + NUMBER for each in x]

    before = identity_of(fn)
    bind("NUMBER", 2)
    assert before != identity_of(fn)


def test_a_global_that_a_helper_uses_counts() -> None:
    def helper(x: Any) -> Any:
        return x + NUMBER

    def fn(x: Any) -> Any:
        return helper(x)

    before = identity_of(fn)
    bind("NUMBER", 2)
    assert before != identity_of(fn)


def test_other_objects_are_told_by_identity() -> None:
    one, other = Thing(), Thing()
    assert same(over(one), over(one))
    assert not same(over(one), over(other))
    assert same(over(jnp.sin), over(jnp.sin))
    assert not same(over(jnp.sin), over(jnp.cos))


def test_a_list_is_told_by_what_is_in_it_now() -> None:
    items = [1, Thing()]
    before = identity_of(over(items))
    assert before is not None
    items[0] = 2
    after = identity_of(over(items))
    assert after is not None
    assert before.key != after.key


def test_a_chain_of_functions_is_told_by_each_of_them() -> None:
    def chain(a: Fn, b: Fn, c: Fn) -> Fn:
        return lambda x: a(b(c(x)))

    def add(x: Any) -> Any:
        return x + 1

    def double(x: Any) -> Any:
        return x * 2

    assert same(chain(add, double, add), chain(add, double, add))
    assert not same(chain(add, double, add), chain(add, double, double))


def test_a_function_that_calls_itself_is_one_function() -> None:
    def make(step: int) -> Fn:
        def loop(n: int) -> int:
            return 0 if n <= 0 else loop(n - step)

        return loop

    assert same(make(1), make(1))
    assert not same(make(1), make(2))


def test_functions_that_call_each_other_are_told_by_both() -> None:
    def make(step: int) -> Fn:
        def there(n: int) -> int:
            return 0 if n <= 0 else back(n)

        def back(n: int) -> int:
            return there(n - step)

        return there

    assert same(make(1), make(1))
    assert not same(make(1), make(2))


def test_a_name_that_is_not_bound_yet_has_no_identity() -> None:
    def make() -> tuple[Fn, Any]:
        fn = lambda x: x + later  # noqa: E731
        found = (identity_of(fn), lifted(fn))
        later = 1
        return fn, found

    fn, found = make()
    assert found == (None, None)
    assert identity_of(fn) is not None


def test_values_of_a_trace_have_no_identity() -> None:
    found = []

    def look(x: Any) -> Any:
        helper = lambda y: y * x  # noqa: E731
        functions = [over(x), over({"w": [x]}), with_default(x), lambda y: helper(y)]
        found.extend(each(fn) for fn in functions for each in (identity_of, lifted))
        return x

    jax.jit(look)(1.0)
    assert found == [None] * 8


def test_a_dict_whose_keys_cannot_be_sorted_is_no_obstacle() -> None:
    for value in ({1: "a", "b": 2}, {None: 1, "a": 2}):
        assert identity_of(over(value)) is not None
        found = lifted(over(value))
        assert found is not None
        assert found.rebuild(found.arrays)(0) == (0, value)


# Lifting arrays out


def test_a_lifted_function_over_other_arrays_computes_with_those() -> None:
    params = {"w": jnp.float32(2), "name": "dense", "layers": [jnp.arange(3.0), None]}
    three, five = jnp.float32(3), jnp.float32(5)

    def fn(x: Any, k: Any = three, *, j: Any = five) -> Any:
        return x * params["w"] * k * j * WEIGHT + params["layers"][0].sum() + len(params["name"])

    found = lifted(fn)
    assert found is not None
    assert len(found.arrays) == 5
    assert found.rebuild(found.arrays)(2.0) == fn(2.0)
    doubled = found.rebuild([2 * array for array in found.arrays])
    assert doubled(2.0) == 2.0 * (2 * 2) * (3 * 2) * (5 * 2) * (1 * 2) + 2 * 3 + 5
    assert fn(2.0) == 2 * 2 * 3 * 5 + 3 + 5


def test_functions_over_other_arrays_are_one_function_when_lifted() -> None:
    one, other = lifted(over({"w": jnp.zeros(3)})), lifted(over({"w": jnp.ones(3)}))
    named = lifted(over({"v": jnp.ones(3)}))
    assert one is not None
    assert other is not None
    assert named is not None
    assert one.identity.key == other.identity.key != named.identity.key


def test_whoever_keeps_the_rebuilding_does_not_keep_the_arrays() -> None:
    array = jnp.arange(3.0)
    gone = weakref.ref(array)
    found = lifted(over({"w": array}))
    assert found is not None
    identity, rebuild = found.identity, found.rebuild
    del array, found
    gc.collect()
    assert gone() is None
    assert rebuild([jnp.float32(7)])(1) == (1, {"w": 7})
    assert identity.held is not None


def test_a_rebuilt_function_is_called_as_the_function_was() -> None:
    weight = jnp.float32(2)

    @functools.wraps(lambda x, mask: None)
    def fn(*args: Any) -> Any:
        return (*args, weight)

    found = lifted(fn)
    assert found is not None
    rebuilt = found.rebuild(found.arrays)
    assert rebuilt(1, 2) == (1, 2, 2)
    assert rebuilt.__name__ == fn.__name__
    assert inspect.signature(rebuilt) == inspect.signature(fn)
