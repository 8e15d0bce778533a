"""What a buffer holds can be read, and stored in another buffer."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from tests.rl.replay.streams import KEY, numbered, replaying, same

import cereal
from cereal.rl import MixedBatchesSource, fill_replay, read_replay


def after(loader: Any, steps: int) -> Any:
    """The state after so many steps."""
    body = lambda carry, batch, mask: (carry, None)  # noqa: E731
    return loader.scan_epoch(loader.init_state(KEY), None, body, steps=steps)[0]


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("steps", [5, 11])  # before, and after, the first items are overwritten
def test_steps_come_in_order(envs: int, steps: int) -> None:
    played = numbered(40, envs, ends=[3, 8])
    capacity = 8 * envs + envs // 2  # the oldest step is partly there
    read = read_replay(after(replaying(played, capacity, envs=envs, batch_size=2), steps))
    first = max(0, steps - 8)
    assert same(read, jax.tree.map(lambda x: x[first:steps], played))
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(read))
    assert read["done"].shape == ((min(steps, 8), envs) if envs > 1 else (min(steps, 8),))


def test_what_was_read_fills_another_buffer() -> None:
    loader = replaying(numbered(40, 2), 20, envs=2)
    read = read_replay(after(loader, 13))
    filled = fill_replay(loader.init_state(KEY), read)
    assert same(read_replay(filled), read)


def test_an_empty_buffer_and_a_reservoir() -> None:
    loader = replaying(numbered(40), 6, write="reservoir", batch_size=2)
    assert read_replay(loader.init_state(KEY))["state"].shape == (0, 2)
    read = read_replay(after(loader, 30))
    times = read["state"][:, 0].tolist()
    assert len(set(times)) == 6
    assert set(times) <= set(range(30))


def test_what_it_refuses() -> None:
    loader = replaying(numbered(40), 6, batch_size=2)
    with pytest.raises(cereal.UsageError, match="outside of `jit`"):
        jax.jit(read_replay)(loader.init_state(KEY))
    states = jax.vmap(loader.init_state)(jax.random.split(KEY, 3))
    with pytest.raises(cereal.UsageError, match="an axis of 3 in front"):
        read_replay(states)
    assert len(read_replay(jax.tree.map(lambda x: x[1], states))["reward"]) == 0
    parts: list[Any] = [[cereal.RangeSource(9), cereal.ReplayTransform(9, batch_size=2)]] * 2
    two = cereal.DataLoader([MixedBatchesSource(parts)])
    for state, number in ((two.init_state(KEY), 2), (None, 0)):
        with pytest.raises(cereal.UsageError, match=f"has {number} buffers"):
            read_replay(state)
