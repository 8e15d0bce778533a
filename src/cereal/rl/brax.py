"""Environments of Brax's shape: Brax and MuJoCo Playground.

    reset(key)           -> State
    step(state, action)  -> State(obs, reward, done, metrics, info, ...)

Such a state is the state of the environment and all that a step gives, in one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from ..core.errors import PipelineError
from ..core.held import Held, hold
from ..core.pytree import pytree_dataclass, set_fields
from .environment import Step

_OWNER = "BraxEnvironment"


@pytree_dataclass
class BraxEnvironment:
    """An environment of Brax, or of MuJoCo Playground, that does not reset itself.

        env = brax.envs.create("ant", episode_length=1000, auto_reset=False)
        source = cereal.rl.RolloutSource(
            cereal.rl.BraxEnvironment(env), policy_step, policy_state, num_envs=1024
        )

    Only an environment with Brax's `EpisodeWrapper` has a time limit (`brax.envs.create` adds
    one, `brax.envs.get_environment` does not), and it alone tells truncations. `info` holds
    `metrics` and what Brax keeps in the `info` of a state: `steps`, `episode_metrics`.
    """

    held: Held

    def __init__(self, env: Any) -> None:
        for layer in _layers(env):
            _check_layer(layer)
        missing = [name for name in ("reset", "step", "action_size") if not hasattr(env, name)]
        if missing:
            raise PipelineError(
                f"{_OWNER}: `env` must be an environment of Brax, got {type(env).__name__}, "
                f"which has no `{missing[0]}`; write `brax.envs.create(name, auto_reset=False)`."
            )
        set_fields(self, held=hold(env, _OWNER))

    @property
    def env(self) -> Any:
        """The environment inside."""
        return self.held()

    @property
    def name(self) -> str:
        """What a drawing calls it."""
        return type(getattr(self.env, "unwrapped", self.env)).__name__

    def reset(self, key: Any) -> tuple[Any, Any]:
        state = self.env.reset(key)
        return state.obs, state

    def step(self, key: Any, state: Any, action: Any) -> Step:
        del key  # what is random in a step of Brax comes from a key in its state
        # Brax writes into the dicts of the state that it is given; these are new ones.
        state = self.env.step(jax.tree.map(lambda leaf: leaf, state), action)
        info = {**state.info, "metrics": state.metrics}
        truncated = info.pop("truncation", None)
        return Step(
            observation=state.obs,
            state=state,
            reward=state.reward,
            done=jnp.asarray(state.done).astype(bool),
            truncated=None if truncated is None else jnp.asarray(truncated).astype(bool),
            info=info,
        )

    def action_spec(self) -> Any:
        return jax.ShapeDtypeStruct((int(self.env.action_size),), jnp.float32)


def _layers(env: Any) -> Iterator[Any]:
    """An environment, and those that it wraps."""
    while env is not None:
        yield env
        env = getattr(env, "__dict__", {}).get("env")  # not by getattr: wrappers pass it on


def _check_layer(env: Any) -> None:
    # By name: the wrappers of MuJoCo Playground and of users count, and nothing is imported.
    names = [kind.__name__ for kind in type(env).__mro__]
    if any(name.endswith("AutoResetWrapper") for name in names):
        raise PipelineError(
            f"{_OWNER}: {type(env).__name__} resets the environment by itself, always to the same "
            f"first state, and hides the last observation; write "
            f"`brax.envs.create(name, auto_reset=False)`."
        )
    if any(name.endswith("VmapWrapper") for name in names):
        raise PipelineError(
            f"{_OWNER}: {type(env).__name__} is many environments, and this is an adapter of one; "
            f"write `brax.envs.create(name, auto_reset=False)` without `batch_size`, and "
            f"`num_envs=` in the source."
        )
