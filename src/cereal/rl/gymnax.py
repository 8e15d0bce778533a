"""Environments with the interface of gymnax: gymnax, Craftax, and classes written like them.

    reset(key, params)                -> observation, state
    step(key, state, action, params)  -> observation, state, reward, terminated, truncated, info
                                   or -> observation, state, reward, done, info

gymnax 1.0 begins the next episode inside `step`, and keeps the last observation of the old one in
`info["final_observation"]`. In older versions, and in Craftax, `step` loses that observation, but
`step_env` returns it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..base.errors import PipelineError
from ..base.fitting import canonical
from ..base.pytree import pytree_dataclass, set_fields, static_field
from ..base.spec import format_spec
from ..functions.opaque import Opaque, hold
from .adapters import Adapter
from .environment import Step
from .shape_checks import check_alike

_OWNER = "GymnaxEnvironment"
_LAST = "final_observation"
# The rollout adds these to `info` itself.
_TOLD = (_LAST, "terminated", "truncated")


@pytree_dataclass
class GymnaxEnvironment(Adapter):
    """An environment of gymnax or Craftax, or one with the same `reset` and `step`.

    `params=None` uses the environment's `default_params`. They are leaves of the pytree, so you can
    `jax.vmap` over them: over many lengths of a pole, for example.

    >>> import cereal, gymnax, jax
    >>> env = cereal.rl.GymnaxEnvironment(*gymnax.make("CartPole-v1"))
    >>> observation, state = env.reset(jax.random.key(0))
    >>> step = env.step(jax.random.key(1), state, 1)
    >>> step.observation.shape, float(step.reward), bool(step.done), env.action_spec().dtype
    ((4,), 1.0, False, dtype('int32'))

    Some environments reset themselves and lose the last observation (a wrapper around an older
    gymnax that returns five values). They work too; but where `done`, their `next_state` is the
    first observation of the next episode.
    """

    held: Opaque
    params: Any
    with_params: bool = static_field()

    def __init__(self, env: Any, params: Any = None) -> None:
        _check_shape(env)
        with_params = _takes(env.step, 4)
        if params is None:
            params = getattr(env, "default_params", None)
        elif not with_params:
            raise PipelineError(
                f"{_OWNER}: `{_name(env)}.step` takes no parameters; write `{_OWNER}(env)`."
            )
        set_fields(
            self,
            held=hold(env, _OWNER),
            params=_as_arrays(params) if with_params else None,
            with_params=with_params,
        )

    @property
    def name(self) -> str:
        """Its name in the drawing of a pipeline."""
        name = getattr(self.env, "name", None)
        return name if isinstance(name, str) else _name(self.env)

    def reset(self, key: Any) -> tuple[Any, Any]:
        first = self.env.reset(key, *self._params)
        if not isinstance(first, tuple) or len(first) != 2:
            raise PipelineError(
                f"{_OWNER}: `{_name(self.env)}.reset` must return (observation, state), returned "
                f"{_format(first)}; return the pair."
            )
        return first

    def step(self, key: Any, state: Any, action: Any) -> Step:
        step: Callable[..., Any] = self.env.step
        args = (key, state, action, *self._params)
        if _owns_step_env(self.env):
            # The shapes show whether `step` returns the last observation.
            try:
                given = jax.eval_shape(step, *args)
            except TypeError:  # `step` joins a step and a reset, which may differ in shape
                first = jax.eval_shape(self.env.reset_env, key, *self._params)
                after = jax.eval_shape(self.env.step_env, *args)
                for number, part in enumerate(("observation", "state")):
                    check_alike(self, part, first[number], after[number], "GymnaxSource")
                raise
            if len(_checked(given, self.env)) == 5 and not _shows_last(given[-1]):
                step = self.env.step_env
        return _as_step(_checked(step(*args), self.env))

    def action_spec(self) -> Any:
        space = getattr(self.env, "action_space", None)
        if callable(space):
            try:
                space = space(self.params) if _takes(space, 1) else space()
            except NotImplementedError:  # gymnax's base class has the method, and no space
                return None
        return _spec_of(space)

    @property
    def _params(self) -> tuple[Any, ...]:
        return (self.params,) if self.with_params else ()


def _as_step(given: tuple[Any, ...]) -> Step:
    observation, state, reward, *ends, info = given
    told = info if isinstance(info, dict) else {}
    done, terminated, truncated = ends[0], told.get("terminated", False), told.get("truncated")
    if len(ends) == 2:
        terminated, truncated = ends
        done = _flag(terminated) | _flag(truncated)
    if truncated is not None:
        # If the episode also ends by itself in this step, the time limit has cut nothing off.
        truncated = _flag(truncated) & ~_flag(terminated)
    done = _flag(done)
    rest = {name: told[name] for name in told if name not in _TOLD} if told else info
    if not _shows_last(info):
        return Step(observation, state, reward, done, truncated, rest)
    return Step(info[_LAST], state, reward, done, truncated, rest, resumed=(observation, state))


def _flag(value: Any) -> jax.Array:
    return jnp.asarray(value).astype(bool)


def _shows_last(info: Any) -> bool:
    return isinstance(info, dict) and _LAST in info


def _checked(given: Any, env: Any) -> tuple[Any, ...]:
    """What `step` returned; refuses anything but five or six values."""
    if isinstance(given, Step):
        raise PipelineError(
            f"{_OWNER}: {_name(env)} is an environment of cereal already; pass it as it is: "
            f"`cereal.rl.RolloutSource(env, ...)`."
        )
    if isinstance(given, tuple) and len(given) in (5, 6):
        return given
    count = f"{len(given)} values" if isinstance(given, tuple) else "no tuple"
    raise PipelineError(
        f"{_OWNER}: `{_name(env)}.step` must return (observation, state, reward, terminated, "
        f"truncated, info), or with one `done` instead of two ends; it returned {count}: "
        f"{_format(given)}."
    )


def _owns_step_env(env: Any) -> bool:
    """Whether `step` only adds a reset to the class's own `step_env`, so that we may call that.

    Not for a wrapper, whose `step_env` is that of the wrapped environment; and not for a class that
    overrides `step`, since its parent's `step_env` does not do what this `step` adds.
    """
    kind = type(env)
    if "step" in getattr(env, "__dict__", {}) or not hasattr(kind, "reset_env"):
        return False
    # From the most derived class on: the first class that defines either must define `step_env`.
    first = next((vars(base) for base in kind.__mro__ if {"step", "step_env"} & {*vars(base)}), {})
    return "step_env" in first and hasattr(kind, "step")


def _spec_of(space: Any) -> jax.ShapeDtypeStruct | None:
    """The shape and dtype of an action, if its space is one array; otherwise None."""
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    if not isinstance(shape, tuple | list) or dtype is None:
        return None
    # gymnasium uses int64, which JAX has only if x64 is on
    return jax.ShapeDtypeStruct(tuple(map(int, shape)), canonical(dtype))


def _as_arrays(params: Any) -> Any:
    """The parameters as arrays; an array from a Python number is weakly typed."""

    def convert(path: Any, leaf: Any) -> Any:
        try:
            return jnp.asarray(leaf)
        except TypeError as error:
            raise PipelineError(
                f"{_OWNER}: the leaves of `params` must be numbers or arrays, "
                f"params{jax.tree_util.keystr(path)} is {type(leaf).__name__} ({leaf!r:.40}); "
                f"make it a static field."
            ) from error

    return jax.tree_util.tree_map_with_path(convert, params)


def _check_shape(env: Any) -> None:
    """Refuses an object without the interface of gymnax, and says what to write."""
    if type(env) is tuple or isinstance(env, type | str):
        raise PipelineError(
            f"{_OWNER}: `env` must be an environment, got {env!r:.60}; write "
            f"`{_OWNER}(*gymnax.make(name))`."
        )
    if not callable(getattr(env, "reset", None)) or not callable(getattr(env, "step", None)):
        raise PipelineError(
            f"{_OWNER}: `env` must have `reset(key, params)` and `step(key, state, action, "
            f"params)`, got {type(env).__name__}; write a class with these, or see "
            f"`cereal.rl.Environment`."
        )
    if not (_takes(env.step, 4) or _takes(env.step, 3)):
        raise PipelineError(f"{_OWNER}: {_wrong_step(env)}")


def _wrong_step(env: Any) -> str:
    adapters = {"action_size": "Brax", "action_spec": "Jumanji", "_step": "Navix"}
    library = next((adapters[name] for name in adapters if hasattr(env, name)), None)
    if not _takes(env.step, 2):
        why = "no key and no state, so it is no pure function; for an environment of gymnasium "
        why += "write `cereal.rl.GymnasiumSource(name, ...)`"
    elif library:
        why = f"(state, action), as {library}'s does; write `cereal.rl.{library}Environment(env)`"
    else:
        why = "two arguments, not (key, state, action, params); write an adapter, as "
        why += "`cereal.rl.Environment` shows"
    return f"`{_name(env)}.step` takes {why}."


def _takes(fn: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(fn).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # some built-ins have no signature
        pass
    return True


def _name(env: Any) -> str:
    return type(env).__name__


def _format(given: Any) -> str:
    shapes = jax.tree.map(lambda leaf: leaf if hasattr(leaf, "shape") else np.asarray(leaf), given)
    return f"{format_spec(shapes):.200}"
