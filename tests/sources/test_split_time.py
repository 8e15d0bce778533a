"""split_time: windows cut in time, so that no part knows what another has to predict."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import cereal
from cereal import BatchTransform, DataLoader, WindowSource, split_time
from cereal.core.rows import Rows
from cereal.testing import assert_same, check_resume, check_source

DATA = np.arange(100, dtype=np.float32)
THREE = (0.7, 0.1, 0.2)


def starts_of(part: Any, stride: int) -> np.ndarray:
    """Where the windows of a part begin in the data, by index arithmetic."""
    index = np.arange(len(part))
    zeros = np.zeros(len(part), np.uint32)
    return part.path.locate(Rows(np.zeros(2, np.uint32), zeros, index, None)).index * stride


def moments(starts: np.ndarray, begin: int, end: int) -> set[int]:
    """All moments from `begin` to `end` after the starts."""
    return {int(start) + k for start in starts for k in range(begin, end)}


def elements_of(part: Any) -> Any:
    return part.take(jnp.arange(len(part), dtype=jnp.int32))


def cuts_of(size: int, fractions: Any) -> list[int]:
    shares = np.cumsum([0.0, *fractions]) / sum(fractions)
    return [int(np.floor(size * share + 0.5)) for share in shares]


def test_targets_lie_in_their_part_and_contexts_reach_back() -> None:
    windows = WindowSource(DATA, 8, predict=2)
    train, val, test = (elements_of(part) for part in split_time(windows, THREE))
    assert (train["context"].min(), train["target"].max()) == (0, 69)
    assert (val["target"].min(), val["target"].max()) == (70, 79)
    assert (test["target"].min(), test["target"].max()) == (80, 99)
    assert val["context"].min() == 62
    assert test["context"].min() == 72


def test_windows_without_a_target_lie_within_their_part() -> None:
    parts = [elements_of(part) for part in split_time(WindowSource(DATA, 8), THREE)]
    assert [(part.min(), part.max()) for part in parts] == [(0, 69), (70, 79), (80, 99)]
    assert [len(part) for part in parts] == [63, 3, 13]


@given(st.data())
def test_no_target_is_shared_and_nothing_of_a_part_lies_after_its_cut(data: st.DataObject) -> None:
    size = data.draw(st.integers(8, 200))
    context = data.draw(st.integers(1, 8))
    predict = data.draw(st.integers(0, 6))
    stride = data.draw(st.integers(1, 9))
    shares = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    fractions = [share / sum(shares) for share in shares]
    assume(context + predict <= size)
    source = WindowSource(np.zeros(size, np.uint8), context, stride, predict=predict)
    begins = np.arange(len(source)) * stride
    whole = context + predict
    cuts = list(itertools.pairwise(cuts_of(size, fractions)))
    # A window belongs to a part if what it is judged by lies in the part.
    judged = begins + context if predict else begins
    expected = [begins[(judged >= low) & (begins + whole <= high)] for low, high in cuts]
    if any(len(part) == 0 for part in expected):
        with pytest.raises(cereal.PipelineError, match=r"^split_time: no window of \d+ fits betw"):
            split_time(source, fractions)
        return
    seen: set[int] = set()
    for part, starts, (low, high) in zip(
        split_time(source, fractions), expected, cuts, strict=True
    ):
        np.testing.assert_array_equal(starts_of(part, stride), starts)
        targets = moments(starts, context if predict else 0, whole)
        assert not targets & seen
        assert low <= min(targets)
        assert max(targets) < high
        assert max(moments(starts, 0, whole)) < high
        seen |= targets


@pytest.mark.parametrize("stride", [2, 3, 10, 25])
def test_strides_leave_targets_apart(stride: int) -> None:
    source = WindowSource(DATA, 6, stride, predict=4, ordering="sequential")
    train, test = split_time(source, (0.6, 0.4))
    starts = [starts_of(part, stride) for part in (train, test)]
    assert not moments(starts[0], 6, 10) & moments(starts[1], 6, 10)
    assert starts[0].max() + 10 <= 60
    assert starts[1].min() + 6 >= 60
    together = np.concatenate(starts)
    skipped = set(range(0, 91, stride)) - set(together.tolist())
    # Only windows whose targets lie on both sides of the cut are left out.
    assert all(start + 6 < 60 < start + 10 for start in skipped)


def test_one_part_is_everything() -> None:
    source = WindowSource(DATA, 8, 3, predict=2, ordering="sequential")
    (whole,) = split_time(source, (1.0,))
    assert len(whole) == len(source)
    assert_same(elements_of(whole), elements_of(source), "the elements")


def test_the_order_is_that_of_the_windows_or_the_one_given() -> None:
    def first(part: Any, key: int = 0) -> list[int]:
        return DataLoader([part, BatchTransform(8)]).indices_at(key, 0).tolist()

    inherited = split_time(WindowSource(DATA, 8, ordering="sequential"), (0.5, 0.5))
    assert [first(part) for part in inherited] == [list(range(8))] * 2
    for part in split_time(WindowSource(DATA, 8), (0.5, 0.5)):
        assert first(part) != list(range(8))
        assert first(part, 0) != first(part, 1)
    given_one = split_time(WindowSource(DATA, 8), (0.5, 0.5), ordering="sequential")
    assert [first(part) for part in given_one] == [list(range(8))] * 2
    back = split_time(WindowSource(DATA, 8), (0.5, 0.5), ordering="shuffle")
    assert first(back[0]) != list(range(8))


def test_parts_are_sources_and_resume(strict_jax: None) -> None:
    train, val = split_time(WindowSource(DATA[:20], 4, predict=2), (0.6, 0.4))
    check_source(val)
    check_resume(DataLoader([train, BatchTransform(3)]))


def test_files_are_cut_like_arrays(tmp_path: Path) -> None:
    path = tmp_path / "series.bin"
    DATA.tofile(path)
    file = np.memmap(path, np.float32, mode="r")
    for predict, fractions in ((0, (0.5, 0.5)), (2, (1.0,))):
        sources = [WindowSource(data, 8, 2, predict=predict) for data in (file, DATA)]
        for mine, theirs in zip(*(split_time(s, fractions) for s in sources), strict=True):
            assert mine.traits.host
            assert not theirs.traits.host
            loaders = [DataLoader([part, BatchTransform(3)]) for part in (mine, theirs)]
            pairs = [list(loader.iterate(loader.init_state(1), steps=3)) for loader in loaders]
            assert_same(pairs[0], pairs[1], "the batches")


def test_nothing_is_copied_into_the_parts() -> None:
    data = jnp.asarray(DATA)
    for part in split_time(WindowSource(data, 8), (0.5, 0.5)):
        pointers = [leaf.unsafe_buffer_pointer() for leaf in _arrays(part)]
        assert pointers == [data.unsafe_buffer_pointer()]


def _arrays(part: Any) -> list[Any]:
    return [leaf for base in part.store.bases for leaf in [base.data]]


def test_parts_combine_with_stages_and_other_sources() -> None:
    train, val = split_time(WindowSource(DATA, 8, ordering="sequential"), (0.5, 0.5))
    both = cereal.ConcatSource([train, val])
    assert_same(
        elements_of(both)[len(train) :], elements_of(val), "the second half of both together"
    )
    with pytest.raises(cereal.PipelineError, match="overlap, so parts of it would share data"):
        cereal.split(train, (0.5, 0.5))


# What goes wrong


@pytest.mark.parametrize(
    "fractions",
    [(0.7, 0.2), (0.7, 0.4), (1.5, -0.5), (1.0, 0.0), (), (float("nan"), 0.5), (70, 30)],
)
def test_fractions_must_be_positive_and_sum_to_one(fractions: Any) -> None:
    with pytest.raises(cereal.PipelineError, match=r"^split_time: `fractions` must be positive"):
        split_time(WindowSource(DATA, 8), fractions)


@pytest.mark.parametrize("fractions", [0.7, None, ("a", "b"), (None, 0.5)])
def test_fractions_must_be_numbers(fractions: Any) -> None:
    with pytest.raises(cereal.PipelineError, match=r"^split_time: `fractions` must be"):
        split_time(WindowSource(DATA, 8), fractions)


def test_a_part_too_short_for_a_window_is_refused() -> None:
    message = r"^split_time: no window of 12 fits between 90 and 100 of 100; enlarge that fract"
    with pytest.raises(cereal.PipelineError, match=message):
        split_time(WindowSource(DATA, 12), (0.9, 0.1))
    train, val = split_time(WindowSource(DATA, 2, predict=10), (0.9, 0.1))
    assert (len(train), len(val)) == (79, 1)
    with pytest.raises(cereal.PipelineError, match="no window of 13 fits between 90 and 100"):
        split_time(WindowSource(DATA, 2, predict=11), (0.9, 0.1))
    with pytest.raises(cereal.PipelineError, match="no window of 12 fits between 0 and 10"):
        split_time(WindowSource(DATA, 8, predict=4), (0.1, 0.9))


def test_a_stride_that_skips_a_part_is_refused() -> None:
    source = WindowSource(DATA, 2, 50)
    with pytest.raises(cereal.PipelineError, match="no window of 2 fits between 60 and 90"):
        split_time(source, (0.6, 0.3, 0.1))


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (cereal.RangeSource(100), "RangeSource"),
        (cereal.MapTransform(lambda w: w + 1)(WindowSource(DATA, 8)), "MapTransform"),
        (cereal.SliceSource(WindowSource(DATA, 8), range(50)), "SliceSource"),
        (BatchTransform(4)(WindowSource(DATA, 8)), "BatchTransform"),
        (DATA, "ndarray"),
    ],
)
def test_only_windows_are_cut_in_time(source: Any, name: str) -> None:
    message = rf"^split_time: `source` must be a WindowSource, got {name}; cut in time first"
    with pytest.raises(cereal.PipelineError, match=message):
        split_time(source, (0.5, 0.5))


def test_an_order_that_chooses_among_windows_is_refused() -> None:
    with pytest.raises(cereal.PipelineError, match="which chooses among its elements"):
        split_time(WindowSource(DATA, 8, ordering=[3, 4, 5]), (0.5, 0.5))
