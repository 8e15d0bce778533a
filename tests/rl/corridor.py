"""A walk of a few steps to the right, which is quick to compile and known beforehand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import cereal


@cereal.pytree_dataclass
class Corridor:
    """Ends at `length`; every step costs one. The observation is where one stands."""

    length: int = cereal.static_field(default=3)

    def reset(self, key: Any) -> tuple[Any, Any]:
        del key
        return jnp.float32(0), jnp.int32(0)

    def step(self, key: Any, state: Any, action: Any) -> cereal.rl.Step:
        del key
        state = state + action
        return cereal.rl.Step(state.astype(jnp.float32), state, -1.0, state >= self.length)

    def action_spec(self) -> Any:
        return jax.ShapeDtypeStruct((), jnp.int32)


def stride(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
    """Goes as far as its parameter says."""
    del observation, new_episode, key
    return policy_state["stride"], policy_state


ONE = {"stride": jnp.int32(1)}


def walk(policy: Any = stride, template: Any = ONE, **options: Any) -> Any:
    env = Corridor(options.pop("length", 3))
    return cereal.rl.RolloutSource(env, policy, template, **options)
