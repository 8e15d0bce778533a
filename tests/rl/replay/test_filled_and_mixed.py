"""Buffers that are filled from data, several buffers in one batch, and saved buffers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.rl.played import played
from tests.rl.replay.streams import KEY, batches_of, numbered, pairs, replaying, same

import cereal
from cereal.rl import MixedBatchesSource, fill_replay, replay_report, set_priorities
from cereal.rl.replay.storage.sum_tree import priority_of


def test_offline_data_is_stored_at_once_and_nothing_is_collected() -> None:
    data = {"x": np.arange(30), "y": np.arange(60.0).reshape(30, 2)}
    replay = cereal.ReplayTransform(batch_size=10, collect=0, sample="prioritized")
    loader = cereal.DataLoader([cereal.ArraySampleSource(data, "shuffle"), replay])
    state = loader.init_state(KEY)
    assert replay_report(state)[:3] == (30, 30, 30)
    assert len(loader) == 3
    found = set()
    for batch, mask in loader.iterate(state, epochs=10):
        assert mask.all()
        np.testing.assert_array_equal(batch["y"][:, 0], batch["x"] * 2)
        found |= set(batch["x"].tolist())
    assert found == set(range(30))


def test_files_are_stored_too(tmp_path: Any) -> None:
    np.save(tmp_path / "x.npy", np.arange(30))
    files = cereal.MemmapSource({"x": np.load(tmp_path / "x.npy", mmap_mode="r")})
    replay = cereal.ReplayTransform(batch_size=10, collect=0)
    loader = cereal.DataLoader([files, cereal.BatchTransform(8, pad_last_batch=True), replay])
    state = loader.init_state(KEY)
    batch, mask = next(loader.iterate(state))
    assert mask.all()
    assert set(batch["x"].tolist()) <= set(range(30))
    assert replay_report(state).items == 30


def test_a_filled_buffer_continues_with_the_stream() -> None:
    loader = replaying(numbered(40, 2), 30, envs=2, sample="prioritized", n_step=2, prefill=10)
    old = jax.tree.map(lambda x: x[:10], numbered(40, 2, ends=[9]))
    old["state"] = old["state"] + np.int32(1000)
    state = fill_replay(loader.init_state(KEY), old)
    leaves = priority_of(state.nodes, jnp.arange(30, dtype=jnp.int32))
    assert leaves.tolist() == [1.0] * 18 + [0.0] * 12  # the last step of each is not whole yet
    batch, state, mask = loader.next_batch(state)
    assert mask.all()
    assert replay_report(state).items == 22
    assert pairs(batch["state"]) <= {(t, e + 1000) for t in range(1000, 1010) for e in (0, 1)}


def test_of_too_much_data_the_last_is_kept() -> None:
    loader = replaying(numbered(40), 10, batch_size=4, sample="prioritized")
    state = fill_replay(loader.init_state(KEY), numbered(35))
    assert replay_report(state)[:3] == (10, 10, 35)
    assert sorted(state.ring.data["state"][:, 0].tolist()) == list(range(25, 35))
    batch, state, _ = loader.next_batch(state)
    assert set(batch["state"][:, 0].tolist()) <= {*range(26, 35), 0}
    state = set_priorities(state, jnp.asarray([34], jnp.uint32), jnp.asarray([7.0]))
    assert replay_report(state).overwritten == 0


def test_what_does_not_fit_is_not_filled_in() -> None:
    state = replaying(numbered(40), 10, batch_size=4).init_state(KEY)
    steps = numbered(5)
    with pytest.raises(cereal.StateError, match="another structure"):
        fill_replay(state, {"state": steps["state"]})
    with pytest.raises(cereal.StateError, match=r"elements\['reward'\].*float32"):
        fill_replay(state, {**steps, "reward": steps["reward"].astype(np.int32)})
    with pytest.raises(cereal.StateError, match="one length"):
        fill_replay(state, {**steps, "reward": steps["reward"][:3]})
    queue = replaying(numbered(40), 10, batch_size=4, sample="queue").init_state(KEY)
    with pytest.raises(cereal.UsageError, match="a queue gives each item once"):
        fill_replay(queue, steps)


# Several buffers


def two(**options: Any) -> Any:
    options = {"sample": "prioritized", "alpha": 1.0, **options}
    one = [cereal.RangeSource(100), cereal.ReplayTransform(20, 6, collect=6, **options)]
    other = [cereal.RangeSource(1000, 1100), cereal.ReplayTransform(30, 2, collect=2, **options)]
    return cereal.DataLoader([MixedBatchesSource([one, other])])


def test_batches_have_a_share_of_each_buffer() -> None:
    loader = two(sample="uniform")
    batch, mask = batches_of(loader, 10)
    assert mask.all()
    assert ((batch >= 1000) == [False] * 6 + [True] * 2).all()


def test_priorities_find_their_buffer() -> None:
    loader = two()
    batch, state, _ = loader.next_batch(loader.init_state(KEY))
    state = set_priorities(state, batch["index"], batch["element"].astype(jnp.float32))
    first, second = state.parts
    held = first.ring.data[:6].astype(np.float32)
    drawn = set(np.asarray(batch["element"][:6]).tolist())
    wanted = [float(x) if int(x) in drawn else 1.0 for x in held]
    assert priority_of(first.nodes, jnp.arange(6, dtype=jnp.int32)).tolist() == wanted
    assert float(second.largest) >= 1000
    with pytest.raises(cereal.UsageError, match="parts of"):
        set_priorities(state, batch["index"][:3], jnp.ones(3))


def test_a_buffer_over_a_buffer_is_counted_and_gets_its_priorities() -> None:
    names = cereal.RenameTransform({"index": "below", "weight": "w", "probability": "p"})
    inner = cereal.ReplayTransform(20, 4, collect=4, sample="prioritized")
    loader = cereal.DataLoader(
        [cereal.RangeSource(99), inner, names, cereal.ReplayTransform(30, 4)]
    )
    batch, state, _ = loader.next_batch(loader.init_state(KEY))
    report = replay_report(state)
    assert (report.items, report.capacity, report.written) == (8, 50, 8)
    index = jnp.arange(4, dtype=jnp.uint32)
    state = set_priorities(state, index, jnp.array([0.0, 0.0, 5.0, 0.0]))
    nodes = state.source.nodes
    assert priority_of(nodes, jnp.arange(4)).tolist() == [0, 0, pytest.approx(5**0.6), 0]
    assert batch["below"].dtype == jnp.uint32
    bad = jax.jit(set_priorities)(state, index, jnp.full(4, jnp.nan))
    with pytest.warns(UserWarning, match="4 priorities were negative, NaN"):
        loader.scan_epoch(bad, 0, lambda carry, batch, mask: (carry, None), steps=1)


def test_a_mixture_with_stored_data_resumes() -> None:
    old = [cereal.RangeSource(50), cereal.BatchTransform(3)]
    new = [cereal.RangeSource(1000, 1100), cereal.ReplayTransform(30, 4, collect=4)]
    loader = cereal.DataLoader([MixedBatchesSource([old, new])])
    batches = loader.iterate(loader.init_state(KEY), steps=8)
    next(batches)
    saved, rest = batches.get_state(), list(batches)
    again = loader.iterate(loader.init_state(0), steps=7)
    again.set_state(saved)
    for one, other in zip(rest, again, strict=True):
        assert same(one, other)


def test_parts_that_differ_are_refused() -> None:
    one = [cereal.RangeSource(50), cereal.BatchTransform(3)]
    with pytest.raises(cereal.PipelineError, match=r"part 1.*make them alike"):
        MixedBatchesSource([one, [{"x": np.arange(5)}, cereal.BatchTransform(2)]])
    with pytest.raises(cereal.PipelineError, match=r"part 1.*single elements"):
        MixedBatchesSource([one, cereal.RangeSource(5)])
    there = cereal.DevicePutTransform(jax.devices()[1])
    with pytest.raises(cereal.PipelineError, match=r"part 1.*devices of its own"):
        MixedBatchesSource([one, [*one, there]])
    with pytest.raises(cereal.PipelineError, match="needs a list"):
        MixedBatchesSource([])


# Saved buffers


@pytest.mark.parametrize(
    "options",
    [{"sample": "prioritized", "sequence": 3, "period": 2}, {"write": "reservoir"}],
    ids=["prioritized", "reservoir"],
)
def test_a_saved_buffer_continues_exactly(options: Any) -> None:
    loader = replaying(numbered(40), 24, batch_size=4, collect=2, **options)
    batches = loader.iterate(loader.init_state(KEY), steps=30)
    for _ in range(15):
        batch, _ = next(batches)
        if "index" in batch:
            batches.feed_back(set_priorities, batch["index"], jnp.arange(4.0))
    saved, rest = batches.get_state(), list(batches)
    again = loader.iterate(loader.init_state(0), steps=15)
    again.set_state(saved)
    for one, other in zip(rest, again, strict=True):
        assert same(one, other)


def test_a_state_of_another_buffer_is_refused() -> None:
    one = replaying(numbered(40), 24, batch_size=4, sample="prioritized")
    other = replaying(numbered(40), 24, batch_size=4, sample="prioritized", alpha=1.0)
    with pytest.raises(cereal.StateError, match=r"of another buffer.*alpha=0\.6.*alpha=1"):
        other.next_batch(one.init_state(KEY))
    saved = one.iterate(one.init_state(KEY), steps=1).get_state()
    with pytest.raises(cereal.StateError, match="belongs to another pipeline"):
        other.iterate(other.init_state(KEY), steps=1).set_state(saved)


def test_parts_whose_masks_differ_are_refused_in_these_words() -> None:
    sequences = [played(numbered(40)), cereal.ReplayTransform(30, batch_size=4, sequence=3)]
    spec = cereal.DataLoader(sequences).element_spec()
    alike = jax.tree.map(lambda x: np.zeros((8, *x.shape[1:]), x.dtype), spec)
    with pytest.raises(
        cereal.PipelineError, match=r"have the shape \[\], but those of part 0 \[3\]"
    ):
        MixedBatchesSource([sequences, [alike, cereal.BatchTransform(4)]])
