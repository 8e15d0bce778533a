"""Environments of Navix, whose state is the whole of the last step.

reset(key)              -> Timestep
step(timestep, action)  -> Timestep(t, observation, action, reward, step_type, state, info)
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..core.held import Held
from ..core.pytree import pytree_dataclass, set_fields
from .adapted import Adapted, check_has
from .environment import Step

_OWNER = "NavixEnvironment"
_TRUNCATION = 1  # of `navix.StepType`; 0 goes on, 2 is a termination


class _Same:
    """An object as structure, compared by identity.

    An environment of Navix is a pytree without leaves, and two of them are compared by the arrays
    in their spaces, which cannot be done while JAX traces.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


@pytree_dataclass
class NavixEnvironment(Adapted):
    """An environment of Navix, as `navix.make` gives it.

        env = cereal.rl.NavixEnvironment(navix.make("Navix-DoorKey-8x8-v0"))
        source = cereal.rl.RolloutSource(env, policy_step, policy_state, num_envs=64)

    Navix by itself resets in the step after the last one, and that step does nothing with its
    action. Here the rollout resets, so that each step is one of an episode.
    """

    held: Held

    def __init__(self, env: Any) -> None:
        check_has(env, ("reset", "step", "action_space"), _OWNER, "navix.make(name)")
        inside = bool(jax.tree.leaves(env)) and jax.tree.leaves(env)[0] is not env
        set_fields(self, held=Held(env) if inside else Held(None, _Same(env)))

    @property
    def env(self) -> Any:
        """The environment inside."""
        held = self.held.value
        return held.value if isinstance(held, _Same) else held

    def reset(self, key: Any) -> tuple[Any, Any]:
        timestep = self.env.reset(key)
        return timestep.observation, timestep

    def step(self, key: Any, state: Any, action: Any) -> Step:
        del key  # what is random in a step of Navix comes from the key in its state
        # Told that the episode goes on, `step` never resets; the compiler sees it, and drops it.
        going_on = state.replace(step_type=jnp.zeros_like(state.step_type))
        timestep = self.env.step(going_on, action)
        return Step(
            observation=timestep.observation,
            state=timestep,
            reward=timestep.reward,
            done=timestep.step_type > 0,
            truncated=timestep.step_type == _TRUNCATION,
            info=dict(timestep.info),
        )

    def action_spec(self) -> Any:
        space = self.env.action_space
        return jax.ShapeDtypeStruct(tuple(space.shape), jnp.dtype(space.dtype))
