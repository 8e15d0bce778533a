"""Checks the shapes and dtypes of an environment and a policy when a pipeline is built.

    reset  ->  observation, state
    policy(observation, policy state)  ->  action, policy state      of the same shapes as before
    step(state, action)  ->  observation, state                      of the same shapes as `reset`'s

No step runs for this.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..base.errors import CerealError, PipelineError, in_one_line
from ..base.spec import Spec, format_spec, is_array_like
from ..functions.inner_functions import inner_programs
from .environment import Step

_MANY_OPERATIONS = 800
_UNKNOWN_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
_IN_PYTHON = (
    "It is compiled, also where Python runs the environment: write it with `jax.numpy`, with "
    "`jnp.where` in place of `if`, and without `float(...)`, `int(...)` and NumPy."
)


def shapes_of(what: str, fn: Any, *args: Any) -> Any:
    """The shapes and dtypes of what a user's function returns."""
    try:
        return jax.eval_shape(lambda *args: jax.tree.map(_as_array, fn(*args)), *args)
    except CerealError:
        raise
    except Exception as error:
        hint = ". " + _IN_PYTHON if isinstance(error, _UNKNOWN_VALUES) else ""
        raise PipelineError(f"{what} failed: {in_one_line(error)}{hint}") from error


def _as_array(leaf: Any) -> Any:
    if not is_array_like(leaf):
        raise PipelineError(
            f"it gave {type(leaf).__name__} ({leaf!r:.60}) where there must be an array"
        )
    return jnp.asarray(leaf)


def environment_name(env: Any) -> str:
    """The environment's `name`, if it has one; otherwise the name of its class."""
    return getattr(env, "name", type(env).__name__)


def key_shape() -> Any:
    """The shape and dtype of a random key."""
    return jax.eval_shape(lambda: jax.random.key(0))


def reset_shapes(env: Any, owner: str) -> tuple[Any, Any]:
    """The shapes of the first observation and of the environment's state."""
    name = f"{owner}: {environment_name(env)}.reset"

    def reset(key: Any) -> Any:
        made = env.reset(key)
        if not isinstance(made, tuple) or len(made) != 2:
            raise PipelineError(
                f"{name} must return (observation, state), returned {type(made).__name__}"
                + (f" of {len(made)}." if isinstance(made, tuple) else ".")
            )
        return made

    return shapes_of(name, reset, key_shape())


def action_shape(policy: Any, observation: Any, policy_state: Any, env: Any, owner: str) -> Any:
    """The shape of an action for one environment; checks everything that the policy returns."""
    new, key = jax.ShapeDtypeStruct((), jnp.bool_), key_shape()
    what = f"{owner}: `policy_step_fn` {policy.name}"

    def act(observation: Any, policy_state: Any, new: Any, key: Any) -> Any:
        made = policy(observation, policy_state, new, key)
        if not isinstance(made, tuple) or len(made) not in (2, 3):
            found = f"a tuple of {len(made)}" if isinstance(made, tuple) else type(made).__name__
            raise PipelineError(
                f"{what} must return (action, policy_state), or (action, policy_state, extras), "
                f"returned {found}; a policy without a state returns `policy_state` as it got it."
            )
        return made

    on = f"{what}, called with {format_spec(observation)} and {format_spec(policy_state)},"
    action, after, *_ = shapes_of(on, act, observation, policy_state, new, key)
    difference = difference_of(policy_state, after)
    if difference:
        raise PipelineError(
            f"{what} returns another policy state than it gets: {difference}. Return "
            f"`policy_state` with the same structure, shapes and dtypes."
        )
    _check_action(action, env, what)
    return action


def uses_new_episode(policy: Any, observation: Any, policy_state: Any) -> bool:
    """Whether the policy uses `new_episode` at all."""
    new, key = jax.ShapeDtypeStruct((), jnp.bool_), key_shape()
    traced = jax.make_jaxpr(policy)(observation, policy_state, new, key).jaxpr
    flag = traced.invars[len(jax.tree.leaves((observation, policy_state)))]
    used = [var for equation in traced.eqns for var in equation.invars]
    return any(var is flag for var in (*used, *traced.outvars))


