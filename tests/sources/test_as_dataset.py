"""Indexed sources as datasets of other libraries: `len(source)`, `source[i]`, several at once."""

from __future__ import annotations

import pickle
from typing import Any

import jax
import numpy as np
import pytest

from cereal import (
    ArraySampleSource,
    ConcatSource,
    DatasetSource,
    FilterTransform,
    HostFilterTransform,
    HostMapTransform,
    HostRandomMapTransform,
    IterableSource,
    MapTransform,
    MixSource,
    PipelineError,
    RandomMapTransform,
    RangeSource,
    SliceSource,
    UsageError,
    ZipSource,
)

X, Y = np.arange(12, dtype=np.float32).reshape(6, 2), np.arange(6, dtype=np.int32)


def arrays(ordering: Any = "shuffle") -> Any:
    return ArraySampleSource({"x": X, "y": Y}, ordering=ordering)


def halved(element: Any) -> Any:
    return element["x"] / 2


def words() -> Any:
    return DatasetSource([{"word": "ab" * n, "n": n} for n in range(6)], ordering="shuffle")


SOURCES: dict[str, tuple[Any, Any]] = {
    "arrays": (arrays, lambda i: {"x": X[i], "y": Y[i]}),
    "range": (lambda: RangeSource(3, 9), lambda i: np.int32(i + 3)),
    "objects": (words, lambda i: {"word": "ab" * i, "n": i}),
    "host stage": (lambda: HostMapTransform(halved)(arrays()), lambda i: X[i] / 2),
    "compiled stage": (lambda: MapTransform(halved)(arrays()), lambda i: X[i] / 2),
    "slice": (
        lambda: SliceSource(arrays(), range(5, -1, -1)),
        lambda i: {"x": X[5 - i], "y": 5 - i},
    ),
    "parts": (
        lambda: ConcatSource([SliceSource(arrays(), [0, 1]), SliceSource(arrays(), [2, 3, 4, 5])]),
        lambda i: {"x": X[i], "y": Y[i]},
    ),
    "zip": (lambda: ZipSource((arrays(), words())), None),
}


def same(found: Any, wanted: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert not isinstance(a, jax.Array)
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", [name for name in SOURCES if name != "zip"])
def test_an_element_by_its_index_whatever_the_order(name: str) -> None:
    make, wanted = SOURCES[name]
    source = make()
    assert len(source) == 6
    for index in (0, 3, np.int64(5)):
        same(source[index], wanted(int(index)))
    same(source[-1], wanted(5))
    same(source[-6], wanted(0))
    same(source.__getitems__([4, 0, -2]), [wanted(4), wanted(0), wanted(4)])
    assert source.__getitems__([]) == []


def test_parts_of_different_kinds_are_one_element() -> None:
    same(SOURCES["zip"][0]()[2], ({"x": X[2], "y": Y[2]}, {"word": "abab", "n": 2}))


@pytest.mark.parametrize("index", [6, -7, 10**12])
def test_beyond_the_end_there_is_nothing(index: int) -> None:
    with pytest.raises(IndexError, match=rf"index {index} is out of range, of 6 elements"):
        arrays()[index]
    with pytest.raises(IndexError, match=rf"index {index} is out of range"):
        arrays().__getitems__([0, index])


@pytest.mark.parametrize("index", [slice(0, 2), "x", [1, 2], 1.0, None])
def test_what_is_no_index_says_what_to_write(index: Any) -> None:
    with pytest.raises(TypeError, match=r"takes an integer, got .*SliceSource\(source, range"):
        arrays()[index]


def test_elements_are_the_callers_own() -> None:
    source: Any
    for source in (arrays(), MapTransform(halved)(arrays())):
        for _ in range(2):
            element = source[1]
            array = element["x"] if isinstance(element, dict) else element
            assert array.flags.writeable
            array[...] = 77
    same(arrays()[1], {"x": X[1], "y": Y[1]})


REFUSED: dict[str, tuple[Any, str]] = {
    "random": (lambda: RandomMapTransform(lambda key, e: e)(arrays()), "depend on a key and an"),
    "random, on the host": (lambda: HostRandomMapTransform(lambda e, rng: e)(words()), "random"),
    "other elements": (
        lambda: MixSource([arrays("sequential"), arrays("sequential")], weights=(2, 1)),
        "in every epoch",
    ),
    "iterated": (lambda: IterableSource(lambda: iter([1, 2])), "can only be iterated"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_elements_that_depend_on_more_than_an_index_are_refused(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises(UsageError, match=words):
        make()[0]


@pytest.mark.parametrize("stage", [HostFilterTransform, FilterTransform])
def test_an_element_that_is_filtered_out_is_an_error(stage: Any) -> None:
    source = stage(lambda element: element["y"] != 3)(arrays())
    same(source[2], {"x": X[2], "y": Y[2]})
    with pytest.raises(UsageError, match=r"element 3 is filtered out.*select\(source, fn\)"):
        source[3]


def test_a_source_is_no_container_for_all_that() -> None:
    source = arrays()
    for use in (iter, list, lambda it: 3 in it):
        with pytest.raises(TypeError, match="not iterable"):
            use(source)
    with pytest.raises(TypeError):
        np.asarray(source)
    with pytest.raises(PipelineError, match="is an ArraySampleSource, not data"):
        DatasetSource(source)
    assert len(jax.tree.leaves(source)) == 2


@pytest.mark.parametrize("name", ["arrays", "objects", "host stage", "slice"])
def test_it_goes_into_another_process(name: str) -> None:
    make, wanted = SOURCES[name]
    source = make()
    for _ in range(2):  # before it was read, and after
        same(pickle.loads(pickle.dumps(source))[2], wanted(2))
        same(source[2], wanted(2))
