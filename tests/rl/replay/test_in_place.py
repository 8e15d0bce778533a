"""The buffer is changed in place; states that are handed out are copies."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.rl.corridor import ONE, walk
from tests.rl.counting import Counting
from tests.rl.replay.streams import KEY, numbered, replaying, same
from tests.slowly import slowly

import cereal
from cereal.pipeline.execute import run_in_place

CAPACITY = 100_000
OPTIONS: Any = {"capacity": CAPACITY, "sample": "prioritized", "batch_size": 4, "collect": 2}


def large(state: Any) -> list[Any]:
    """The arrays of a state that hold the buffer."""
    return [leaf for leaf in jax.tree.leaves(state) if leaf.size >= CAPACITY]


def test_iterate_writes_into_the_same_memory() -> None:
    loader = replaying(numbered(40), **OPTIONS)
    batches = loader.iterate(loader.init_state(KEY), steps=6)
    places = set()
    for batch, _ in batches:
        batches.feed_back(cereal.rl.set_priorities, batch["index"], batch["reward"] ** 2)
        places.add(tuple(leaf.unsafe_buffer_pointer() for leaf in large(batches._state)))
    assert len(places) == 1


@pytest.mark.parametrize(
    "options", [{}, slowly({"sequence": 3}), {"n_step": 3}, slowly({"sample": "uniform"})]
)
def test_a_step_needs_no_second_buffer(options: Any) -> None:
    """XLA's own account of a step: the buffer is both argument and result, and nowhere else."""
    loader = replaying(numbered(40), **{**OPTIONS, **options})
    state = loader.init_state(KEY)
    buffer = sum(leaf.nbytes for leaf in large(state))
    for program in (
        run_in_place.lower(loader.source, state),
        jax.jit(lambda s: loader.scan_epoch(s, 0, _count, steps=3), donate_argnums=0).lower(state),
    ):
        memory: Any = program.compile().memory_analysis()
        assert memory.alias_size_in_bytes >= buffer
        assert memory.temp_size_in_bytes < buffer / 10


def _count(carry: Any, batch: Any, mask: Any) -> Any:
    return carry + mask.sum(), None


def test_a_state_that_was_handed_out_stays_as_it_is() -> None:
    loader = replaying(numbered(40), 20, batch_size=4)
    batches = loader.iterate(loader.init_state(KEY), steps=6)
    next(batches)
    early = batches.state
    kept = jax.tree.map(np.array, early)
    rest = list(batches)
    assert same(early, kept)
    again = loader.iterate(early, steps=5)
    for one, other in zip(rest, again, strict=True):
        assert same(one, other)
    first = loader.init_state(KEY)
    list(loader.iterate(first, steps=2))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(first))


def test_a_policy_that_was_fed_back_still_belongs_to_the_user() -> None:
    from tests.rl.corridor import ONE, walk

    loader = cereal.DataLoader([walk(), cereal.ReplayTransform(20, batch_size=2, prefill=2)])
    batches = loader.iterate(loader.init_state(KEY, ONE), steps=4)
    params = {"stride": jnp.int32(2)}
    for _ in batches:
        batches.feed_back(cereal.rl.set_loader_policy_state, params)
    assert int(params["stride"]) == 2
    assert cereal.rl.get_policy_state(batches.state)["stride"] == 2


def test_feed_back_refuses_another_structure() -> None:
    loader = replaying(numbered(40), 20, batch_size=4)
    batches = loader.iterate(loader.init_state(KEY), steps=6)
    next(batches)
    words = r"function of `feed_back` must return the loader's state.*def change\(state, \*args"
    with pytest.raises(cereal.UsageError, match=words):
        batches.feed_back(lambda state: state.source)
    assert len(list(batches)) == 5  # nothing was lost


def test_feed_back_follows_a_function_that_changes() -> None:
    loader = replaying(numbered(40), 20, batch_size=4, sample="prioritized")
    batches = loader.iterate(loader.init_state(KEY), steps=6)
    for largest in (2.0, 5.0):
        batches.feed_back(lambda state, at=largest: _with(state, at))
        assert float(batches.state.largest) == largest


def _with(state: Any, largest: float) -> Any:
    return state.but(largest=jnp.float32(largest))


def test_indexed_pipelines_have_feed_back_too() -> None:
    loader = cereal.DataLoader([cereal.RangeSource(8), cereal.BatchTransform(2)])
    batches = loader.iterate(loader.init_state(0))
    next(batches)
    batches.feed_back(lambda state: loader.state_at(0, 3))
    assert next(batches)[0].tolist() == [6, 7]


def test_an_environment_that_fails_is_reported_and_the_buffer_not_used() -> None:
    class Failing(Counting):
        def step(self, action: Any) -> Any:
            if self.steps == 3:
                raise RuntimeError("the robot fell over")
            return super().step(action)

    def policy(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
        return jnp.int32(0), policy_state

    source = cereal.rl.GymnasiumSource(lambda: Failing(), policy, None)
    with cereal.DataLoader([source, cereal.ReplayTransform(20, batch_size=2)]) as loader:
        batches = loader.iterate(loader.init_state(KEY), steps=9)
        for _ in range(3):
            next(batches)
        saved = batches.state
        with pytest.raises(RuntimeError, match="fell over"):
            next(batches)
        with pytest.raises(cereal.UsageError, match="begin again from a state that you saved"):
            next(batches)
        assert cereal.rl.replay_report(saved).items == 3


@pytest.mark.slow
def test_items_in_host_memory_are_the_same_and_stay_there() -> None:
    made = {}
    for storage in ("device", "host"):
        replay = cereal.ReplayTransform(
            96, 8, collect=4, sample="prioritized", sequence=3, storage=storage
        )
        loader = cereal.DataLoader([walk(num_envs=8), replay])
        state = loader.init_state(KEY, ONE)
        batches: Any = loader.iterate(state, steps=8)
        taken = []
        for batch, mask in batches:
            batches.feed_back(cereal.rl.set_priorities, batch["index"], jnp.arange(8.0))
            taken.append((batch, mask))
        scanned = loader.scan_epoch(state, 0, _count, steps=3)
        made[storage] = taken, scanned[1]
        kind = "pinned_host" if storage == "host" else "device"
        for after in (batches._state, batches.state, scanned[0]):
            assert {x.sharding.memory_kind for x in jax.tree.leaves(after.ring.data)} == {kind}
    assert same(made["host"], made["device"])
    whole = cereal.ReplayTransform(90, 8, collect=4, storage="host")(walk(num_envs=8))
    assert whole.init_state(KEY).layout.capacity == 96  # whole steps of 32


def test_a_state_may_be_donated_and_the_parameters_stay_the_users() -> None:
    params = {"stride": jnp.int32(1)}
    replay = cereal.ReplayTransform(40, batch_size=8, collect=2)
    loader = cereal.DataLoader([walk(steps_per_epoch=40), replay])
    state = loader.init_state(KEY, policy_state=params)
    scan = jax.jit(lambda state, carry: loader.scan_epoch(state, carry, _count), donate_argnums=0)
    state, count, _ = scan(state, params["stride"])
    assert int(count) == 1 + 17 * 8  # the first three batches of 20 are not real
    state = loader.set_policy_state(state, params)
    jax.jit(lambda state: loader.next_batch(state)[1], donate_argnums=0)(state)
    assert int(params["stride"]) == 1
