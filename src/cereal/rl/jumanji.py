"""Environments of Jumanji's shape: those of DeepMind's `dm_env` as pure functions.

reset(key)           -> state, TimeStep
step(state, action)  -> state, TimeStep(step_type, reward, discount, observation, extras)
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..core.errors import PipelineError
from ..core.held import Held, hold
from ..core.pytree import pytree_dataclass, set_fields
from .adapted import Adapted, check_has, is_a, layers
from .environment import Step

_OWNER = "JumanjiEnvironment"


@pytree_dataclass
class JumanjiEnvironment(Adapted):
    """An environment of Jumanji, as `jumanji.make` gives it.

        env = cereal.rl.JumanjiEnvironment(jumanji.make("Snake-v1"))
        source = cereal.rl.RolloutSource(env, policy_step, policy_state, num_envs=64)

    An episode that ends with a discount other than zero was truncated. Observations are the
    named tuples of Jumanji, rewards are one number or one per agent, `extras` become `info`.
    """

    held: Held

    def __init__(self, env: Any) -> None:
        for layer, names in layers(env, "_env"):
            _check_layer(layer, names)
        check_has(env, ("reset", "step", "action_spec"), _OWNER, "jumanji.make(name)")
        set_fields(self, held=hold(env, _OWNER))

    def reset(self, key: Any) -> tuple[Any, Any]:
        state, timestep = self.env.reset(key)
        return timestep.observation, state

    def step(self, key: Any, state: Any, action: Any) -> Step:
        del key  # what is random in a step of Jumanji comes from the key in its state
        state, timestep = self.env.step(state, action)
        done = timestep.last()
        return Step(
            observation=timestep.observation,
            state=state,
            reward=timestep.reward,
            done=done,
            truncated=done & jnp.any(jnp.asarray(timestep.discount) != 0),
            info=dict(timestep.extras or {}),
        )

    def action_spec(self) -> Any:
        spec: Any = self.env.action_spec
        spec = spec() if callable(spec) else spec  # it was a method before Jumanji 1.0
        if hasattr(spec, "shape") and hasattr(spec, "dtype"):
            return jax.ShapeDtypeStruct(tuple(spec.shape), jnp.dtype(spec.dtype))
        return jax.eval_shape(spec.generate_value) if hasattr(spec, "generate_value") else None


def _check_layer(env: Any, names: tuple[str, ...]) -> None:
    if is_a(names, "VmapWrapper", "VmapAutoResetWrapper"):
        raise PipelineError(
            f"{_OWNER}: {type(env).__name__} is many environments, and this is an adapter of one; "
            f"pass the environment inside it, and `num_envs=` to the source."
        )
    if is_a(names, "AutoResetWrapper"):
        raise PipelineError(
            f"{_OWNER}: {type(env).__name__} resets the environment by itself, and so does the "
            f"rollout, which keeps the last observation; pass the environment inside it."
        )
