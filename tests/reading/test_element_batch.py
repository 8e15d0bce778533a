"""Elements as Python has them, and as arrays."""

from __future__ import annotations

import array as arrays
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal import BatchTransform, DataLoader, HostFilterTransform, HostMapTransform
from cereal.base.fitting import canonical
from cereal.base.spec import Spec
from cereal.host.element_spec import as_arrays, check_arrays, form_of, spec_of_element
from cereal.order.rows import host_rows_at
from cereal.reading.element_batch import ElementBatch
from cereal.reading.form import leaves_of
from cereal.reading.leaves import OBJECT, as_array, is_leaf, is_numbers, protected
from cereal.reading.read_context import Pace, ReadContext, use_read_context
from cereal.reading.structure import flatten

Pair = namedtuple("Pair", ["x", "y"])


class Image:
    """What PIL images and tensors have."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.arange(6, dtype=np.uint8).reshape(2, 3)


# as_array

GOOD: list[tuple[Any, tuple[int, ...], Any]] = [
    (True, (), np.bool_),
    (3, (), np.int32),
    (-1.5, (), np.float32),
    (1j, (), np.complex64),
    (np.int8(3), (), np.int8),
    (np.float64(3), (), np.float32),
    (np.bool_(False), (), np.bool_),
    (np.uint64(7), (), np.uint32),
    ([1, 2, 3], (3,), np.int32),
    ([[1.0, 2.0]], (1, 2), np.float32),
    ([True, False], (2,), np.bool_),
    (np.zeros((2, 0), np.float16), (2, 0), np.float16),
    (np.zeros(3, ">i4"), (3,), np.int32),
    (np.zeros(3, jnp.bfloat16), (3,), jnp.bfloat16),
    (jnp.ones((2, 2)), (2, 2), np.float32),
    (Image(), (2, 3), np.uint8),
    (np.zeros(4).view(np.matrix) if hasattr(np, "matrix") else np.zeros((1, 4)), (1, 4), "f4"),
]


@pytest.mark.parametrize("case", GOOD, ids=lambda case: f"{type(case[0]).__name__}-{case[2]}")
def test_arrays_and_numbers_become_arrays(case: tuple[Any, Any, Any]) -> None:
    value, shape, dtype = case
    found = as_array(value)
    assert found is not None
    assert found.shape == shape
    assert canonical(found.dtype) == np.dtype(dtype)
    np.testing.assert_array_equal(found, np.asarray(value))
    spec = spec_of_element(value)
    assert (spec.shape, spec.dtype) == (shape, np.dtype(dtype))


BAD = ["text", b"bytes", None, object(), {1, 2}, ["a"], [], np.array(["a"]), np.array([None])]
BAD += [np.array("2020-01-01", "datetime64[D]"), len, range(3)]


@pytest.mark.parametrize("value", BAD)
def test_what_is_no_array_is_none(value: Any) -> None:
    assert as_array(value) is None


def test_an_array_is_taken_as_it_is() -> None:
    mine = np.zeros(3, np.float32)
    assert as_array(mine) is mine


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, np.int64(2**40), np.uint64(2**32)])
def test_an_integer_that_does_not_fit_is_refused_and_fits_wide_types(value: Any) -> None:
    with pytest.raises(cereal.PipelineError, match=rf"{value} does not fit .*jax_enable_x64"):
        as_array(value)
    with jax.enable_x64(True):
        found = as_array(value)
    assert found is not None
    assert int(found) == int(value)


@pytest.mark.parametrize("value", [2**31 - 1, -(2**31), np.uint32(2**32 - 1)])
def test_the_largest_integers_fit(value: Any) -> None:
    found = as_array(value)
    assert found is not None
    assert int(found.astype(canonical(found.dtype))) == int(value)


@pytest.mark.parametrize("value", [[2**31, 1], [[1], [-(2**40)]]])
def test_integers_in_lists_that_do_not_fit_are_refused_as_alone(value: Any) -> None:
    with pytest.raises(cereal.PipelineError, match=r"does not fit|number that fits"):
        list(DataLoader([[value, value], BatchTransform(2)], workers=0))


def test_lists_of_numbers_are_leaves_and_other_lists_containers() -> None:
    assert is_leaf([1, 2])
    assert is_leaf([[1], [2]])
    assert not is_leaf([])
    assert not is_leaf([np.zeros(2)])
    assert not is_leaf((1, 2))
    assert is_numbers(3)
    spec = spec_of_element({"a": [1, 2], "b": [np.zeros(2), "x"], "c": (1, 2)})
    assert spec["a"].shape == (2,)
    assert [s.dtype for s in spec["b"]] == [np.float32, OBJECT]
    assert [s.shape for s in spec["c"]] == [(), ()]


# leaves_of

SPEC = Spec(spec_of_element({"x": np.zeros(2, np.float32), "n": 1}))
FORM = form_of(SPEC)


def test_the_leaves_of_an_element_are_its_arrays() -> None:
    n, x = leaves_of({"x": np.array([1, 2], np.float64), "n": np.int32(4)}, FORM)
    assert (x.tolist(), int(n)) == ([1, 2], 4)
    made = as_arrays({"x": np.array([1, 2], np.float64), "n": 4}, SPEC)
    assert made["x"].dtype == np.float32
    assert made["n"].dtype == np.int32


WRONG: list[Any] = [
    {"x": np.zeros(3, np.float32), "n": 1},
    {"x": np.zeros(2, np.int32), "n": 1},
    {"x": np.zeros(2, np.float32)},
    {"x": np.zeros(2, np.float32), "n": 1, "more": 2},
    {"x": np.zeros(2, np.float32), "n": "one"},
    {"x": np.zeros(2, np.float32), "n": 1.0},
    {"x": np.zeros(2, np.float32), "n": True},
    {"x": None, "n": 1},
    [np.zeros(2, np.float32), 1],
    None,
]


@pytest.mark.parametrize("element", WRONG, ids=repr)
def test_an_element_that_is_not_as_promised_is_named_with_what_it_is(element: Any) -> None:
    with pytest.raises(cereal.PipelineError, match=r"an element is .*, where .* was promised"):
        leaves_of(element, FORM)


def test_python_objects_are_refused_where_arrays_are_needed() -> None:
    check_arrays(SPEC.tree, "a stage", "map it")
    with pytest.raises(cereal.PipelineError, match=r"a stage: `element\['text'\]` .*; map it\."):
        check_arrays(spec_of_element({"text": "a"}), "a stage", "map it")


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


OBJECTS = {
    "text": ("abc", r"`element\['a'\]` is a Python object and no array: str \('abc'\); map it\."),
    "time": (
        np.datetime64("2020-01-01"),
        r"no array: datetime64 \(np\.datetime64\('2020-",
    ),
    "unprintable": (Unprintable(), r"is a Python object and no array; map it\."),
    "wide": (
        2**40,
        r"`element\['a'\]`: the integer 1099511627776 does not fit .* numbers\.$",
    ),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_a_python_object_is_named_with_its_value(kind: str) -> None:
    value, words = OBJECTS[kind]
    spec = Spec(spec_of_element({"a": value}))  # as sources keep it
    with pytest.raises(cereal.PipelineError, match=words):
        check_arrays(spec.tree, "a stage", "map it")
    assert spec == Spec({"a": jax.ShapeDtypeStruct((), object)})


UNLIKE = {
    "nan": (
        {"a": 1},
        {"a": float("nan")},
        r"`element\['a'\]` is nan, a missing value; replace it",
    ),
    "none": (
        {"a": 1},
        {"a": None},
        r"`element\['a'\]` is None, a missing value; .*HostFilterTra",
    ),
    "dtype": (
        {"a": 1, "b": 0.5},
        {"a": 1.5, "b": float("nan")},
        r"alike .*, by `np\.float32\(x\)`",
    ),
    "keys": ({"a": 1}, {"b": 1}, "give all of them the same keys, or parts, in a HostMapTransform"),
    "shape": ({"a": [1, 2]}, {"a": [1]}, r"resize them .*collate=pad_collate\(max_length\)"),
}


@pytest.mark.parametrize("kind", UNLIKE)
def test_an_element_unlike_the_first_is_told_what_to_do_about_it(kind: str) -> None:
    first, other, words = UNLIKE[kind]
    with pytest.raises(cereal.PipelineError, match=rf"was promised .*{words}"):
        leaves_of(other, form_of(Spec(spec_of_element(first))))


# ElementBatch


def test_elements_of_stacked_arrays_are_views() -> None:
    stacked = {"x": np.arange(6).reshape(3, 2)}
    taken = ElementBatch.of_arrays(3, *flatten(stacked))
    assert taken.is_stacked
    assert [taken.element(i)["x"].tolist() for i in range(3)] == [[0, 1], [2, 3], [4, 5]]
    assert np.shares_memory(taken.element(1)["x"], stacked["x"])
    assert taken.stack(FORM, "stage", None, list, Pace()) is taken


def stacked(taken: ElementBatch) -> Any:
    assert taken.structure is not None
    return taken.structure.unflatten(taken.leaves)


def filler() -> Any:
    return {"x": np.full(2, 9, np.float32), "n": 9}


@pytest.mark.parametrize("keep", [None, [True, False, True], [False, False, True], [False] * 3])
def test_stacking_puts_the_filler_where_one_was_left_out(keep: Any) -> None:
    listed: list[Any] = [{"x": np.full(2, i, np.float32), "n": i} for i in (5, 6, 7)]
    mask = None if keep is None else np.array(keep)
    if keep is not None:
        listed = [e if k else object() for e, k in zip(listed, keep, strict=True)]
    taken = ElementBatch.of_list(listed, mask)
    found = taken.stack(FORM, "stage", host_rows_at(np.arange(3)), filler, Pace())
    numbers = stacked(found)["n"].tolist()
    kept = keep or [True] * 3
    assert numbers == [i if k else 9 for i, k in zip((5, 6, 7), kept, strict=True)]
    assert stacked(found)["x"][:, 0].tolist() == numbers
    assert (found.keep is None) == (keep is None)


def test_what_stands_in_for_an_element_is_stacked_and_checked() -> None:
    listed: list[Any] = [{"x": np.zeros(9), "n": 1}, {"x": np.ones(2, np.float32), "n": 2}]
    rows = host_rows_at(np.arange(2))
    taken = ElementBatch.of_list(listed)
    with use_read_context(ReadContext(lambda error: {"x": np.full(2, 8, np.float32), "n": 8})):
        found = taken.stack(FORM, "stage", rows, filler, Pace())
    assert stacked(found)["n"].tolist() == [8, 2]
    assert stacked(found)["x"].tolist() == [[8, 8], [1, 1]]
    with (
        use_read_context(ReadContext(lambda error: "no element")),
        pytest.raises(cereal.PipelineError),
    ):
        taken.stack(FORM, "stage", rows, filler, Pace())
    with use_read_context(ReadContext(lambda error: None)):
        found = taken.stack(FORM, "stage", rows, filler, Pace())
    assert found.keep is not None
    assert found.keep.tolist() == [False, True]
    assert stacked(found)["n"].tolist() == [9, 2]


# protected


def test_protected_values_are_the_same_in_fresh_containers() -> None:
    inner = np.arange(3)
    value = {"a": [inner, "text"], "b": Pair(inner, 2), "c": (inner,), "d": None}
    found = protected(value)
    assert found["b"].y == 2
    assert isinstance(found["b"], Pair)
    assert isinstance(found["c"], tuple)
    for array in (found["a"][0], found["b"].x, found["c"][0]):
        assert np.shares_memory(array, inner)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 9
    found["a"].clear()
    found["new"] = 1
    assert len(value["a"]) == 2
    assert "new" not in value
    assert inner.flags.writeable


@pytest.mark.parametrize("value", [3, "text", None, b"x", arrays.array("i", [1])])
def test_other_values_are_handed_through(value: Any) -> None:
    assert protected(value) is value


def write(element: Any) -> Any:
    element["x"][0] = 99
    return element


def replace(element: Any) -> Any:
    element["x"] = np.full(2, 7.0, np.float32)
    return element


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("kind", [HostMapTransform, HostFilterTransform])
def test_a_function_that_writes_into_its_argument_is_told_to_copy(kind: Any, batched: bool) -> None:
    data = [{"x": np.zeros(2, np.float32)} for _ in range(4)]
    stages = [BatchTransform(2), kind(write)] if batched else [kind(write), BatchTransform(2)]
    with pytest.raises((cereal.PipelineError, ValueError), match="read-only"):
        list(DataLoader([data, *stages], workers=0))
    assert all((element["x"] == 0).all() for element in data)


@pytest.mark.parametrize("fn", [replace, lambda e: e.update(x=np.ones(2)) or e])
def test_a_function_that_changes_its_dict_does_not_change_the_data(fn: Callable[..., Any]) -> None:
    data = [{"x": np.zeros(2, np.float32)} for _ in range(4)]
    with DataLoader([data, HostMapTransform(fn), BatchTransform(2)], workers=0) as loader:
        assert all((np.asarray(batch["x"]) != 0).all() for batch, _ in loader)
    assert all((element["x"] == 0).all() for element in data)
