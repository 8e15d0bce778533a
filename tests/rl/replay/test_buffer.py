"""BufferTransform: one element in, some elements out."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from scipy import stats
from tests.rl.played import played
from tests.rl.replay.streams import KEY, numbered, same

import cereal


def stepped(loader: Any, steps: int) -> list[Any]:
    batches = loader.iterate(loader.init_state(KEY), steps=steps)
    return [
        (np.atleast_1d(batch).tolist(), np.atleast_1d(mask).tolist()) for batch, mask in batches
    ]


def buffered(*args: Any, n: int = 1000, **options: Any) -> Any:
    return cereal.DataLoader([cereal.RangeSource(n), cereal.BufferTransform(*args, **options)])


def test_sequential_samples_of_a_ring() -> None:
    found = stepped(buffered(4, prefill=2, sample_size=2), 7)
    held, read, wanted = [], 0, []
    for number in range(7):
        ready = len(held) >= 2
        if len(held) < 4:
            held.append(number)
        else:
            held[number % 4] = number
        if ready:
            wanted.append(([held[(read + k) % len(held)] for k in (0, 1)], [True, True]))
            read = (read + 2) % len(held)
        else:
            wanted.append(([number, number], [True, False]))
    assert found == wanted


def test_shuffled_samples_are_even() -> None:
    found = stepped(buffered(8, prefill=8, sample_size=8, mode="shuffled"), 300)
    ages = [number - each for number, (batch, _) in enumerate(found[8:], 8) for each in batch]
    assert stats.chisquare(np.bincount(ages, minlength=8)).pvalue > 1e-4


def test_a_reservoir_holds_elements_of_all_times() -> None:
    loader = buffered(64, prefill=64, sample_size=64, mode="sequential", write_mode="reservoir")
    batch = stepped(loader, 999)[-1][0]
    assert len(set(batch)) == 64
    assert stats.kstest(np.array(batch) / 1000, "uniform").pvalue > 1e-4


def test_a_sample_of_one_has_no_axis_and_batches_follow() -> None:
    loader = cereal.DataLoader(
        [
            cereal.RangeSource(100),
            cereal.BufferTransform(10, prefill=5, mode="shuffled"),
            cereal.BatchTransform(4),
        ]
    )
    batch, state, mask = loader.next_batch(loader.init_state(KEY))
    assert (batch.tolist(), mask.tolist()) == ([0, 1, 2, 3], [True] * 4)
    batch, state, mask = loader.next_batch(state)
    assert (max(batch.tolist()) < 8, mask.tolist()) == (True, [True] * 4)
    pairs = cereal.DataLoader(
        [cereal.RangeSource(100), cereal.BufferTransform(10, 5, 3), cereal.BatchTransform(4)]
    )
    batch, _, mask = pairs.next_batch(pairs.init_state(KEY))
    assert batch.shape == mask.shape == (4, 3)


def test_masked_elements_are_not_stored() -> None:
    even = cereal.FilterTransform(lambda x: x % 2 == 0)
    loader = cereal.DataLoader([cereal.RangeSource(50), even, cereal.BufferTransform(5, 3)])
    found = stepped(loader, 20)
    assert all(batch[0] % 2 == 0 for batch, mask in found if mask[0])
    assert [mask[0] for _, mask in found[:6]] == [True, False, True, False, True, True]


def test_scans_and_single_steps_are_the_same_and_resume() -> None:
    loader = buffered(8, prefill=4, sample_size=4, mode="shuffled", write_mode="reservoir")
    batches = loader.iterate(loader.init_state(KEY), steps=12)
    taken = [next(batches) for _ in range(5)]
    saved = batches.get_state()
    rest = loader.iterate(loader.init_state(0), steps=7)
    rest.set_state(saved)
    taken += list(rest)
    _, _, scanned = loader.scan_epoch(
        loader.init_state(KEY), 0, lambda c, b, m: (c, (b, m)), steps=12
    )
    for step, pair in enumerate(taken):
        assert same(pair, jax.tree.map(lambda x, at=step: x[at], scanned))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"capacity": 0, "prefill": 1}, "`capacity` must be"),
        (
            {"capacity": 4, "prefill": 5},
            "`prefill` must be .*from 1 to 4, got 5",
        ),
        ({"capacity": 4, "prefill": 0}, "`prefill` must be"),
        ({"capacity": 9, "prefill": 2, "sample_size": 3}, "`sample_size` must be .*`prefill`"),
        ({"capacity": 4, "prefill": 2, "mode": "random"}, "`mode` must be"),
        ({"capacity": 4, "prefill": 2, "write_mode": "lifo"}, "`write_mode` must be"),
    ],
)
def test_bad_options_are_refused(options: Any, words: str) -> None:
    with pytest.raises(cereal.PipelineError, match=words):
        cereal.BufferTransform(**options)


def test_padded_batches_are_refused() -> None:
    padded = cereal.BatchTransform(4, pad_last_batch=True)
    with pytest.raises(cereal.PipelineError, match="Put it before the BatchTransform"):
        cereal.DataLoader([cereal.RangeSource(10), padded, cereal.BufferTransform(4, 2)])


def test_batches_of_which_a_part_waits_are_refused() -> None:
    queue = [cereal.RangeSource(90), cereal.ReplayTransform(9, 4, collect=2, sample="queue")]
    padded = [cereal.RangeSource(6), cereal.BatchTransform(4, pad_last_batch=True)]
    cereal.DataLoader([*queue, cereal.BufferTransform(4, 2)])
    for stages in (
        [*queue, cereal.BatchTransform(2)],
        [*queue, cereal.UnbatchTransform(), cereal.BatchTransform(7)],
        [cereal.rl.MixedBatchesSource([queue, queue])],
        [cereal.rl.MixedBatchesSource([padded])],
    ):
        with pytest.raises(cereal.PipelineError, match="may be partly masked"):
            cereal.DataLoader([*stages, cereal.BufferTransform(4, 2)])


@pytest.mark.parametrize("write_mode", ["fifo", "reservoir"])
def test_stages_that_need_steps_in_a_row_refuse_a_buffer(write_mode: Any) -> None:
    buffer = cereal.BufferTransform(10, prefill=5, write_mode=write_mode)
    n_steps = cereal.rl.NStepReturnTransform(3)
    stages = [played(numbered(40)), buffer, cereal.BatchTransform(8), n_steps]
    with pytest.raises(cereal.PipelineError, match="needs steps in a row"):
        cereal.DataLoader(stages)
