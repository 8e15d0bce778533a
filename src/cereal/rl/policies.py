"""A user's policy: the function, the template of its state, and its axes over environments.

The state of a policy is in the state of a loader or a source: see `cereal.loaders.policy_slot`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ..base.errors import PipelineError, first_line
from ..base.spec import Spec, format_spec, is_array_like
from ..functions.function import Function, as_function, function_name
from ..loaders.policy_slot import get_policy_state as get_policy_state
from ..loaders.policy_slot import set_policy_state

_WRITE = (
    "def policy_step(observation, policy_state, new_episode, key): ...; return action, policy_state"
)
_WRAPPER = """wrap your function, with the arguments that it takes, and pass its parameters as the \
policy state:

    def policy_step(observation, policy_state, new_episode, key):
        return policy_fn(observation, policy_state, key), policy_state

    source = {owner}({env}, policy_step, policy_state_template=policy_params)
    state = loader.set_policy_state(loader.init_state(key), policy_params)"""


def wrapper_of(owner: str) -> str:
    """What to write for a policy function with other arguments; for error messages."""
    env = {"GymnaxSource": "env, env_params", "GymnasiumSource": '"CartPole-v1"'}.get(owner, "env")
    return _WRAPPER.format(owner=owner, env=env)


def as_policy(policy_step_fn: Any, owner: str) -> Function:
    """The policy function as a part of a pytree; refuses one that does not take four values."""
    if not callable(policy_step_fn):
        raise PipelineError(
            f"{owner}: `policy_step_fn` must be callable, got {type(policy_step_fn).__name__}; "
            f"write `{_WRITE}`."
        )
    try:
        inspect.signature(policy_step_fn).bind(None, None, None, None)
    except TypeError as error:
        name = f"{function_name(policy_step_fn)}{inspect.signature(policy_step_fn)}"
        raise PipelineError(
            f"{owner}: `policy_step_fn` is called with (observation, policy_state, new_episode, "
            f"key), which `{name}` does not take; {wrapper_of(owner)}"
        ) from error
    except ValueError:  # a built-in without a signature
        pass
    return as_function(policy_step_fn, owner)


def as_template(template: Any, owner: str) -> Spec:
    """The spec of a policy state, which is given as arrays or as `jax.ShapeDtypeStruct`s."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(template)[0]:
        if not is_array_like(leaf):
            name = "policy_state_template" + jax.tree_util.keystr(path)
            raise PipelineError(
                f"{owner}: `{name}` is {type(leaf).__name__} ({leaf!r:.60}), and a policy state "
                f"is a tree of arrays; keep what is no array in the policy function (of an "
                f"Equinox module: `eqx.partition(module, eqx.is_array)`)."
            )
    return Spec(jax.eval_shape(lambda tree: jax.tree.map(jnp.asarray, tree), template))


@dataclass(frozen=True)
class Axes:
    """For each leaf of a policy state: which axis is over environments; None if all share it."""

    leaves: tuple[int | None, ...]
    structure: Any

    @property
    def tree(self) -> Any:
        return jax.tree.unflatten(self.structure, self.leaves)

    def of_one(self, template: Spec) -> Any:
        """The policy state of one environment, as shapes."""
        leaves = [
            leaf if axis is None else jax.eval_shape(lambda x, axis=axis: x.take(0, axis), leaf)
            for leaf, axis in zip(template.leaves, self.leaves, strict=True)
        ]
        return jax.tree.unflatten(template.structure, leaves)


def as_axes(axes: Any, template: Spec, num_envs: int, owner: str) -> Axes:
    """Reads `policy_state_axes`, a prefix of the policy state's tree as `jax.vmap` takes it."""
    found: list[Any] = []

    def fill(axis: Any, below: Any) -> None:
        found.extend([axis] * len(jax.tree.leaves(below)))

    try:
        jax.tree.map(fill, axes, template.tree, is_leaf=lambda x: x is None)
    except (ValueError, TypeError) as error:
        raise PipelineError(
            f"{owner}: `policy_state_axes` must be None, 0, or a tree like the policy state "
            f"{template} with 0 for what each environment has for itself and None for what they "
            f"share, got {axes!r:.80} ({first_line(error)})."
        ) from error
    paths = jax.tree_util.tree_flatten_with_path(template.tree)[0]
    for (path, leaf), axis in zip(paths, found, strict=True):
        _check_axis(axis, leaf, jax.tree_util.keystr(path), num_envs, owner)
    return Axes(tuple(found), template.structure)


def _check_axis(axis: Any, leaf: Any, path: str, num_envs: int, owner: str) -> None:
    if axis is None:
        return
    if not isinstance(axis, int) or isinstance(axis, bool) or not 0 <= axis < max(leaf.ndim, 1):
        raise PipelineError(
            f"{owner}: `policy_state_axes{path}` must be None or an axis of "
            f"{format_spec(leaf)}, got {axis!r}."
        )
    if leaf.shape[axis : axis + 1] != (num_envs,):
        raise PipelineError(
            f"{owner}: `policy_state_template{path}` is {format_spec(leaf)}, but "
            f"`policy_state_axes` gives its axis {axis} to the {num_envs} environments; give it "
            f"that length."
        )


def over_environments(
    policy: Callable[..., Any], axes: Axes, num_envs: int
) -> Callable[..., tuple[Any, Any]]:
    """The policy for all environments; it returns `(action, extras), policy_state`."""

    def one(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
        action, after, *extras = policy(observation, policy_state, new_episode, key)
        return (jax.tree.map(jnp.asarray, action), tuple(extras)), after

    mapped = jax.vmap(one, in_axes=(0, axes.tree, 0, 0), out_axes=(0, axes.tree))

    def only_one(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
        """Adds an axis of one environment, and removes it from the result."""
        seen = jax.tree.map(lambda x: x[None], (observation, new_episode, key))
        made, after = mapped(seen[0], policy_state, seen[1], seen[2])
        return jax.tree.map(lambda x: x[0], made), after

    if num_envs > 1:
        return mapped
    return one if all(axis is None for axis in axes.leaves) else only_one


# The state of a policy


def set_loader_policy_state(state: Any, policy_state: Any) -> Any:
    """A copy of a loader's state that holds this policy state.

        state = loader.init_state(key)
        state = cereal.rl.set_loader_policy_state(state, policy_state)

    It is the same as `loader.set_policy_state(state, policy_state)`. The tree is copied, so a later
    `policy_state.update(...)` does not change the state.
    """
    return set_policy_state(state, policy_state)


def set_source_policy_state(state: Any, policy_state: Any) -> Any:
    """A copy of a source's state that holds this policy state; see `source.set_policy_state`.

        state = source.init_state(key)
        state = cereal.rl.set_source_policy_state(state, policy_state)
        transition, mask, state = source.next(state)

    The tree is copied.
    """
    return set_policy_state(state, policy_state)
