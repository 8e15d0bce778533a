"""A small environment of gymnasium that tells what was done to it, and loaders over it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

import cereal
from cereal.rl.gymnasium_source import GymnasiumSource

KEY = jax.random.key(3)


class Watched(gymnasium.Wrapper):
    """Writes down with which seeds it was reset, and whether it was closed."""

    def __init__(self, env: gymnasium.Env, seeds: list[int], closed: list[bool]) -> None:
        super().__init__(env)
        self.seeds, self.closed = seeds, closed

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.seeds.append(seed)
        return super().reset(seed=seed, options=options)

    def close(self) -> None:
        self.closed.append(True)
        super().close()


class Maker:
    """A function that makes environments, and knows what was done to them."""

    def __init__(self, make: Callable[[], gymnasium.Env]) -> None:
        self.make, self.seeds, self.closed = make, [], []

    def __call__(self) -> gymnasium.Env:
        return Watched(self.make(), self.seeds, self.closed)


class Counting(gymnasium.Env):
    """Shows how far it came since where it began, at random; the action is how far it goes."""

    def __init__(self, end: int = 4, limit: int = 100) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(4)
        self.end, self.limit = end, limit

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.start, self.way, self.steps = int(self.np_random.integers(1000)), 0, 0
        return self._seen(), {"at": "the beginning"}

    def step(self, action: Any) -> Any:
        self.way, self.steps = self.way + int(action), self.steps + 1
        ended, over = self.way >= self.end, self.steps >= self.limit
        return self._seen(), float(action), ended, over, {"any": object()}

    def _seen(self) -> np.ndarray:
        return np.array([self.start, self.way], np.float32)


def stride(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
    """Strides as long as the place of the beginning says."""
    return 1 + observation[0].astype(jnp.int32) % 3, policy_state


def loader_of(source: GymnasiumSource, size: int = 8, *stages: Any) -> cereal.DataLoader[Any]:
    return cereal.DataLoader([source, cereal.BatchTransform(size), *stages])


def first_batch(loader: cereal.DataLoader[Any], policy_state: Any = None, key: Any = KEY) -> Any:
    state = loader.init_state(key)
    if policy_state is not None:
        state = loader.set_policy_state(state, policy_state)
    return loader.next_batch(state)[0]
