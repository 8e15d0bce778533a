"""CartPole's rules in NumPy, and small policies, for tests of rollouts."""

from __future__ import annotations

from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np

import cereal

ENV, ENV_PARAMS = gymnax.make("CartPole-v1")
ZEROS = {"params": jnp.zeros((4, 2))}


def policy_step(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
    del new_episode
    return jax.random.categorical(key, observation @ policy_state["params"]), policy_state


def cartpole(policy: Any = policy_step, template: Any = ZEROS, **options: Any) -> Any:
    """A source; `limit=` is the longest episode."""
    limit = options.pop("limit", 500)
    params = ENV_PARAMS.replace(max_steps_in_episode=limit)  # type: ignore[attr-defined]
    return cereal.GymnaxSource(ENV, params, policy, template, **options)


def loader_of(source: Any, size: int, *stages: Any, **options: Any) -> cereal.DataLoader[Any]:
    return cereal.DataLoader([source, cereal.BatchTransform(size, **options), *stages])


def begin(loader: Any, policy_state: Any = ZEROS, key: Any = 0) -> Any:
    return loader.set_policy_state(loader.init_state(key), policy_state)


def moved(state: np.ndarray, action: np.ndarray) -> np.ndarray:
    """One step of the cart, by the equations of its description."""
    x, v, angle, turn = np.moveaxis(np.asarray(state, np.float64), -1, 0)
    force = np.where(np.asarray(action) == 1, 10.0, -10.0)
    sin, cos = np.sin(angle), np.cos(angle)
    push = (force + 0.05 * turn**2 * sin) / 1.1
    turning = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    speeding = push - 0.05 * turning * cos / 1.1
    parts = x + 0.02 * v, v + 0.02 * speeding, angle + 0.02 * turn, turn + 0.02 * turning
    return np.stack(parts, axis=-1)


def fallen(state: np.ndarray) -> np.ndarray:
    state = np.asarray(state)
    return (abs(state[..., 0]) > 2.4) | (abs(state[..., 2]) > 12 * 2 * np.pi / 360)
