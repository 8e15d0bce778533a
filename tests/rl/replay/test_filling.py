"""Data from before: filled in parts, in odd shapes, and refused where it would be used wrongly."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.aligned import aligned
from tests.rl.corridor import Corridor
from tests.rl.replay.streams import KEY, numbered, pairs, replaying, same

import cereal
from cereal import DataLoader, PipelineError, ReplayTransform, StateError, UsageError, rl
from cereal.rl import RolloutSource, fill_replay


@pytest.mark.parametrize("sample", ["uniform", "prioritized"])
def test_sequences_begin_at_every_period_after_filling_in_parts(sample: Any) -> None:
    steps = numbered(60, 3)
    loader = replaying(
        steps, 31, envs=3, sequence=2, period=3, episode_end=None, sample=sample, batch_size=16
    )
    old = jax.tree.map(lambda x: x[:25], steps)
    state = fill_replay(loader.init_state(KEY), old)
    drawn = jax.jit(lambda state: loader.source._drawn(state)[0]["state"][:, 0])
    found = set()
    for number in range(30):
        found |= pairs(drawn(state.but(batches=jnp.asarray([0, number], jnp.uint32))))
    kept = [(t, e) for t in range(25) for e in range(3)][-31:]
    assert found == {(t, e) for t, e in kept if t % 3 == 0 and t < 24}


def test_a_step_that_is_partly_overwritten_is_drawn() -> None:
    steps = numbered(40, 4)
    loader = replaying(steps, 30, envs=4, sequence=2, batch_size=16, episode_end=None)
    state = loader.init_state(KEY)
    for _ in range(9):
        _, state, _ = loader.next_batch(state)
    drawn = jax.jit(lambda state: loader.source._drawn(state)[0]["state"][:, 0])
    found = set()
    for number in range(30):
        found |= pairs(drawn(state.but(batches=jnp.asarray([0, number], jnp.uint32))))
    assert found == {(1, 2), (1, 3)} | {(t, e) for t in range(2, 8) for e in range(4)}


def test_a_reservoir_keeps_each_item_with_the_same_probability_if_it_is_filled() -> None:
    source = cereal.RangeSource(100)
    loader = DataLoader([source, ReplayTransform(10, batch_size=1, write="reservoir")])

    def kept(key: Any) -> Any:
        state = fill_replay(loader.init_state(key), jnp.arange(30, dtype=jnp.int32))
        state = fill_replay(state, jnp.arange(30, 60, dtype=jnp.int32))
        return state.ring.data

    items = jax.jit(jax.vmap(kept))(jax.random.split(KEY, 1200))
    times = np.bincount(np.asarray(items).reshape(-1), minlength=60)
    # Each is kept in one of six buffers: 200 times, with a standard deviation of 13.
    assert abs(times - 200).max() < 5 * 13


def test_much_data_is_filled_into_a_small_buffer_in_one_short_program() -> None:
    loader = DataLoader([cereal.RangeSource(100), ReplayTransform(10, batch_size=1)])
    state = loader.init_state(KEY)
    data = np.arange(10_004, dtype=np.int32)
    assert len(str(jax.make_jaxpr(fill_replay)(state, data))) < 20_000
    assert sorted(fill_replay(state, data).ring.data.tolist()) == list(range(9994, 10_004))


def test_windows_do_not_go_on_from_old_data_in_new_steps() -> None:
    loader = replaying(numbered(40), 30, batch_size=4, n_step=2, prefill=10)
    state = loader.init_state(KEY)
    with pytest.raises(UsageError, match="the last step of the elements ends no episode"):
        fill_replay(state, numbered(10, ends=[3]))
    state = loader.next_batch(fill_replay(state, numbered(10, ends=[9])))[1]
    words = "the last step that is stored now ends no episode .*before the first batch"
    with pytest.raises(UsageError, match=words) as raised:
        fill_replay(state, numbered(10, ends=[9]), truncate=True)
    assert "truncate=True" not in str(raised.value)
    several = replaying(numbered(40, 2), 30, envs=2, batch_size=4, sequence=2)
    ends = numbered(10, 2, ends=lambda t, e: (t == 9) & (e == 0))
    with pytest.raises(UsageError, match="of environment 1 ends no episode"):
        fill_replay(several.init_state(KEY), ends)


def test_inside_of_jit_episodes_are_not_joined_either() -> None:
    loader = replaying(numbered(40), 30, batch_size=4, n_step=2, prefill=10)
    fill, ended = jax.jit(fill_replay), numbered(10, ends=[9])
    state = fill(loader.init_state(KEY), ended)
    assert same(state.numbers, fill_replay(loader.init_state(KEY), ended).numbers)
    assert rl.replay_report(state).not_filled == 0
    state = fill(state, numbered(10, ends=[3]))  # its last step ends no episode
    assert rl.replay_report(state)[:3] == (10, 30, 10)
    collected = loader.next_batch(state)[1]  # its last step goes on in the next batch
    state = fill(collected, ended)
    assert same(state.table, collected.table)
    assert rl.replay_report(state) == rl.replay_report(collected)._replace(not_filled=2)
    with pytest.warns(UserWarning, match="stored nothing, 2 times: windows would have gone on"):
        loader.scan_epoch(state, None, lambda carry, batch, mask: (carry, None), steps=1)


def test_seeds_are_filled_each_by_its_own_data() -> None:
    loader = replaying(numbered(40, 2), 30, envs=2, batch_size=4, sequence=2)
    states = jax.vmap(loader.init_state)(jax.random.split(KEY, 2))
    good, bad = numbered(10, 2, ends=[9]), numbered(10, 2, ends=lambda t, e: (t == 9) & (e == 0))
    filled = jax.vmap(fill_replay)(states, jax.tree.map(lambda *each: np.stack(each), good, bad))
    first, second = (jax.tree.map(lambda x, at=at: x[at], filled) for at in range(2))
    assert same(rl.read_replay(first), good)
    assert rl.replay_report(second) == (0, 30, 0, 0, 0, 1)


def walk(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
    return jnp.int32(1), policy_state


def test_in_host_memory_only_whole_writes_are_filled_in() -> None:
    source = RolloutSource(Corridor(), walk, None, steps_per_epoch=40, num_envs=2)
    made = []
    for storage in ("device", "host"):
        replay = ReplayTransform(24, batch_size=4, collect=4, storage=storage)
        loader = DataLoader([source, replay])
        state = loader.init_state(KEY)
        old = jax.tree.map(lambda x: np.ones((20, 2, *x.shape[1:]), x.dtype), state.ring.data)
        if storage == "host":
            with pytest.raises(StateError, match="a multiple of 4 steps"):
                fill_replay(state, jax.tree.map(lambda x: x[:3], old))
        state = fill_replay(state, old)
        for _ in range(2):
            _, state, _ = loader.next_batch(state)
        made.append(jax.tree.map(np.asarray, (state.ring.data, state.ring.head)))
    jax.tree.map(np.testing.assert_array_equal, *made)


def test_in_host_memory_episodes_are_filled_in_outside_of_jit() -> None:
    source = RolloutSource(Corridor(), walk, None, steps_per_epoch=40)
    loader = DataLoader([source, ReplayTransform(24, batch_size=4, n_step=2, storage="host")])
    state = loader.init_state(KEY)
    old = jax.tree.map(lambda x: np.ones((5, *x.shape[1:]), x.dtype), state.ring.data)
    old["done"] = np.arange(5) == 4
    with pytest.raises(UsageError, match="fill it outside of `jit`"):
        jax.jit(fill_replay)(state, old)
    assert rl.replay_report(fill_replay(state, old)).items == 5


def test_data_that_never_makes_a_batch_are_refused() -> None:
    with pytest.raises(PipelineError, match="`prefill=16` is more than the length of the data, 10"):
        DataLoader([np.arange(10.0), ReplayTransform(1000, batch_size=16, collect=0)])
    with pytest.raises(
        PipelineError, match="If `fill_replay` adds more, pass `capacity` and `pref"
    ):
        DataLoader([np.arange(10.0), ReplayTransform(batch_size=16, prefill=16, collect=0)])
    with pytest.raises(PipelineError, match=r"write `BatchTransform\(4\)`"):
        ReplayTransform(batch_size=4, collect=0, sample="queue")
    few = cereal.FilterTransform(lambda x: x < 3)
    loader = DataLoader([np.arange(10.0), few, ReplayTransform(batch_size=4, collect=0)])
    with pytest.raises(PipelineError, match="only 3 items of"):
        loader.init_state(KEY)


def test_of_data_that_does_not_fit_nothing_is_left_out_in_silence() -> None:
    with pytest.raises(PipelineError, match="the data has 10 items, and only the last 4 would be"):
        DataLoader([np.arange(10.0), ReplayTransform(4, batch_size=4, collect=0)])
    some = ReplayTransform(4, batch_size=4, collect=0, write="reservoir")
    state = DataLoader([np.arange(10.0), some]).init_state(KEY)
    assert len(set(rl.read_replay(state).tolist())) == 4
    few = cereal.FilterTransform(lambda x: x < 5)
    loader = DataLoader([np.arange(10.0), few, ReplayTransform(8, batch_size=4, collect=0)])
    assert sorted(rl.read_replay(loader.init_state(KEY)).tolist()) == [0, 1, 2, 3, 4]
    loader = DataLoader([np.arange(10.0), few, ReplayTransform(4, batch_size=4, collect=0)])
    with pytest.raises(PipelineError, match=r"5 items of .* are real, and only the last 4"):
        loader.init_state(KEY)


def test_parts_of_batches_that_go_on_with_the_next_epoch_are_refused() -> None:
    part = DataLoader([np.arange(10.0), cereal.BatchTransform(4)], shard=(1, 2)).source
    with pytest.raises(PipelineError, match="elements of other parts would be stored"):
        DataLoader([part, ReplayTransform(batch_size=2, collect=0)])


def test_a_buffer_that_is_filled_by_hand_waits_for_its_prefill() -> None:
    replay = ReplayTransform(100, batch_size=4, prefill=12, collect=0)
    loader = DataLoader([np.arange(8.0, dtype=np.float32), replay])
    state = loader.init_state(KEY)
    assert not loader.next_batch(state)[2].any()
    state = fill_replay(state, np.arange(8.0, 12.0, dtype=np.float32))
    assert loader.next_batch(state)[2].all()


@pytest.mark.parametrize("batch", [{}, {"pad_last_batch": True}])
def test_an_epoch_of_batches_is_stored_once(batch: Any) -> None:
    """The last batch goes on with the next epoch, whose elements are stored already."""
    replay = ReplayTransform(batch_size=50, collect=0)
    loader = DataLoader([np.arange(50), cereal.BatchTransform(16, **batch), replay])
    state = loader.init_state(KEY)
    assert rl.replay_report(state)[:3] == (50, 50, 50)
    assert sorted(rl.read_replay(state).tolist()) == list(range(50))
    assert sorted(rl.read_replay(jax.jit(loader.init_state)(KEY)).tolist()) == list(range(50))
    assert loader.steps_per_epoch == 1


def test_a_source_is_answered_with_what_to_write() -> None:
    source = cereal.ArraySampleSource(np.arange(8.0, dtype=np.float32))
    loader = DataLoader([source, ReplayTransform(100, batch_size=4)])
    with pytest.raises(UsageError, match=r"write `fill_replay\(state, source\.take\("):
        fill_replay(loader.init_state(KEY), source)
    state = fill_replay(loader.init_state(KEY), source.take(jnp.arange(len(source))))
    assert rl.replay_report(state).items == 8


def test_single_items_for_several_environments_are_told_their_shape() -> None:
    steps = numbered(10, 4)
    loader = replaying(steps, 100, envs=4)
    flat = jax.tree.map(lambda x: x.reshape(40, *x.shape[2:]), steps)
    with pytest.raises(StateError, match=r"stand alone get it by `(x.*reshape\(-1, 4.*)`") as found:
        fill_replay(loader.init_state(KEY), flat)
    write = str(found.value).partition("get it by `")[2].partition("`")[0]
    flat = jax.tree.map(lambda x: eval(write, {"x": x, "len": len}), flat)
    assert rl.replay_report(fill_replay(loader.init_state(KEY), flat)).items == 40


@pytest.mark.parametrize("way", ["fill_replay", "feed_back"])
def test_arrays_of_numpy_may_be_written_to_afterwards(way: str) -> None:
    played = aligned((1 << 16,), np.float32)
    replay = ReplayTransform(1 << 17, batch_size=1, collect=0, write="fifo")
    loader = DataLoader([np.zeros(1, np.float32), replay])

    @jax.jit
    def late(state: Any) -> Any:
        x = jnp.linalg.matrix_power(jnp.eye(300), 60)
        return jax.tree.map(lambda leaf: leaf + (x[0, 1] * 0).astype(leaf.dtype), state)

    state, batches = late(loader.init_state(KEY)), loader.iterate(loader.init_state(KEY))
    for number in range(1, 6):
        played[:] = number
        if way == "fill_replay":
            made = fill_replay(late(state), played)
        else:
            batches.state = late(state)
            batches.feed_back(fill_replay, played)
            made = batches.state
        played[:] = -1  # as a simulator does, with the next step
        assert (rl.read_replay(made)[-len(played) :] == number).all()


def test_an_epoch_of_data_in_a_larger_buffer_is_as_long_as_the_data() -> None:
    loader = DataLoader([np.arange(10.0), ReplayTransform(1000, batch_size=4, collect=0)])
    assert loader.steps_per_epoch == 3


@pytest.mark.parametrize("options", [{"write": "reservoir"}, {"sample": "queue"}])
def test_a_period_needs_steps_in_a_row_as_sequences_do(options: Any) -> None:
    with pytest.raises(PipelineError, match="knows single items, not steps in a row"):
        ReplayTransform(8, batch_size=4, sequence=1, period=2, **options)


def test_arrays_without_numbers_are_stored() -> None:
    data = {"x": np.arange(20, dtype=np.int32), "none": np.zeros((20, 0), np.float32)}
    loader = DataLoader([data, ReplayTransform(10, batch_size=4, collect=4)])
    state = fill_replay(loader.init_state(KEY), data)
    batch, state, mask = loader.next_batch(state)
    assert mask.all()
    assert batch["none"].shape == (4, 0)


def test_data_that_stop_inside_an_episode_are_stored_as_truncated() -> None:
    steps = {**numbered(40), "info": {"terminated": np.zeros(40, bool)}}
    steps["info"]["truncated"] = steps["done"].copy()
    loader = replaying(steps, 30, batch_size=8, n_step=3, gamma=0.5, prefill=8)
    old = jax.tree.map(lambda x: x[:8], steps)
    state = fill_replay(loader.init_state(KEY), old, truncate=True)
    batch, _, _ = loader.next_batch(state)
    for at in range(8):
        t = int(batch["state"][at, 0])
        if t <= 7:  # of the old data: the return ends with it, and goes on by bootstrapping
            count = min(3, 8 - t)
            assert batch["bootstrap_state"][at].tolist() == [t + count, 0]
            assert float(batch["bootstrap_discount"][at]) == 0.5**count
    plain = replaying(numbered(40), 30, n_step=3, prefill=8)
    with pytest.raises(UsageError, match=r"without `info\['terminated'\]`"):
        fill_replay(plain.init_state(KEY), numbered(8), truncate=True)
