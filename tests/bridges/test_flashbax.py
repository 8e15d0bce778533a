"""flashbax as an oracle: the same ring, the same sequences, probabilities and queue.

Its sums of priorities drift, so there it is no oracle: the last tests show that they notice.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.rl.played import played

import cereal
from cereal.rl.replay.state import find_buffers
from cereal.rl.replay.storage import sum_tree

# flashbax warns of sequences that do not overlap, and of lengths that it changes.
pytestmark = [pytest.mark.bridges, pytest.mark.filterwarnings("ignore::UserWarning:flashbax")]
with warnings.catch_warnings(action="ignore"):
    fbx = importlib.import_module("flashbax")

SEEDS = jax.random.split(jax.random.key(0), 200)


def steps_of(n: int, envs: int = 1) -> np.ndarray:
    """Steps [n, envs] that say who they are: 100 * t + environment."""
    return (100 * np.arange(n)[:, None] + np.arange(envs)).astype(np.int32)


def loader_over(steps: np.ndarray, capacity: int, **options: Any) -> Any:
    envs = steps.shape[1]
    data = {"state": steps if envs > 1 else steps[:, 0]}
    replay = cereal.ReplayTransform(
        capacity, batch_size=8, num_envs=envs, episode_end=None, **options
    )
    return cereal.DataLoader([played(data), replay])


def run(loader: Any, batches: int, key: Any) -> tuple[Any, Any, Any]:
    """The last of so many batches, its mask, and the state after it."""

    def body(state: Any, _: None) -> tuple[Any, Any]:
        batch, state, mask = loader.next_batch(state)
        return state, (batch, mask)

    state, made = lax.scan(body, loader.init_state(key), length=batches)
    batch, mask = jax.tree.map(lambda x: x[-1], made)
    return batch, mask, state


def drawn_by_ours(loader: Any, batches: int) -> tuple[set[tuple[int, ...]], bool]:
    """What batch number `batches` has for 200 keys, and whether it is real."""
    batch, mask, _ = jax.jit(jax.vmap(lambda key: run(loader, batches, key)))(SEEDS)
    return rows(batch["state"]), bool(mask.all())


def drawn_by_theirs(buffer: Any, state: Any) -> set[tuple[int, ...]]:
    return rows(jax.jit(jax.vmap(buffer.sample, (None, 0)))(state, SEEDS).experience["state"])


def rows(states: Any) -> set[tuple[int, ...]]:
    """Items, or sequences of them, of batches [keys, batch, ...]."""
    states = np.asarray(states)
    return set(map(tuple, states.reshape(states.shape[0] * states.shape[1], -1).tolist()))


def filled(buffer: Any, steps: np.ndarray, collect: int, batches: int) -> Any:
    """flashbax's state after as many steps as ours has collected: [environments, time]."""
    state = buffer.init({"state": jnp.int32(0)})
    for begin in range(0, batches * collect, collect):
        part = np.take(steps, np.arange(begin, begin + collect), axis=0, mode="wrap")
        state = buffer.add(state, {"state": jnp.asarray(part.T)})
    return state


@pytest.mark.parametrize(
    ("capacity", "collect", "batches"), [(13, 4, 2), (13, 4, 3), (13, 4, 7), (16, 8, 5), (9, 9, 2)]
)
def test_the_same_ring(capacity: int, collect: int, batches: int) -> None:
    steps = steps_of(40)
    buffer = fbx.make_item_buffer(capacity, 8, 8, add_sequences=True, add_batches=True)
    theirs = filled(buffer, steps, collect, batches)
    loader = loader_over(steps, capacity, collect=collect)
    state = jax.jit(lambda: run(loader, batches, jax.random.key(1)))()[2]
    ring = find_buffers(state)[0].ring
    stored = theirs.experience["state"][0]
    count = int(ring.count)
    assert count == (capacity if theirs.is_full else int(theirs.current_index))
    assert int(ring.head) == int(theirs.current_index)
    np.testing.assert_array_equal(ring.data["state"][:count], stored[:count])  # slot by slot
    drawn, real = drawn_by_ours(loader, batches)
    assert real
    assert buffer.can_sample(theirs)
    assert (
        drawn == drawn_by_theirs(buffer, theirs) == set(map(tuple, stored[:count, None].tolist()))
    )


