"""Environments of Brax's shape: Brax and MuJoCo Playground.

    reset(key)           -> State
    step(state, action)  -> State(obs, reward, done, metrics, info, ...)

Such a state is the state of the environment and all that a step gives, in one.
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

_OWNER = "BraxEnvironment"


@pytree_dataclass
class BraxEnvironment(Adapted):
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
        for layer, names in layers(env, "env"):
            _check_layer(layer, names)
        check_has(
            env,
            ("reset", "step", "action_size"),
            _OWNER,
            "brax.envs.create(name, auto_reset=False)",
        )
        set_fields(self, held=hold(env, _OWNER))

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


def _check_layer(env: Any, names: tuple[str, ...]) -> None:
    if is_a(names, "AutoResetWrapper"):
        raise PipelineError(
            f"{_OWNER}: {type(env).__name__} resets the environment by itself, always to the same "
            f"first state, and hides the last observation; write "
            f"`brax.envs.create(name, auto_reset=False)`."
        )
    if is_a(names, "VmapWrapper"):
        raise PipelineError(
            f"{_OWNER}: {type(env).__name__} is many environments, and this is an adapter of one; "
            f"write `brax.envs.create(name, auto_reset=False)` without `batch_size`, and "
            f"`num_envs=` in the source."
        )
