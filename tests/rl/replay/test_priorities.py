"""Priorities: drawn in proportion, changed by feedback, refused if they are none."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from tests.rl.replay.streams import KEY, numbered, replaying, same
from tests.slowly import slowly

import cereal
from cereal.rl import replay_report, set_priorities
from cereal.rl.replay import drawing
from cereal.rl.replay.storage.sum_tree import priority_of

PRIORITIZED: Any = {"sample": "prioritized", "alpha": 1.0}


def filled(items: int, **options: Any) -> tuple[Any, Any]:
    """A loader whose buffer holds steps 0 to items - 1, and a batch with the state after it."""
    options = {"capacity": items, "collect": items, "batch_size": items, **PRIORITIZED, **options}
    loader = replaying(numbered(10 * items), **options)
    return loader, loader.next_batch(loader.init_state(KEY))


def test_items_are_drawn_in_proportion_and_weighted_against_it() -> None:
    loader = cereal.DataLoader(
        [
            cereal.RangeSource(20),
            cereal.ReplayTransform(batch_size=20, collect=0, beta=0.5, **PRIORITIZED),
        ]
    )
    index = jnp.arange(20, dtype=jnp.uint32)
    state = set_priorities(loader.init_state(KEY), index, 1 + jnp.arange(20.0))

    def collect(carry: Any, batch: Any, mask: Any) -> Any:
        return carry, batch

    _, _, found = jax.tree.map(np.asarray, loader.scan_epoch(state, 0, collect, steps=1000))
    counts = np.bincount(found["element"].reshape(-1), minlength=20)
    wanted = np.arange(1, 21) / 210
    assert stats.chisquare(counts, wanted * counts.sum()).pvalue > 1e-4
    chance = wanted[found["element"]]
    np.testing.assert_allclose(found["probability"], chance, rtol=1e-5)
    np.testing.assert_allclose(
        found["weight"], np.sqrt(chance.min(axis=1, keepdims=True) / chance), rtol=1e-5
    )


def test_new_items_get_the_largest_priority_so_far() -> None:
    loader, (batch, state, _) = filled(8, capacity=16)
    state = set_priorities(state, batch["index"], jnp.full(8, 5.0))
    _, state, _ = loader.next_batch(state)
    leaves = priority_of(state.nodes, jnp.arange(16, dtype=jnp.int32))
    assert leaves[8:].tolist() == [5.0] * 8


def test_alpha_and_beta_shape_priorities_and_weights() -> None:
    loader, (batch, state, _) = filled(8, alpha=0.5, beta=lambda batches: batches / 2.0)
    state = set_priorities(state, batch["index"], jnp.full(8, 4.0))
    touched = jnp.unique(batch["index"]).astype(jnp.int32)
    assert (priority_of(state.nodes, touched) == 2.0).all()
    weights = []
    for _ in range(3):  # nothing changes but the number of batches: 1, 2, 3
        kept = state
        batch, state, _ = loader.next_batch(state)
        chance = batch["probability"]
        weights.append(batch["weight"])
        beta = int(kept.batches[1]) / 2
        np.testing.assert_allclose(batch["weight"], (chance.min() / chance) ** beta, rtol=1e-5)


def test_a_schedule_of_beta_gets_no_negative_number_after_two_thousand_million_batches() -> None:
    replay = cereal.ReplayTransform(8, batch_size=4, beta=lambda n: n / 2.0**31, **PRIORITIZED)
    counts = np.asarray([[0, 7], [0, 2**31 + 7], [1, 7]], np.uint32)
    found = [float(replay.weight_exponent(jnp.asarray(count))) for count in counts]
    assert found == [7 / 2**31, 1.0, 1.0]


def test_an_item_named_twice_gets_the_larger_priority() -> None:
    _, (_, state, _) = filled(8)
    index = jnp.asarray([3, 3, 3], jnp.uint32)
    for priority in ([1.0, 9.0, 2.0], [7.0, 0.5, 0.25]):
        state = set_priorities(state, index, jnp.asarray(priority))
        assert priority_of(state.nodes, jnp.asarray([3]))[0] == max(priority)


def test_priorities_of_overwritten_items_are_ignored_and_counted() -> None:
    loader, (batch, state, _) = filled(8, capacity=12)
    _, state, _ = loader.next_batch(state)  # items 4 to 15 are there now
    late = set_priorities(state, batch["index"], jnp.full(8, 100.0))
    gone = int((np.asarray(batch["index"]) < 4).sum())
    assert gone > 0
    assert replay_report(late).overwritten == gone
    stayed = {int(number) % 12 for number in batch["index"] if number >= 4}
    leaves = priority_of(late.nodes, jnp.arange(12, dtype=jnp.int32))
    assert {slot for slot in range(12) if leaves[slot] == 100} == stayed
    unknown = set_priorities(state, jnp.asarray([16, 3 * 2**30], jnp.uint32), jnp.ones(2))
    assert same(unknown.nodes, state.nodes)
    assert replay_report(unknown).overwritten == 2  # numbers that no item has had


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), -float("inf"), 1e30])
def test_bad_priorities_change_nothing_and_are_counted(bad: float) -> None:
    _, (_, state, _) = filled(8)
    index, priority = jnp.asarray([1, 2], jnp.uint32), jnp.asarray([bad, 3.0])
    made = jax.jit(set_priorities)(state, index, priority)
    assert priority_of(made.nodes, jnp.asarray([1, 2])).tolist() == [1.0, 3.0]
    assert replay_report(made).refused == 1
    assert float(made.largest) == 3.0
    assert np.isfinite(np.asarray(made.nodes)).all()
    if bad != 1e30:  # finite, but too large for sums of many
        with pytest.raises(cereal.UsageError, match=r"priority 0 is .*finite and not negative"):
            set_priorities(state, index, priority)


def test_an_epoch_after_bad_priorities_warns() -> None:
    loader, (_, state, _) = filled(8)
    bad = jax.jit(set_priorities)(state, jnp.asarray([1], jnp.uint32), jnp.asarray([jnp.nan]))
    for use in (
        lambda: loader.iterate(bad, steps=1),
        lambda: loader.scan_epoch(bad, 0, lambda c, b, m: (c, None), steps=1),
    ):
        with pytest.warns(UserWarning, match="1 priority was negative, NaN, infinite"):
            use()


def test_priority_zero_is_never_drawn_and_all_zero_masks_the_batch() -> None:
    loader = cereal.DataLoader(
        [cereal.RangeSource(8), cereal.ReplayTransform(8, 8, collect=0, **PRIORITIZED)]
    )
    index = jnp.arange(8, dtype=jnp.uint32)
    state = loader.init_state(KEY)
    state = set_priorities(state, index, jnp.where(index == 5, 1.0, 0.0))
    batch, state, mask = loader.next_batch(state)
    assert (batch["element"].tolist(), mask.all()) == ([5] * 8, True)
    state = set_priorities(state, index, jnp.zeros(8))
    batch, state, mask = loader.next_batch(state)
    assert not mask.any()
    assert not batch["weight"].any()


@pytest.mark.parametrize(("tiny", "wide"), [(1e-40, False), (1e-60, True)])
def test_a_tiny_priority_is_not_zero(tiny: float, wide: bool) -> None:
    replay = cereal.ReplayTransform(batch_size=4, collect=0, sample="prioritized")
    loader = cereal.DataLoader([{"x": np.arange(4)}, replay])
    with jax.enable_x64(wide):
        index = jnp.arange(4, dtype=jnp.uint32)
        given = jnp.full(4, tiny, jnp.float64 if wide else jnp.float32)
        _, _, mask = loader.next_batch(set_priorities(loader.init_state(KEY), index, given))
    assert mask.all()


def test_feedback_steers_what_is_drawn() -> None:
    """Four of 64 items have large errors: soon, they are most of what is drawn."""
    replay = cereal.ReplayTransform(64, 32, collect=0, **PRIORITIZED)
    loader = cereal.DataLoader([cereal.RangeSource(64), replay])

    def update(carry: Any, batch: Any, mask: Any) -> Any:
        error = jnp.where(batch["element"] < 4, 10.0, 0.01)
        return carry, {"index": batch["index"], "error": error, "large": batch["element"] < 4}

    def feedback(state: Any, carry: Any, output: Any) -> Any:
        return set_priorities(state, output["index"], output["error"])

    state = loader.init_state(KEY)
    _, _, found = loader.scan_epoch(state, 0, update, steps=30, feedback=feedback)
    assert found["large"][0].mean() < 0.3
    assert found["large"][-5:].mean() > 0.9


def test_iterating_feeds_back_as_a_scan_does() -> None:
    loader = replaying(numbered(64), 32, collect=4, batch_size=8, **PRIORITIZED)

    def errors(batch: Any) -> Any:
        return jnp.abs(batch["reward"]) + 0.1

    def body(carry: Any, batch: Any, mask: Any) -> Any:
        return carry, (batch["index"], errors(batch))

    def feedback(state: Any, carry: Any, output: Any) -> Any:
        return set_priorities(state, *output)

    _, _, (scanned, _) = loader.scan_epoch(
        loader.init_state(KEY), 0, body, steps=12, feedback=feedback
    )
    batches = loader.iterate(loader.init_state(KEY), steps=12)
    for step, (batch, _) in enumerate(batches):
        np.testing.assert_array_equal(batch["index"], scanned[step])
        batches.feed_back(set_priorities, batch["index"], errors(batch))


def test_wrong_arguments_are_refused() -> None:
    _, (batch, state, _) = filled(8)
    with pytest.raises(cereal.UsageError, match="one priority for each index"):
        set_priorities(state, batch["index"], jnp.ones(3))
    with pytest.raises(cereal.UsageError, match=r"write `set_priorities\(state, batch"):
        set_priorities(state, jnp.arange(8), jnp.ones(8))
    with pytest.raises(cereal.UsageError, match="priorities are floats"):
        set_priorities(state, batch["index"], jnp.ones(8, jnp.int32))
    plain = replaying(numbered(8), 8)
    with pytest.raises(cereal.UsageError, match='sample="prioritized"'):
        set_priorities(plain.init_state(0), batch["index"], jnp.ones(8))
    with pytest.raises(cereal.UsageError, match="no buffer"):
        replay_report(cereal.DataLoader(cereal.RangeSource(3)).init_state(0))


@pytest.mark.parametrize("options", [{"n_step": 3}, {"sequence": 3, "period": 2}])
def test_masked_batches_give_no_priority_to_items_that_are_not_whole(options: Any) -> None:
    """Neither before the first item is whole, nor when the priorities of all items are 0."""
    loader = replaying(numbered(40), 6, batch_size=2, **PRIORITIZED, **options)
    state = loader.init_state(KEY)
    every = jnp.arange(6, dtype=jnp.uint32)
    for _ in range(6):
        batch, state, mask = loader.next_batch(state)
        if not mask.any():
            state = set_priorities(state, batch["index"], jnp.ones(2))
    assert replay_report(state).overwritten == 0
    expected = [1.0] * 4 if "n_step" in options else [1.0, 0.0, 1.0, 0.0]
    assert priority_of(state.nodes, every.astype(jnp.int32)).tolist() == [*expected, 0.0, 0.0]
    for priority in (0.0, 2.0):
        state = set_priorities(state, every, jnp.full(6, priority))
        leaves = priority_of(state.nodes, every.astype(jnp.int32))
        assert leaves.tolist() == [*(each * priority for each in expected), 0.0, 0.0]


def test_priorities_of_a_batch_that_is_not_real_change_nothing() -> None:
    loader = replaying(
        numbered(40), 30, sample="prioritized", batch_size=4, prefill=12, collect=2, n_step=2
    )
    state, before = loader.init_state(KEY), []
    for _ in range(5):
        batch, state, mask = loader.next_batch(state)
        assert not mask.any()
        before.append(batch["index"])
        after = set_priorities(state, batch["index"], jnp.zeros(4))
        after = set_priorities(after, before[0], jnp.full(4, 9.0))
        assert same(after, state)
    batch, state, mask = loader.next_batch(state)
    assert mask.all()
    assert not same(set_priorities(state, batch["index"], jnp.zeros(4)).nodes, state.nodes)


def test_bad_priorities_of_a_batch_that_is_not_real_are_no_fault() -> None:
    """Before `prefill`, a loss over nothing may well be NaN."""
    loader = replaying(numbered(40), 20, batch_size=4, prefill=16, collect=2, **PRIORITIZED)
    batch, state, mask = loader.next_batch(loader.init_state(KEY))
    assert not mask.any()
    made = jax.jit(set_priorities)(state, batch["index"], jnp.full(4, jnp.nan))
    assert (replay_report(made).refused, replay_report(made).overwritten) == (0, 0)


def test_infinite_priorities_are_refused_for_every_alpha() -> None:
    _, (batch, state, _) = filled(8, alpha=0.0)
    state = jax.jit(set_priorities)(state, batch["index"], jnp.full(8, jnp.inf))
    assert replay_report(state).refused == 8


def test_weights_of_priorities_that_are_far_apart_do_not_vanish() -> None:
    loader, (_, state, _) = filled(2, batch_size=2, beta=0.01, capacity=4, collect=2)
    drawn = drawing.Drawn(jnp.arange(2), jnp.bool_(True), jnp.asarray([1e-20, 1e19]), jnp.ones(2))
    weight = loader.source._weighted(state, drawn, jnp.bool_(True))["weight"]
    np.testing.assert_allclose(weight, [1.0, 1e-39**0.01], rtol=1e-5)


@pytest.mark.parametrize("over", ["replay", "buffer"])
def test_of_items_that_were_drawn_from_a_mixture_nobody_knows_the_part(over: str) -> None:
    names = {"index": np.uint32, "weight": np.float32, "probability": np.float32}
    demos = {name: np.arange(40).astype(dtype) for name, dtype in names.items()}
    demos["element"] = np.arange(40, dtype=np.int32)
    online = [cereal.RangeSource(100), cereal.ReplayTransform(20, 4, collect=2, **PRIORITIZED)]
    mixed = cereal.rl.MixedBatchesSource([online, [demos, cereal.BatchTransform(4)]])
    stages = [cereal.ReplayTransform(64, batch_size=8)]
    if over == "buffer":
        buffer = cereal.BufferTransform(64, prefill=8, mode="shuffled")
        stages = [cereal.UnbatchTransform(), buffer, cereal.BatchTransform(8)]
    loader = cereal.DataLoader([mixed, *stages])
    batch, state, _ = loader.next_batch(loader.init_state(KEY))
    with pytest.raises(cereal.UsageError, match="their places do not say which part they are of"):
        set_priorities(state, batch["index"], jnp.ones(8))


def test_it_is_a_feedback_itself() -> None:
    loader, (_, state, _) = filled(8)

    def body(carry: Any, batch: Any, mask: Any) -> Any:
        return carry, {"index": batch["index"], "priority": 1.0 + batch["reward"] ** 2}

    def by_hand(state: Any, carry: Any, output: Any) -> Any:
        return set_priorities(state, output["index"], output["priority"])

    one, other = (
        loader.scan_epoch(state, {"w": 0.0}, body, steps=3, feedback=feedback)[0]
        for feedback in (set_priorities, by_hand)
    )
    assert same(one, other)
    assert len(set(np.asarray(one.nodes)[0, :8].tolist())) > 1
    with pytest.raises(cereal.UsageError, match=r"output has no 'priority', it has \['index'\]"):
        set_priorities(state, None, {"index": jnp.zeros(8, jnp.uint32)})


@pytest.mark.parametrize("beta", [0.4, 0.7, slowly(0.5), slowly(1.0)])
@pytest.mark.parametrize("equal", [True, False])
def test_the_largest_weight_of_a_batch_is_one(beta: float, equal: bool) -> None:
    loader, (batch, state, _) = filled(64, beta=beta, alpha=0.6)
    priority = jnp.full(64, 0.3) if equal else 0.1 + batch["reward"] ** 2
    state = set_priorities(state, batch["index"], priority)
    outputs = loader.scan_epoch(state, 0, lambda carry, batch, mask: (carry, batch), steps=9)[2]
    assert set(np.asarray(outputs["weight"]).max(axis=1).tolist()) == {1.0}


def test_weights_are_numbers_for_every_beta() -> None:
    loader, (batch, state, _) = filled(8, beta=lambda number: 2.0)
    state = set_priorities(state, batch["index"], 1e-20 * (1.0 + jnp.arange(8.0)))
    weight = np.asarray(loader.next_batch(state)[0]["weight"])
    assert ((weight >= 0) & (weight <= 1)).all()
