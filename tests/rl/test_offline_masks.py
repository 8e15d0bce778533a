"""Windows of episodes mask their padding; every stage and combination keeps the finer mask."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from tests.rl.recorded import recorded, windows

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    CacheTransform,
    ConcatSource,
    DataLoader,
    FilterTransform,
    MixSource,
    PipelineError,
    RangeSource,
    SliceSource,
    TimeSeriesBatchTransform,
    UnbatchTransform,
    ZipSource,
    masked_mean,
)
from cereal.rl import (
    BufferTransform,
    EpisodeSource,
    GAETransform,
    NStepReturnTransform,
    ReplayTransform,
)

EPISODES = recorded((3, 1, 4))
SIZE = 3
REAL = [len(inside) for inside in windows(EPISODES, SIZE, 1, True)]  # 3 2 1 1 3 3 2 1
N = len(REAL)


def source(**options: Any) -> EpisodeSource:
    return EpisodeSource(EPISODES, window=SIZE, ordering="sequential", **options)


def counts(stages: Any, batch: int = N) -> list[int]:
    """How many steps of each window are real, in a first batch."""
    mask = DataLoader([*stages, BatchTransform(batch)]).batch_at(0, 0)[1]
    assert mask.shape == (batch, SIZE)
    return np.asarray(mask).sum(axis=1).tolist()


def odd(window: Any) -> Any:
    return window["state"]["id"][0] % 2 == 1


KEPT = [n * (start % 2) for n, start in zip(REAL, [0, 1, 2, 100, 200, 201, 202, 203], strict=True)]


def test_a_filter_masks_whole_windows_before_and_after_batching() -> None:
    assert counts([source(), FilterTransform(odd)]) == KEPT
    after = DataLoader([source(), BatchTransform(N), FilterTransform(odd)])
    assert np.asarray(after.batch_at(0, 0)[1]).sum(axis=1).tolist() == KEPT
    # A batch of as many windows as a window has steps: the axes must not be confused.
    square = DataLoader([source(), BatchTransform(SIZE), FilterTransform(odd)])
    assert np.asarray(square.batch_at(0, 0)[1]).sum(axis=1).tolist() == KEPT[:SIZE]


@pytest.mark.parametrize("where", ["host", "device"])
def test_a_cache_keeps_the_mask(where: Any) -> None:
    stages = [source(), CacheTransform(where)]
    assert counts(stages) == REAL


def test_a_cache_in_files_keeps_the_mask(tmp_path: Any) -> None:
    for _ in range(2):  # the second time, from the files
        assert counts([source(), CacheTransform(tmp_path)]) == REAL


def test_combined_sources_keep_the_mask() -> None:
    assert counts([SliceSource(source(), range(1, 5))], 4) == REAL[1:5]
    assert counts([ConcatSource([source(), source()])], 2 * N) == REAL * 2
    mixed = MixSource([source(), source()], weights=(1, 1), ordering="sequential")
    assert sorted(counts([mixed], 2 * N)) == sorted(REAL * 2)
    assert counts([ZipSource([source(), RangeSource(N)])]) == REAL
    assert counts([ZipSource([RangeSource(N), source()])]) == REAL
    assert counts([cereal.select(source(), odd)], 3) == [n for n in KEPT if n]


def test_elements_without_a_finer_mask_are_real_throughout() -> None:
    whole = ArraySampleSource(source().take(np.arange(2)), ordering="sequential")
    assert counts([ConcatSource([source(), whole])], N + 2) == [*REAL, SIZE, SIZE]
    assert counts([ConcatSource([whole, source()])], N + 2) == [SIZE, SIZE, *REAL]


def test_windows_of_different_lengths_are_not_combined() -> None:
    other = EpisodeSource(EPISODES, window=2)
    with pytest.raises(PipelineError, match=r"masks of different shapes, \[2\] and \[3\]"):
        _ = ZipSource([source(), SliceSource(other, range(N))]).traits


def test_unbatched_windows_are_steps_with_their_masks() -> None:
    loader = DataLoader([source(), UnbatchTransform(), BatchTransform(N * SIZE)])
    batch, mask = loader.batch_at(0, 0)
    assert batch["reward"].shape == mask.shape == (N * SIZE,)
    assert np.asarray(mask).reshape(N, SIZE).sum(axis=1).tolist() == REAL


def test_packed_windows_have_one_mask_of_steps() -> None:
    packed = TimeSeriesBatchTransform("reward", mode="packed")
    batch, mask = DataLoader([source(), BatchTransform(N), packed]).batch_at(0, 0)
    assert batch["reward"].shape == (N * SIZE, 1)
    assert np.asarray(mask).reshape(N, SIZE).sum(axis=1).tolist() == REAL
    assert np.flatnonzero(batch["sequence_start"]).tolist() == list(range(0, N * SIZE, SIZE))


def test_padding_at_the_end_of_an_epoch_is_masked_too() -> None:
    loader = DataLoader([source(), BatchTransform(5, pad_last_batch=True)])
    masks = [np.asarray(mask).sum(axis=1).tolist() for _, mask in loader]
    assert masks == [REAL[:5], [*REAL[5:], 0, 0]]


def test_a_mean_over_real_steps() -> None:
    loader = DataLoader([source(period=SIZE), BatchTransform(4, pad_last_batch=True)])
    batch, mask = loader.batch_at(0, 0)
    wanted = np.concatenate([each["rewards"] for each in EPISODES]).mean()
    np.testing.assert_allclose(masked_mean(batch["reward"], mask), wanted, rtol=1e-5)


def test_batches_over_a_mesh() -> None:
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    loader = DataLoader([source(), BatchTransform(4)], sharding=place)
    batch, _, mask = loader.next_batch(loader.init_state(0))
    assert np.asarray(mask).sum(axis=1).tolist() == REAL[:4]
    assert batch["reward"].sharding.is_equivalent_to(place, 2)


@pytest.mark.parametrize("stage", [GAETransform(), NStepReturnTransform(2)])
@pytest.mark.parametrize("pad", [True, False])
def test_returns_over_batches_of_windows_are_refused(stage: Any, pad: bool) -> None:
    with pytest.raises(PipelineError, match=r"each element is a window of steps itself; call"):
        DataLoader([source(pad=pad), BatchTransform(2), stage])


@pytest.mark.parametrize(
    "stage", [ReplayTransform(batch_size=2, collect=0), BufferTransform(4, prefill=2)]
)
def test_a_buffer_does_not_lose_windows_with_padding(stage: Any) -> None:
    with pytest.raises(PipelineError, match=r"a mask inside, of shape \[3\].*pass `pad=False`"):
        DataLoader([source(), stage])
    DataLoader([source(pad=False), stage])


def test_converting_windows_with_padding_is_refused(tmp_path: Any) -> None:
    with pytest.raises(PipelineError, match=r"a mask inside, of shape \[3\].*pass `pad=False`"):
        cereal.convert(source(), tmp_path)
