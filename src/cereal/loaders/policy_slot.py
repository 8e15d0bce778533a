"""The state of a policy inside the state of a pipeline.

A source of rollouts keeps the policy's parameters, and what the policy remembers, in a slot of its
state. Stages wrap that state in their own states. So the slot is found by walking through the
pytree of the state; everything around it stays as it is.

    BatchedStreamState( RolloutState( ..., PolicySlot(value), ... ), step )
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..base.capture import eager
from ..base.errors import StateError, UsageError
from ..base.fitting import check_fits
from ..base.pytree import pytree_dataclass, static_field
from ..base.spec import Spec, format_spec, is_array_like, strong
from ..device.transfer import copied

_SET = "state = loader.set_policy_state(state, policy_state)"


@pytree_dataclass
class PolicySlot:
    """A place for a policy state with the structure, shapes and dtypes of `spec`."""

    value: Any
    spec: Spec = static_field()
    is_set: bool = static_field(default=False)

    def filled(self, policy_state: Any) -> PolicySlot:
        """A slot that holds a copy of this policy state; it must match the spec."""
        return PolicySlot(_as_spec(policy_state, self.spec), self.spec, True)

    def get(self) -> Any:
        """The policy state; raises if none was set."""
        if not self.is_set:
            raise UsageError(
                f"no policy state was set: a state begins without one. Write `{_SET}` before the "
                f"first step, with a policy state like the template, {self.spec}."
            )
        return self.value


def empty_slot(spec: Spec) -> PolicySlot:
    """A slot in which nothing is set yet; a policy without state needs nothing."""
    if not spec.leaves:
        return PolicySlot(spec.tree, spec, True)
    return PolicySlot(None, spec)


def _is_slot(node: Any) -> bool:
    return isinstance(node, PolicySlot)


def find_slot(state: Any) -> PolicySlot:
    """The one slot of a state, inside any states of stages."""
    slots = [leaf for leaf in jax.tree.leaves(state, is_leaf=_is_slot) if _is_slot(leaf)]
    if not slots:
        raise UsageError(
            f"this state carries no policy: {type(state).__name__} is not of a pipeline that "
            f"begins with a source of rollouts; build the loader over one, such as GymnaxSource."
        )
    if len(slots) > 1:
        raise UsageError(
            f"this state carries {len(slots)} policies, and it is not clear which one is meant; "
            f"set it in the part of the state that belongs to the source."
        )
    return slots[0]


def get_policy_state(state: Any) -> Any:
    """The policy state in a state: the parameters that were set, and its memory now.

        policy = cereal.rl.get_policy_state(state)
        state = cereal.rl.set_loader_policy_state(state, {**policy, "params": params})

    These two lines give a recurrent policy new parameters; it keeps its memory.
    """
    return jax.tree.map(lambda leaf: leaf, find_slot(state).get())


def set_policy_state(state: Any, policy_state: Any) -> Any:
    """A copy of `state` that holds this policy state.

        state = loader.init_state(key)
        state = cereal.rl.set_loader_policy_state(state, policy_state)

    For many states at once write `jax.vmap(loader.set_policy_state)(states, policy_states)`.
    """
    filled = find_slot(state).filled(policy_state)
    return jax.tree.map(lambda leaf: filled if _is_slot(leaf) else leaf, state, is_leaf=_is_slot)


def _as_spec(policy_state: Any, spec: Spec) -> Any:
    if jax.tree.structure(policy_state) != spec.structure:
        raise StateError(
            f"the policy state has another structure than the template: it is "
            f"{_describe(policy_state)}, the template is {spec}. To change a part of it, write "
            f"`{{**loader.get_policy_state(state), 'params': params}}`."
        )
    return jax.tree_util.tree_map_with_path(_as_leaf, policy_state, spec.tree)


def _as_leaf(path: Any, leaf: Any, wanted: Any) -> Any:
    if isinstance(leaf, bool | int | float) and isinstance(wanted.dtype, np.dtype):
        fits = np.can_cast(type(leaf), wanted.dtype, "same_kind")
        leaf = np.asarray(leaf, wanted.dtype) if fits else leaf
    name = f"`policy_state{jax.tree_util.keystr(path)}`"
    if not is_array_like(leaf):
        raise StateError(f"{name} must be an array, got {type(leaf).__name__} ({leaf!r:.60}).")
    if isinstance(leaf, np.ndarray | np.generic):
        check_fits(leaf, name)
    # A copy: the user may write into his array, donate it, or donate the state to a program.
    if isinstance(leaf, np.ndarray):
        array = copied(leaf)
    else:
        array = jnp.copy(leaf) if eager() and isinstance(leaf, jax.Array) else jnp.asarray(leaf)
    if array.shape != wanted.shape or array.dtype != wanted.dtype:
        more = (
            " For one policy per state, of states made by `jax.vmap`, write "
            "`jax.vmap(loader.set_policy_state)(states, policy_states)`."
        )
        more = more if array.shape[1:] == wanted.shape else ""
        raise StateError(
            f"{name} is {format_spec(array)}, but {format_spec(wanted)} in the "
            f"`policy_state_template`; pass what the template promises, or build the source with "
            f"another template.{more}"
        )
    return strong(array)


def _describe(tree: Any) -> str:
    try:
        return format_spec(jax.tree.map(jnp.asarray, tree))
    except TypeError:
        return f"{type(tree).__name__} ({tree!r:.80})"