@pytest.mark.parametrize("sample", ["uniform", "prioritized"])
@pytest.mark.parametrize(
    ("length", "period", "batches"),
    [(4, 3, 2), (4, 3, 4), (4, 3, 6), (4, 3, 7), (4, 3, 13), (2, 4, 9), (5, 1, 8), (1, 1, 7)],
)
def test_the_same_sequences(sample: Any, length: int, period: int, batches: int) -> None:
    """Two environments, a ring of 12 steps, 2 more for each batch: across the write head, too."""
    steps = steps_of(40, 2)
    buffer = fbx.make_prioritised_trajectory_buffer(
        add_batch_size=2,
        sample_batch_size=8,
        sample_sequence_length=length,
        period=period,
        min_length_time_axis=length,
        max_length_time_axis=12,
    )
    loader = loader_over(steps, 24, collect=2, sequence=length, period=period, sample=sample)
    drawn, real = drawn_by_ours(loader, batches)
    assert real
    assert drawn == drawn_by_theirs(buffer, filled(buffer, steps, 2, batches))


def by_slot(slots: Any, values: Any) -> dict[int, Any]:
    return dict(zip(np.ravel(slots).tolist(), np.ravel(values).tolist(), strict=True))


@pytest.mark.parametrize("alpha", [1.0, 0.6])
@pytest.mark.parametrize("before", [2, 3, 5])
def test_the_same_probabilities(before: int, alpha: float) -> None:
    """Of 16 items: 8 more for each batch, then 12 new priorities, then 8 more items."""
    steps, chosen = steps_of(100), np.arange(2, 14)
    priority = np.array([3, 1, 0, 8, 2, 5, 0, 1, 4, 16, 2, 7], np.float32)
    buffer = fbx.make_prioritised_item_buffer(
        16, 8, 8, add_sequences=True, add_batches=True, priority_exponent=alpha
    )
    theirs = filled(buffer, steps, 8, before)
    theirs = buffer.set_priorities(theirs, jnp.asarray(chosen), jnp.asarray(priority))
    # Ours says by a number which item is meant: the newest one in each slot.
    newest = 8 * before - 1
    numbers = (newest - (newest - chosen) % 16).astype(np.uint32)
    loader = loader_over(steps, 16, collect=8, sample="prioritized", alpha=alpha)

    def ours(key: Any) -> Any:
        state = run(loader, before, key)[2]
        state = cereal.rl.set_priorities(state, jnp.asarray(numbers), jnp.asarray(priority))
        old = find_buffers(state)[0]
        n = old.layout.capacity
        return sum_tree.priority_of(old.nodes, jnp.arange(n)), loader.next_batch(state)[0]

    tree, batch = jax.jit(jax.vmap(ours))(SEEDS)
    stored = theirs.sum_tree_state.nodes[-16:]
    np.testing.assert_allclose(tree[0], stored, rtol=0 if alpha == 1 else 1e-6)
    if alpha < 1:
        return  # flashbax 0.1.3 cuts the priority of new items down to a whole number
    more = np.take(steps, np.arange(8 * before, 8 * before + 8), axis=0, mode="wrap")
    theirs = buffer.add(theirs, {"state": jnp.asarray(more.T)})
    sample = jax.jit(jax.vmap(buffer.sample, (None, 0)))(theirs, SEEDS)
    slots = np.asarray(batch["index"]) % 16
    shares = by_slot(slots, batch["probability"])
    assert shares == pytest.approx(by_slot(sample.indices, sample.probabilities), rel=1e-6)
    assert by_slot(slots, batch["state"]) == by_slot(sample.indices, sample.experience["state"])


@pytest.mark.parametrize("collect", [3, 8])
def test_the_same_queue(collect: int) -> None:
    steps = steps_of(100)
    queue = fbx.make_trajectory_queue(
        max_length_time_axis=24,
        add_batch_size=1,
        add_sequence_length=collect,
        sample_sequence_length=8,
    )
    theirs = queue.init({"state": jnp.int32(0)})
    loader = loader_over(steps, 24, collect=collect, sample="queue")
    real, batches = [], loader.iterate(loader.init_state(jax.random.key(0)), steps=12)
    for number, (batch, mask) in enumerate(batches):
        part = steps[number * collect : (number + 1) * collect]
        assert queue.can_add(theirs)
        theirs = queue.add(theirs, {"state": jnp.asarray(part.T)})
        assert bool(mask.all()) == bool(mask.any()) == bool(queue.can_sample(theirs))
        if mask.all():
            theirs, sample = queue.sample(theirs)
            np.testing.assert_array_equal(batch["state"], sample.experience["state"][0])
            real.append(np.asarray(batch["state"]))
    np.testing.assert_array_equal(np.concatenate(real), steps[: 8 * len(real), 0])


