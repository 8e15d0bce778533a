"""States through `flax.serialization`: `to_bytes({"model": params, "data": state})`.

Flax has a table of the types that it can save, and ours must be entered there. Cereal does not
import flax: whenever a loader makes a state or takes a step, it looks whether flax was imported.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ..base.errors import StateError
from ..base.pytree import data_fields, made_classes, set_copy
from ..pipeline.state import PipelineState
from .policy_slot import PolicySlot

# Static fields that are saved too: they belong to the state, not to the code that restores it.
_WRITTEN = {PipelineState: ("fingerprint",), PolicySlot: ("is_set",)}
_entered: set[type] = set()


def enter_into_flax() -> None:
    """If flax was imported: tells it how to save and restore our classes."""
    flax: Any = sys.modules.get("flax.serialization")
    if flax is None or len(_entered) == len(made_classes):
        return
    register = getattr(flax, "register_serialization_state", None)
    if register is None:  # it is being imported right now
        return
    for cls in tuple(made_classes):
        if cls not in _entered and not flax.is_serializable(cls):
            register(cls, partial(_to_state_dict, flax), partial(_from_state_dict, flax))
        _entered.add(cls)


def _names(node: Any) -> tuple[str, ...]:
    return data_fields(type(node)) + _WRITTEN.get(type(node), ())


def _to_state_dict(flax: Any, node: Any) -> dict[str, Any]:
    return {name: flax.to_state_dict(getattr(node, name)) for name in _names(node)}


def _from_state_dict(flax: Any, node: Any, found: Any) -> Any:
    names = _names(node)
    if not isinstance(found, dict) or set(found) != set(names):
        has = sorted(found) if isinstance(found, dict) else type(found).__name__
        raise StateError(
            f"the bytes hold {has} where a {type(node).__name__} has {sorted(names)}; restore into "
            f"a state of the same pipeline, made by its `init_state(key)`."
        )
    return set_copy(node, **{name: _restored(flax, node, name, found[name]) for name in names})


def _restored(flax: Any, node: Any, name: str, found: Any) -> Any:
    like = getattr(node, name)
    if isinstance(node, PolicySlot) and name == "value" and found is not None:
        like = node.spec.tree  # an empty slot has no value to compare with
    made = flax.from_state_dict(like, found, name=name)
    if found is None:
        return made
    ours = partial(_as_array, node, name)
    return jax.tree.map(ours, like, made, is_leaf=lambda each: type(each) in _entered)


def _as_array(node: Any, name: str, like: Any, found: Any) -> Any:
    """A restored value as a JAX array, if the state has one there; checks its shape and dtype."""
    if not isinstance(like, jax.Array | jax.ShapeDtypeStruct):
        return found
    if jnp.shape(found) != like.shape or jnp.result_type(found) != like.dtype:
        raise StateError(
            f"the bytes hold {jnp.result_type(found)}{list(jnp.shape(found))} for `{name}` of a "
            f"{type(node).__name__}, which is {like.dtype}{list(like.shape)} here; restore into a "
            f"state of the same pipeline, made by its `init_state(key)`."
        )
    return jnp.asarray(found)
