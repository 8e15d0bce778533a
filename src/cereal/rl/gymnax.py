"""Environments of gymnax's shape: gymnax, Craftax, and classes written like them.

    reset(key, params)                -> observation, state
    step(key, state, action, params)  -> observation, state, reward, terminated, truncated, info
                                   or -> observation, state, reward, done, info

gymnax 1.0 begins its next episode inside `step` and keeps the last observation of the old one in
`info["final_observation"]`. Before that, and in Craftax, `step` loses it, and `step_env` has it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..core.errors import PipelineError
from ..core.fitting import canonical
from ..core.held import Held, hold
from ..core.pytree import pytree_dataclass, set_fields, static_field
from ..core.spec import format_spec
from .adapted import Adapted
from .environment import Step
from .promises import check_alike

_OWNER = "GymnaxEnvironment"
_LAST = "final_observation"
# The rollout adds these to `info` itself.
_TOLD = (_LAST, "terminated", "truncated")


@pytree_dataclass
class GymnaxEnvironment(Adapted):
    """An environment of gymnax, of Craftax, or of a class with `reset` and `step` like theirs.

    `params` are leaves, so that a function of them can be mapped: `jax.vmap` over a `params` of
    many lengths of a pole. None takes the environment's `default_params`.

    >>> import cereal, gymnax, jax
    >>> env = cereal.rl.GymnaxEnvironment(*gymnax.make("CartPole-v1"))
    >>> observation, state = env.reset(jax.random.key(0))
    >>> step = env.step(jax.random.key(1), state, 1)
    >>> step.observation.shape, float(step.reward), bool(step.done), env.action_spec().dtype
    ((4,), 1.0, False, dtype('int32'))

    One that begins again by itself and shows the last observation nowhere (a five-value wrapper
    around an older gymnax) works too, but its `next_state` where `done` is the first of the
    next episode.
    """

    held: Held
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
        """What a drawing calls it."""
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
        if _owns_step_env(self.env):
            # Shapes are enough to tell whether `step` shows the last observation.
            try:
                given = jax.eval_shape(step, key, state, action, *self._params)
            except TypeError:
                self._check_alike(key, state, action)
                raise
            if len(_checked(given, self.env)) == 5 and not _shows_last(given[-1]):
                step = self.env.step_env
        return _as_step(_checked(step(key, state, action, *self._params), self.env))

    def _check_alike(self, key: Any, state: Any, action: Any) -> None:
        """A `step` that picks between a step and a reset fails if these two are not alike."""
        first = jax.eval_shape(self.env.reset_env, key, *self._params)
        after = jax.eval_shape(self.env.step_env, key, state, action, *self._params)
        check_alike(self, "observation", first[0], after[0], "GymnaxSource")
        check_alike(self, "state", first[1], after[1], "GymnaxSource")

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
    terminated, done, truncated = None, _flag(ends[0]), told.get("truncated")
    if len(ends) == 2:
        terminated, truncated = done, ends[1]
        done = terminated | _flag(truncated)
    if truncated is not None:
        # An episode may end by itself in the very step of the limit; then nothing was cut off.
        by_itself = told.get("terminated", False) if terminated is None else terminated
        truncated = _flag(truncated) & ~_flag(by_itself)
    rest = {name: told[name] for name in told if name not in _TOLD} if told else info
    if not _shows_last(info):
        return Step(observation, state, reward, done, truncated, rest)
    return Step(info[_LAST], state, reward, done, truncated, rest, resumed=(observation, state))


def _flag(value: Any) -> jax.Array:
    return jnp.asarray(value).astype(bool)


def _shows_last(info: Any) -> bool:
    return isinstance(info, dict) and _LAST in info


def _checked(given: Any, env: Any) -> tuple[Any, ...]:
    """What `step` returned, if it is five or six values."""
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
    """Whether `step` is no more than a reset around the class's own `step_env`.

    A wrapper that passes attributes on has no `step_env` of its own, and a class that overrides
    `step` does more in it than its parent's `step_env` knows.
    """
    kind = type(env)
    if "step" in getattr(env, "__dict__", {}) or not hasattr(kind, "reset_env"):
        return False
    defines = {
        name: next((i for i, base in enumerate(kind.__mro__) if name in vars(base)), None)
        for name in ("step", "step_env")
    }
    outer, inner = defines["step"], defines["step_env"]
    return outer is not None and inner is not None and outer >= inner


def _spec_of(space: Any) -> jax.ShapeDtypeStruct | None:
    """The shape and dtype of an action in a space that is one array."""
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    if not isinstance(shape, tuple | list) or dtype is None:
        return None
    # gymnasium counts in int64, which JAX has only if asked
    return jax.ShapeDtypeStruct(tuple(map(int, shape)), canonical(dtype))


def _as_arrays(params: Any) -> Any:
    """Parameters whose leaves are arrays; a Python number stays weakly typed, as it was."""

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
    """Refuses what cannot be called as gymnax's environments are, and names what can."""
    kind = type(env)
    if kind is tuple:
        raise PipelineError(
            f"{_OWNER}: `env` is a tuple; write `{_OWNER}(*gymnax.make(name))`, or `env, params = "
            f"gymnax.make(name)`, then `{_OWNER}(env, params)`."
        )
    if isinstance(env, type | str):
        raise PipelineError(
            f"{_OWNER}: `env` must be an environment, got {env!r:.60}; write "
            f"`env, params = gymnax.make(name)`, then `{_OWNER}(env, params)`."
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
    name = f"`{_name(env)}.step`"
    if not _takes(env.step, 2):
        return (
            f"{name} takes no key and no state, so it is no pure function; for an environment of "
            f"gymnasium write `cereal.rl.GymnasiumSource(name, ...)`."
        )
    adapters = {"action_size": "Brax", "action_spec": "Jumanji", "_step": "Navix"}
    found = [adapters[attribute] for attribute in adapters if hasattr(env, attribute)]
    if found:
        return (
            f"{name} takes (state, action), as {found[0]}'s does; write "
            f"`cereal.rl.{found[0]}Environment(env)`."
        )
    return (
        f"{name} takes two arguments, not (key, state, action, params); write an adapter, as "
        f"`cereal.rl.Environment` shows."
    )


def _takes(fn: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(fn).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # some built-ins have no signature
        return True
    return True


def _name(env: Any) -> str:
    return type(env).__name__


def _format(given: Any) -> str:
    shapes = jax.tree.map(lambda leaf: leaf if hasattr(leaf, "shape") else np.asarray(leaf), given)
    return f"{format_spec(shapes):.200}"