# Where flashbax is no oracle


def all_set(n: int) -> tuple[Any, Any, Any]:
    """Trees of n items whose priority is 1: ours, and flashbax's with its buffer."""
    ours = sum_tree.set_run(
        sum_tree.empty_tree(n), n, jnp.int32(0), jnp.ones(n), jnp.ones(n, jnp.bool_)
    )
    buffer = fbx.make_prioritised_item_buffer(n, 8, 16, add_sequences=True, priority_exponent=1.0)
    theirs = buffer.add(buffer.init({"x": jnp.int32(0)}), {"x": jnp.arange(n, dtype=jnp.int32)})
    return ours, theirs, buffer


def both_set(trees: tuple[Any, Any, Any], items: Any, priority: Any) -> tuple[Any, Any, Any]:
    ours, theirs, buffer = trees
    items, priority = jnp.asarray(items, jnp.int32), jnp.asarray(priority, jnp.float32)
    n = theirs.experience["x"].shape[1]
    real = jnp.ones(items.shape, jnp.bool_)
    ours = sum_tree.set_priority(ours, n, items, priority, real)
    return ours, buffer.set_priorities(theirs, items, priority), buffer


def both_drawn(trees: tuple[Any, Any, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Items that both draw: 3,200 each."""
    ours, theirs, buffer = trees
    n = theirs.experience["x"].shape[1]
    levels = len(sum_tree.rows_of_levels(n))
    words = jax.random.bits(jax.random.key(3), (levels, 3_200), jnp.uint32)
    sample = jax.jit(jax.vmap(buffer.sample, (None, 0)))(theirs, SEEDS)
    return np.asarray(sum_tree.draw(ours, n, words)), np.asarray(sample.indices).ravel()


def test_one_priority_that_was_large_once_changes_nothing() -> None:
    trees = all_set(16)
    for priority in (1e10, 1.0):
        trees = both_set(trees, [0], [priority])
    assert float(sum_tree.total(trees[0])) == 16
    ours, theirs = both_drawn(trees)
    assert set(ours.tolist()) == set(range(16))
    # flashbax adds differences: its sum is 0 now, and it draws item 8 every time.
    assert float(trees[1].sum_tree_state.nodes[0]) != 16
    assert set(theirs.tolist()) != set(range(16))


def after_many(n: int, updates: int) -> tuple[Any, Any, Any]:
    """Trees after so many batches of 256 priorities, from 0.001 to 1,000."""
    ours, theirs, buffer = all_set(n)

    def body(trees: Any, key: Any) -> tuple[Any, None]:
        where, what = jax.random.split(key)
        items = jax.random.permutation(where, n)[:256]
        priority = 10.0 ** jax.random.uniform(what, (256,), minval=-3.0, maxval=3.0)
        return both_set((*trees, buffer), items, priority)[:2], None

    keys = jax.random.split(jax.random.key(4), updates)
    made = jax.jit(lambda trees: lax.scan(body, trees, keys)[0])((ours, theirs))
    return (*made, buffer)


def test_after_many_updates_only_the_item_with_a_priority_is_drawn() -> None:
    n = 1024
    trees = after_many(n, 1_000)
    trees = both_set(trees, np.arange(n), np.where(np.arange(n) == 300, 1e-3, 0.0))
    ours, theirs = both_drawn(trees)
    assert set(ours.tolist()) == {300}
    assert float(sum_tree.total(trees[0])) == np.float32(1e-3)
    # flashbax: what is left of all those differences is more than the priority.
    nodes = np.asarray(trees[1].sum_tree_state.nodes)
    assert abs(nodes[0] - 1e-3) > 1e-3
    assert (nodes < 0).any()
    assert set(theirs.tolist()) != {300}
