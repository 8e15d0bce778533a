"""What batches of a replay buffer hold."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from tests.rl.corridor import ONE, walk
from tests.rl.replay.streams import KEY, batches_of, numbered, pairs, replaying, same
from tests.slowly import slowly

import cereal

UNIFORM = {"sample": "uniform"}
PRIORITIZED = {"sample": "prioritized"}


@pytest.mark.parametrize(
    ("envs", "options"),
    [(1, UNIFORM), (3, PRIORITIZED), slowly(1, PRIORITIZED), slowly(3, UNIFORM)],
)
def test_batches_hold_what_the_last_steps_were(envs: int, options: Any) -> None:
    loader = replaying(numbered(40, envs), 12, envs=envs, collect=2, prefill=12, **options)
    batch, mask = batches_of(loader, 12)
    for step in range(12):
        now = 2 * (step + 1)
        assert mask[step].all() == mask[step].any() == (now * envs >= 12)
        if mask[step].any():
            held = {(t, e) for t in range(now - 12 // envs, now) for e in range(envs)}
            assert pairs(batch["state"][step]) <= held


@pytest.mark.parametrize("options", [UNIFORM, PRIORITIZED], ids=["uniform", "prioritized"])
def test_every_item_is_drawn_equally_often_at_first(options: Any) -> None:
    loader = replaying(
        numbered(100, 2), 200, envs=2, collect=100, batch_size=200, prefill=200, **options
    )
    batch, mask = batches_of(loader, 10)
    assert mask.all()
    state = batch["state"].reshape(-1, 2) % 100
    counts = np.bincount(state[:, 0] * 2 + state[:, 1], minlength=200)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_a_batch_before_prefill_is_masked_and_its_weights_are_zero() -> None:
    loader = replaying(numbered(40), 100, prefill=30, collect=4, sample="prioritized")
    batch, mask = batches_of(loader, 9)
    assert mask.any(axis=1).tolist() == [False] * 7 + [True] * 2
    assert batch["weight"].any(axis=1).tolist() == [False] * 7 + [True] * 2
    assert (batch["state"][:7, :, 0] < 4 * np.arange(1, 8)[:, None]).all()  # real, all the same


def test_scans_single_steps_and_jit_give_the_same() -> None:
    options: Any = {"capacity": 50, "collect": 2, "sample": "prioritized", "batch_size": 4}
    loader = replaying(numbered(40), **options)
    scanned, masks = batches_of(loader, 6)
    state, compiled = loader.init_state(KEY), jax.jit(loader.next_batch)
    for step, (batch, mask) in enumerate(loader.iterate(state, steps=6)):
        one, state, real = (loader.next_batch if step % 2 else compiled)(state)
        assert same((one, real), (batch, mask))
        assert same((one, real), jax.tree.map(lambda x, at=step: x[at], (scanned, masks)))


def test_seeds_are_mapped_over() -> None:
    loader = replaying(numbered(40, 2), 20, envs=2, sample="prioritized", batch_size=4)
    keys = jax.random.split(KEY, 3)

    def run(key: Any) -> Any:
        state, _, found = loader.scan_epoch(
            loader.init_state(key), None, _indices, steps=5, feedback=_by_number
        )
        return state, found

    together = jax.jit(jax.vmap(run))(keys)
    for number, key in enumerate(keys):
        assert same(jax.tree.map(lambda x, at=number: x[at], together), jax.jit(run)(key))


def _indices(carry: Any, batch: Any, mask: Any) -> Any:
    return carry, {"index": batch["index"], "priority": batch["state"][:, 0].astype(jnp.float32)}


def _by_number(state: Any, carry: Any, output: Any) -> Any:
    return cereal.rl.set_priorities(state, output["index"], output["priority"])


def test_elements_may_be_any_tree() -> None:
    tree = (jnp.arange(5.0), [jnp.arange(10).reshape(5, 2), {"a": jnp.arange(5) > 2}])
    replay = cereal.ReplayTransform(10, batch_size=3, prefill=5, sample="prioritized")
    loader = cereal.DataLoader([cereal.ArraySampleSource(tree, "sequential"), replay])
    batch, _, _ = loader.next_batch(loader.init_state(0))
    assert jax.tree.structure(batch["element"]) == jax.tree.structure(tree)
    assert batch["element"][1][0].shape == (3, 2)


def test_batches_of_an_indexed_pipeline_are_stored_element_by_element() -> None:
    replay = cereal.ReplayTransform(100, batch_size=50, prefill=50)
    batches = cereal.BatchTransform(4, pad_last_batch=True)
    loader = cereal.DataLoader([cereal.RangeSource(10), batches, replay])
    state, _, (found, mask) = loader.scan_epoch(
        loader.init_state(KEY), 0, lambda c, b, m: (c, (b, m)), steps=18
    )
    assert mask.any(axis=1).tolist() == [False] * 14 + [True] * 4  # 10 of three batches of 4
    assert cereal.rl.replay_report(state).written == 60
    counts = np.bincount(np.asarray(found)[mask], minlength=10)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_masked_elements_are_not_stored() -> None:
    even = cereal.FilterTransform(lambda x: x % 2 == 0)
    replay = cereal.ReplayTransform(100, batch_size=8, prefill=8, collect=4)
    loader = cereal.DataLoader([cereal.RangeSource(1000), even, replay])
    batch, mask = batches_of(loader, 20)
    assert mask[3:].all()
    assert not (batch[mask] % 2).any()


def test_a_rollout_says_how_many_environments_it_has() -> None:
    source = walk(num_envs=6, length=3)
    loader = cereal.DataLoader([source, cereal.ReplayTransform(24, batch_size=4, collect=2)])
    state = loader.init_state(KEY, ONE)
    batch, state, mask = loader.next_batch(state)
    assert (batch["state"].shape, mask.tolist()) == ((4,), [True] * 4)
    assert cereal.rl.replay_report(state)[:3] == (12, 24, 12)
    assert loader.get_policy_state(state)["stride"] == 1


def test_stages_may_follow() -> None:
    loader = replaying(numbered(40), 20, batch_size=4)
    more = cereal.DataLoader(
        [loader.source, cereal.MapTransform(lambda batch: batch["state"][:, 0])]
    )
    batch, _, mask = more.next_batch(more.init_state(KEY))
    assert batch.shape == mask.shape == (4,)


def test_a_queue_gives_each_item_once_and_in_order() -> None:
    loader = replaying(numbered(60), 20, sample="queue", collect=2, batch_size=3, prefill=7)
    batch, mask = batches_of(loader, 20)
    real = mask[:, 0]
    assert (mask == real[:, None]).all()
    assert batch["state"][real][..., 0].reshape(-1).tolist() == list(range(3 * real.sum()))
    assert real.sum() == 13  # 40 items came, and one waits
    assert real.tolist()[:3] == [False] * 3  # until seven items are there


def test_a_reservoir_of_a_stream_keeps_old_items() -> None:
    replay = cereal.ReplayTransform(64, batch_size=64, collect=16, write="reservoir")
    loader = cereal.DataLoader([cereal.RangeSource(10_000), replay])
    batch, _ = batches_of(loader, 200)
    age = 16 * 200 - batch[-1]
    assert stats.kstest(age / 3200, "uniform").pvalue > 1e-4


def test_the_order_and_the_randomness_are_pinned() -> None:
    """Changing these is a breaking change."""
    found = {}
    for name, options in {
        "uniform": {},
        "prioritized": {"sample": "prioritized"},
        "reservoir": {"write": "reservoir"},
    }.items():
        batch, _ = batches_of(replaying(numbered(40), 10, batch_size=4, collect=3, **options), 9)
        found[name] = batch["state"][-1, :, 0].tolist()
    assert found == {
        "uniform": [24, 22, 26, 18],
        "prioritized": [24, 22, 25, 21],
        "reservoir": [22, 13, 16, 8],
    }
