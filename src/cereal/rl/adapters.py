"""Adapters: environments of Brax, Jumanji and Navix as an `Environment`.

    Brax      reset(key) -> State                step(state, action) -> State(obs, reward, ...)
    Jumanji   reset(key) -> state, TimeStep      step(state, action) -> state, TimeStep(...)
    Navix     reset(key) -> Timestep             step(timestep, action) -> Timestep(...)

In all three, a step draws its random numbers from a key in the environment's own state, so the key
of `Environment.step` is not used. The adapter for gymnax is in `gymnax.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ..base.errors import PipelineError
from ..base.pytree import pytree_dataclass, set_fields
from ..functions.opaque import Opaque, hold
from .environment import Step


class Adapter:
    """Holds one environment of another library."""

    held: Opaque

    @property
    def env(self) -> Any:
        return self.held.value

    @property
    def name(self) -> str:
        """Its name in the drawing of a pipeline."""
        return type(getattr(self.env, "unwrapped", self.env)).__name__


def _check(
    env: Any,
    owner: str,
    write: str,
    names: tuple[str, ...],
    inside: str = "",
    refused: Mapping[str, str] | None = None,
) -> None:
    """Refuses an object that lacks one of these attributes, or is in a wrapper of these classes.

    `inside` is the attribute in which a wrapper keeps the wrapped environment. Classes are found by
    name: so nothing is imported, and wrappers of users and other libraries are found as well.
    """
    layer = env
    while layer is not None and refused:
        kinds = [kind.__name__ for kind in type(layer).__mro__]
        for ending, why in refused.items():
            if any(kind.endswith(ending) for kind in kinds):
                raise PipelineError(f"{owner}: {type(layer).__name__} {why}.")
        layer = getattr(layer, "__dict__", {}).get(inside)  # `getattr` would ask the wrapped one
    missing = [name for name in names if not hasattr(env, name)]
    if missing:
        raise PipelineError(
            f"{owner}: `env` must be an environment of {owner.removesuffix('Environment')}, got "
            f"{type(env).__name__}, which has no `{missing[0]}`; write `{write}`."
        )


_MANY = "is many environments, and this is an adapter of one; "
_CREATE = "brax.envs.create(name, auto_reset=False)"


@pytree_dataclass
class BraxEnvironment(Adapter):
    """An environment of Brax or MuJoCo Playground; it must not reset itself.

        env = brax.envs.create("ant", episode_length=1000, auto_reset=False)
        source = cereal.rl.RolloutSource(
            cereal.rl.BraxEnvironment(env), policy_step, policy_state, num_envs=1024
        )

    Only Brax's `EpisodeWrapper` sets a time limit and reports truncations; `brax.envs.create` adds
    it, `brax.envs.get_environment` does not. `info` holds `metrics`, and the `info` of Brax's
    state: `steps`, `episode_metrics`.
    """

    held: Opaque

    def __init__(self, env: Any) -> None:
        refused = {
            "AutoResetWrapper": "resets the environment by itself, always to the same first state, "
            f"and hides the last observation; write `{_CREATE}`",
            "VmapWrapper": f"{_MANY}write `{_CREATE}` without `batch_size`, and `num_envs=` in the "
            "source",
        }
        names = ("reset", "step", "action_size")
        _check(env, "BraxEnvironment", _CREATE, names, "env", refused)
        set_fields(self, held=hold(env, "BraxEnvironment"))

    def reset(self, key: Any) -> tuple[Any, Any]:
        state = self.env.reset(key)
        return state.obs, state

    def step(self, key: Any, state: Any, action: Any) -> Step:
        del key
        # Brax writes into the dicts of its argument, so it gets new dicts.
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


@pytree_dataclass
class JumanjiEnvironment(Adapter):
    """An environment of Jumanji, as `jumanji.make` returns it.

        env = cereal.rl.JumanjiEnvironment(jumanji.make("Snake-v1"))
        source = cereal.rl.RolloutSource(env, policy_step, policy_state, num_envs=64)

    If an episode ends with a discount other than zero, it was truncated. Observations are Jumanji's
    named tuples; a reward is one number, or one for each agent; `extras` become `info`.
    """

    held: Opaque

    def __init__(self, env: Any) -> None:
        many = f"{_MANY}pass the environment inside it, and `num_envs=` to the source"
        refused = {
            "VmapWrapper": many,
            "VmapAutoResetWrapper": many,
            "AutoResetWrapper": "resets the environment by itself, and so does the rollout, which "
            "keeps the last observation; pass the environment inside it",
        }
        names = ("reset", "step", "action_spec")
        _check(env, "JumanjiEnvironment", "jumanji.make(name)", names, "_env", refused)
        set_fields(self, held=hold(env, "JumanjiEnvironment"))

    def reset(self, key: Any) -> tuple[Any, Any]:
        state, timestep = self.env.reset(key)
        return timestep.observation, state

    def step(self, key: Any, state: Any, action: Any) -> Step:
        del key
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


class _ById:
    """An object in the static part of a pytree, compared by identity.

    A Navix environment is a pytree without leaves. To compare two of them, Python would compare the
    arrays in their spaces, which is not possible while JAX traces.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


@pytree_dataclass
class NavixEnvironment(Adapter):
    """An environment of Navix, as `navix.make` returns it.

        env = cereal.rl.NavixEnvironment(navix.make("Navix-DoorKey-8x8-v0"))
        source = cereal.rl.RolloutSource(env, policy_step, policy_state, num_envs=64)

    Navix itself resets in an extra step after the end of an episode, which ignores its action. Here
    the rollout resets, so every step belongs to an episode.
    """

    held: Opaque

    def __init__(self, env: Any) -> None:
        names = ("reset", "step", "action_space")
        _check(env, "NavixEnvironment", "navix.make(name)", names)
        has_leaves = bool(jax.tree.leaves(env)) and jax.tree.leaves(env)[0] is not env
        set_fields(self, held=Opaque(env) if has_leaves else Opaque(None, _ById(env)))

    @property
    def env(self) -> Any:
        held = self.held.value
        return held.value if isinstance(held, _ById) else held

    def reset(self, key: Any) -> tuple[Any, Any]:
        timestep = self.env.reset(key)
        return timestep.observation, timestep

    def step(self, key: Any, state: Any, action: Any) -> Step:
        del key
        # Told that the episode goes on, `step` never resets, and the compiler removes that code.
        going_on = state.replace(step_type=jnp.zeros_like(state.step_type))
        timestep = self.env.step(going_on, action)
        return Step(
            observation=timestep.observation,
            state=timestep,
            reward=timestep.reward,
            done=timestep.step_type > 0,
            truncated=timestep.step_type == 1,  # `navix.StepType`: 1 truncated, 2 terminated
            info=dict(timestep.info),
        )

    def action_spec(self) -> Any:
        space = self.env.action_space
        return jax.ShapeDtypeStruct(tuple(space.shape), jnp.dtype(space.dtype))
