"""The elements of a source that pass a test."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    ConcatSource,
    DataLoader,
    FilterTransform,
    MapTransform,
    MixSource,
    PipelineError,
    RandomMapTransform,
    RangeSource,
    RepeatSource,
    SliceSource,
    select,
    split,
)
from cereal.testing import assert_same, check_loader, check_resume, check_source


def even(x: Any) -> Any:
    return x % 2 == 0


def elements(source: Any) -> list[Any]:
    return source.take(jnp.arange(len(source))).tolist()


@pytest.mark.slow
def test_the_kit_holds_for_a_selection(strict_jax: None) -> None:
    data = ArraySampleSource({"x": np.arange(12.0, dtype=np.float32)})
    some = select(data, lambda element: element["x"] > 5)
    assert some._order.name == "shuffle"
    check_source(some)
    loader = DataLoader([some, BatchTransform(4)])
    check_loader(loader)
    check_resume(loader)


def test_survivors_keep_their_order() -> None:
    some = select(RangeSource(5, 17), lambda x: (x % 3 == 0) | (x == 16))
    assert len(some) == 5
    assert elements(some) == [6, 9, 12, 15, 16]
    assert elements(select(RangeSource(7), lambda x: True)) == list(range(7))
    assert elements(select(SliceSource(RangeSource(9), range(8, -1, -1)), even)) == [8, 6, 4, 2, 0]


def test_the_order_is_that_of_the_source_unless_given() -> None:
    shuffled = RangeSource(20, ordering="shuffle")
    assert select(shuffled, even)._order.name == "shuffle"
    assert select(shuffled, even, ordering="sequential")._order.name == "sequential"
    listed = DataLoader([select(shuffled, even, ordering=[9, 0]), BatchTransform(2)])
    assert listed.batch_at(0, 0)[0].tolist() == [18, 0]


def test_all_chunks_of_large_elements_are_read() -> None:
    data = np.zeros((40, 512, 512), np.float32)  # 1 MB each: several chunks
    data[:, 0, 0] = np.arange(40)
    some = select(ArraySampleSource(data), lambda x: x[0, 0] % 7 == 3)
    np.testing.assert_array_equal(some.take(jnp.arange(6))[:, 0, 0], [3, 10, 17, 24, 31, 38])


def test_the_function_is_traced_once_and_sees_one_element() -> None:
    shapes = []

    def positive(x: Any) -> Any:
        shapes.append(x.shape)
        return x.sum() > 0

    data = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    some = select(ArraySampleSource(data), positive)
    assert len(some) == int((data.sum(axis=1) > 0).sum())
    assert set(shapes) == {(3,)}
    assert len(shapes) <= 3  # the check, and one or two programs


@pytest.mark.slow
def test_selections_of_combined_sources_and_combinations_of_selections() -> None:
    joined = ConcatSource([RangeSource(6), RangeSource(100, 104)])
    assert elements(select(joined, even)) == [0, 2, 4, 100, 102]
    assert elements(select(RepeatSource(RangeSource(3), 2), even)) == [0, 2, 0, 2]
    assert elements(select(MapTransform(lambda x: x + 1)(RangeSource(6)), even)) == [2, 4, 6]
    train, _ = split(RangeSource(20), (0.5, 0.5), key=1)
    assert set(elements(select(train, even))) == {x for x in elements(train) if x % 2 == 0}
    mix = MixSource([select(RangeSource(6), even), RangeSource(100, 103)])
    assert elements(mix) == [0, 100, 2, 101, 4]
    parts = split(select(RangeSource(20), even), (0.5, 0.5), key=2)
    assert sorted(x for part in parts for x in elements(part)) == list(range(0, 20, 2))


def test_elements_that_are_masked_are_left_out() -> None:
    thirds = FilterTransform(lambda x: x % 3 == 0)(RangeSource(20))
    assert elements(select(thirds, even)) == [0, 6, 12, 18]


def test_it_is_drawn_pickled_and_one_program() -> None:
    sources = [select(RangeSource(9), even) for _ in range(2)]
    assert repr(sources[0]) == "SliceSource(5 indices of RangeSource[9], ordering=sequential)"
    assert jax.tree.structure(sources[0]) == jax.tree.structure(sources[1])
    assert_same(pickle.loads(pickle.dumps(sources[0])), sources[0], "the selection")


# The cache


def kept(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def looked_at(function: Any) -> tuple[list[int], Any]:
    """A list of the elements that a decision is asked for, and the decision."""
    asked: list[int] = []

    def note(x: Any) -> Any:
        asked.extend(np.asarray(x).reshape(-1).tolist())
        return np.asarray(x)

    def decide(x: Any) -> Any:
        found = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return function(jax.pure_callback(note, found, x, vmap_method="expand_dims"))

    return asked, decide


def test_the_outcome_is_found_again(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "cache"
    asked, decide = looked_at(even)
    first = select(RangeSource(30), decide, cache=folder, version=1)
    assert sorted(set(asked)) == list(range(30))
    (name,) = kept(folder)
    assert name.startswith("select-")
    asked, decide = looked_at(even)
    again = select(RangeSource(30), decide, cache=os.fspath(folder), version=1)
    assert elements(again) == elements(first) == list(range(0, 30, 2))
    assert {0, 1} <= set(asked)  # the first of either kind, and a few others
    assert len(set(asked)) == 8
    assert kept(folder) == {name}


def test_an_outcome_of_other_code_is_an_error_that_names_the_element(tmp_path: Path) -> None:
    select(RangeSource(30), even, cache=tmp_path)
    (name,) = kept(tmp_path)
    keep = np.zeros(30, np.bool_)
    keep[[3, 29]] = True
    np.save(tmp_path / name, np.packbits(keep))
    what = rf"^select: element 0 is left out by {tmp_path / name}, .*version=\.\.\."
    with pytest.raises(PipelineError, match=what):
        select(RangeSource(30), even, cache=tmp_path)
    assert len(select(RangeSource(30), even, cache=tmp_path, version="new")) == 15
    (tmp_path / name).unlink()
    assert len(select(RangeSource(30), even, cache=tmp_path)) == 15


def test_a_decision_that_changes_in_a_way_that_no_digest_shows_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "limit").write_text("3")

    def below() -> Any:
        return lambda x: x < int((tmp_path / "limit").read_text())

    folder = tmp_path / "cache"
    assert len(select(RangeSource(30), below(), cache=folder)) == 3
    assert len(select(RangeSource(30), below(), cache=folder)) == 3
    (tmp_path / "limit").write_text("30")
    with pytest.raises(PipelineError, match=r"element 3 is left out by .*opposite now"):
        select(RangeSource(30), below(), cache=folder)
    assert len(select(RangeSource(30), below(), cache=folder, version=2)) == 30


def test_a_decision_that_is_not_deterministic_is_told_so(tmp_path: Path) -> None:
    count = tmp_path / "count"
    count.write_text("")

    def turn(x: Any) -> Any:
        count.write_text(count.read_text() + "x")
        return np.full(x.shape, len(count.read_text()) % 2 == 1)

    def toss(x: Any) -> Any:
        found = jax.ShapeDtypeStruct(x.shape, np.bool_)
        return jax.pure_callback(turn, found, x, vmap_method="expand_dims")

    assert len(select(RangeSource(64), toss, cache=tmp_path / "cache")) == 64
    with pytest.raises(PipelineError, match="`toss`, or what it looks at, is not deterministic"):
        select(RangeSource(64), toss, cache=tmp_path / "cache")


def test_what_has_no_digest_is_refused_without_a_version(tmp_path: Path) -> None:
    lock = threading.Lock()

    def locked(x: Any) -> Any:
        with lock:
            return x > 3

    with pytest.raises(
        PipelineError, match=r"^select: .*a lock .* has changed .*; write `select\(.*, version=1\)`"
    ):
        select(RangeSource(8), locked, cache=tmp_path)
    for _ in range(2):
        assert len(select(RangeSource(8), locked, cache=tmp_path, version=1)) == 4
    assert len(kept(tmp_path)) == 1


@pytest.mark.parametrize("version", ["", "a/b", "..\n", 1.5, True, ["x"]])
def test_a_version_that_is_no_name_is_refused(version: Any, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="select: `version` must be an integer, or a word"):
        select(RangeSource(8), even, cache=tmp_path, version=version)


def test_a_version_without_a_cache_is_refused() -> None:
    with pytest.raises(PipelineError, match="there is none without `cache=folder`"):
        select(RangeSource(8), even, version=1)


def test_the_cache_changes_with_the_data_and_the_function_and_nothing_else(tmp_path: Path) -> None:
    def below(limit: int) -> Any:
        return lambda x: x < limit

    data = np.arange(10, dtype=np.int32)
    select(ArraySampleSource(data), even, cache=tmp_path)
    select(ArraySampleSource(data.copy(), ordering="sequential"), even, cache=tmp_path)
    assert len(kept(tmp_path)) == 1
    changed = data.copy()
    changed[3] += 1
    assert elements(
        select(ArraySampleSource(changed, ordering="sequential"), even, cache=tmp_path)
    ) == [0, 2, 4, 4, 6, 8]
    assert len(kept(tmp_path)) == 2
    select(ArraySampleSource(data[:9]), even, cache=tmp_path)
    select(SliceSource(ArraySampleSource(data), range(9)), even, cache=tmp_path)
    assert len(kept(tmp_path)) == 4
    for limit in (3, 5, 3, 5):
        some = select(ArraySampleSource(data), below(limit), cache=tmp_path)
        assert len(some) == limit
    assert len(kept(tmp_path)) == 6


SPOILED = {
    "empty": lambda data: b"",
    "without its last byte": lambda data: data[:-1],
    "cut in the header": lambda data: data[:40],
    "something else": lambda data: b"these are not the bits you look for" * 4,
    "zeros": lambda data: bytes(len(data)),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_spoiled_file_is_made_again(tmp_path: Path, how: str) -> None:
    select(RangeSource(30), even, cache=tmp_path)
    (name,) = kept(tmp_path)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(SPOILED[how](whole))
    assert elements(select(RangeSource(30), even, cache=tmp_path)) == list(range(0, 30, 2))
    assert (tmp_path / name).read_bytes() == whole
    assert kept(tmp_path) == {name}


def test_a_file_of_another_shape_is_made_again(tmp_path: Path) -> None:
    select(RangeSource(30), even, cache=tmp_path)
    (name,) = kept(tmp_path)
    for other in (np.zeros(3, np.uint8), np.zeros(4, np.int64), np.zeros((4, 1), np.uint8)):
        np.save(tmp_path / name, other)
        assert len(select(RangeSource(30), even, cache=tmp_path)) == 15


def test_a_selection_that_fails_leaves_no_files(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="one True or False per element"):
        select(RangeSource(30), lambda x: x, cache=tmp_path)
    assert kept(tmp_path) == set()


# What cannot be selected from


def test_a_function_that_is_no_test_is_refused() -> None:
    source = ArraySampleSource({"x": np.zeros((4, 2), np.float32)})
    with pytest.raises(
        PipelineError, match=r"^select: .*one True or False per element, returned float32\[2\]"
    ):
        select(source, lambda element: element["x"])
    with pytest.raises(PipelineError, match=r"returned bool\[2\]; write a comparison, and `.any"):
        select(source, lambda element: element["x"] > 0)
    with pytest.raises(PipelineError, match=r"^select: `<lambda>` failed on an element: KeyError"):
        select(source, lambda element: element["y"])
    with pytest.raises(PipelineError, match=r"failed on an element: TracerBoolConversionError"):
        select(RangeSource(4), lambda x: bool(x > 1))


def test_no_survivors_are_refused_naming_the_function() -> None:
    def impossible(x: Any) -> Any:
        return x > 9

    with pytest.raises(PipelineError, match=r"no element of RangeSource\[4\] passes `impossible`"):
        select(RangeSource(4), impossible)


def test_elements_that_change_from_epoch_to_epoch_are_refused() -> None:
    noisy = RandomMapTransform(lambda x, key: x)(RangeSource(4))
    for source in (noisy, ConcatSource([RangeSource(3), noisy])):
        with pytest.raises(PipelineError, match=r"has a random stage.*select first, or mask with"):
            select(source, even)
    mix = MixSource([RangeSource(4), RangeSource(3)])
    for source in (mix, SliceSource(mix, range(2)), MapTransform(abs)(mix)):
        with pytest.raises(PipelineError, match=r"mixes sources.*FilterTransform\(fn\)"):
            select(source, even)


def test_inside_jit_it_says_that_it_needs_the_values() -> None:
    @jax.jit
    def inside(data: Any) -> Any:
        return select(ArraySampleSource(data), even).take(jnp.arange(1))

    with pytest.raises(cereal.CerealError, match=r"^select: "):
        inside(jnp.arange(4))
