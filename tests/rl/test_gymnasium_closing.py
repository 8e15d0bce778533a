"""What GymnasiumSource closes, what it does not, and what it leaves behind."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tests.functions.programs import gone
from tests.rl.counting import KEY, Counting, Maker, first_batch, loader_of, stride

import cereal
from cereal.rl.gymnasium_source import GymnasiumSource


def test_environments_that_were_made_are_closed_with_the_loader() -> None:
    maker = Maker(Counting)
    loader = loader_of(GymnasiumSource(maker, stride, None, num_envs=3))
    assert not maker.closed
    first = first_batch(loader)
    loader.close()
    loader.close()
    assert len(maker.closed) == 3
    again = first_batch(loader)  # made again
    jax.tree.map(np.testing.assert_array_equal, first, again)
    loader.close()
    assert len(maker.closed) == 6


def test_environments_that_were_given_stay_open() -> None:
    maker = Maker(Counting)
    envs = SyncVectorEnv([maker] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    with loader_of(GymnasiumSource(envs, stride, None)) as loader:
        first_batch(loader)
    del loader
    gc.collect()
    assert not maker.closed
    assert envs.step(np.zeros(2, np.int64))[0].shape == (2, 2)


def test_a_source_that_is_gone_leaves_nothing_behind() -> None:
    maker = Maker(Counting)
    data = np.zeros(1000)

    def make() -> gymnasium.Env:
        env = maker()
        env.data = data  # type: ignore[attr-defined]
        kept.append(weakref.ref(env))
        return env

    kept: list[Any] = []
    loader = loader_of(GymnasiumSource(make, stride, None, 16, num_envs=2))
    list(loader.iterate(loader.init_state(KEY)))
    state = loader.init_state(KEY)
    loader.scan_epoch(state, None, lambda carry, batch, mask: (carry, None))
    del loader, state
    assert all(gone(ref) for ref in kept)
    assert len(maker.closed) == 2


def test_environments_of_a_source_that_cannot_be_built_are_closed() -> None:
    maker = Maker(Counting)

    def wrong(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
        return observation[0], policy_state

    message = r"returns the action float32\[\], but .* int32"
    with pytest.raises(cereal.PipelineError, match=message) as caught:
        GymnasiumSource(maker, wrong, None, num_envs=2)
    assert len(maker.closed) == 2  # at once: the error still holds on to them
    assert caught.value.__traceback__ is not None