def has_long_reset(env: Any) -> bool:
    """Whether a reset takes long.

    Resets of gymnax and Jumanji have 30 to 500 operations; resets that simulate physics or build a
    world have 1,200 and more. The bet: a reset with many operations takes long. If it is wrong,
    only speed suffers: it decides whether a GPU checks before each reset if any episode has ended.
    The test of the bet is `tests/rl/test_shape_checks.py`.
    """
    return _operations(jax.make_jaxpr(env.reset)(key_shape()).jaxpr) > _MANY_OPERATIONS


def _operations(program: Any) -> int:
    inside = (inner for equation in program.eqns for inner in inner_programs(equation))
    return len(program.eqns) + sum(map(_operations, inside))


def _check_action(action: Any, env: Any, what: str) -> None:
    wanted = env.action_spec()
    if wanted is None:
        return
    same = jax.tree.structure(action) == jax.tree.structure(wanted)
    pairs = zip(jax.tree.leaves(action), jax.tree.leaves(wanted), strict=True) if same else ()
    if same and all(a.shape == w.shape and _kind(a) == _kind(w) for a, w in pairs):
        return
    hint = " Cast or reshape it in the policy." if same else ""
    if same and _kind(wanted) == "integer":
        hint = " Return the number of an action: `jax.random.categorical(key, logits)`, or cast it."
    raise PipelineError(
        f"{what} returns the action {format_spec(action)}, but {environment_name(env)} takes "
        f"{format_spec(wanted)}.{hint}"
    )


def _kind(leaf: Any) -> str:
    if not hasattr(leaf, "dtype"):
        return "tree"
    kinds = ("bool_", "integer", "floating")
    found = (kind for kind in kinds if jnp.issubdtype(leaf.dtype, getattr(jnp, kind)))
    return next(found, str(leaf.dtype))


def step_shapes(env: Any, observation: Any, state: Any, action: Any, owner: str) -> Step:
    """The shapes of what a step returns; checks that another step can follow."""
    name = f"{environment_name(env)}.step"

    def step(key: Any, state: Any, action: Any) -> Any:
        made = env.step(key, state, action)
        if not isinstance(made, Step):
            raise PipelineError(
                f"{owner}: {name} must return a `cereal.rl.Step`, returned {type(made).__name__}."
            )
        return made

    what = f"{owner}: {name}, called with the action {format_spec(action)},"
    made = shapes_of(what, step, key_shape(), state, action)
    goes_on = made.resumed if made.resumed is not None else (made.observation, made.state)
    for part, first, after in (
        ("observation", observation, made.observation),
        ("observation", observation, goes_on[0]),
        ("state", state, goes_on[1]),
    ):
        check_alike(env, part, first, after, owner)
    for part in ("done", "truncated"):
        flag = getattr(made, part)
        if flag is not None and getattr(flag, "shape", None) != ():
            raise PipelineError(
                f"{owner}: {name} gives `{part}` as {format_spec(flag)}; it must be one True or "
                f"False per environment."
            )
    return made


def check_alike(env: Any, part: str, first: Any, after: Any, owner: str) -> None:
    """Refuses an environment whose `reset` and `step` return different shapes or dtypes."""
    difference = difference_of(first, after, "reset gives", "step gives")
    if difference:
        raise PipelineError(
            f"{owner}: the {part} of {environment_name(env)} is not the same after `reset` and "
            f"after `step`: {difference}. A loop needs one dtype and shape: cast in one of them, "
            f"for example with `.astype(jnp.float32)`."
        )


def difference_of(one: Any, other: Any, first: str = "it gets", second: str = "it returns") -> str:
    """The first difference of two trees of shapes, in words; empty if there is none."""
    if Spec(one) == Spec(other):
        return ""
    if jax.tree.structure(one) != jax.tree.structure(other):
        return f"{first} {format_spec(one)}, {second} {format_spec(other)}"
    pairs = zip(jax.tree_util.tree_flatten_with_path(one)[0], jax.tree.leaves(other), strict=True)
    (path, a), b = next((p, x) for p, x in pairs if (p[1].shape, p[1].dtype) != (x.shape, x.dtype))
    place = jax.tree_util.keystr(path)
    at = f"of `{place}` " if place else ""
    return f"{at}{first} {format_spec(a)}, {second} {format_spec(b)}"
