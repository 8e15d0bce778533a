"""Recorded episodes in a buffer: sampled by priority, without an environment."""

from __future__ import annotations

import jax
import numpy as np
from tests.rl.recorded import recorded

from cereal import DataLoader
from cereal.rl import EpisodeSource, ReplayTransform, fill_replay, replay_report

EPISODES = recorded((3, 1, 5, 4))
ALL = 13


def test_a_dataset_is_sampled_by_priority_with_its_own_n_step_returns() -> None:
    source = EpisodeSource(EPISODES, n_step=3, gamma=0.9)
    drawn = ReplayTransform(batch_size=8, collect=0, sample="prioritized")
    loader = DataLoader([source, drawn])
    state = loader.init_state(0)
    assert replay_report(state).items == ALL
    batch, state, mask = loader.next_batch(state)
    assert np.asarray(mask).all()
    take = jax.jit(lambda source, indices: source.take(indices))
    wanted = jax.device_get(take(source, np.arange(ALL)))
    number = {int(name): at for at, name in enumerate(wanted["state"]["id"])}
    at = [number[int(name)] for name in batch["state"]["id"]]
    np.testing.assert_allclose(batch["n_step_return"], wanted["n_step_return"][np.array(at)])
    assert batch["weight"].shape == batch["index"].shape == (8,)


def test_a_buffer_is_filled_from_a_dataset() -> None:
    source = EpisodeSource(EPISODES)
    loader = DataLoader([source, ReplayTransform(20, batch_size=4)])
    state = fill_replay(loader.init_state(0), source.take(np.arange(ALL)))
    assert replay_report(state).items == ALL
