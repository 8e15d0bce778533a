"""The proof that nodes of a pipeline with the user's code in them still do the same.

Their arrays need no proof: they are arguments of compiled programs. To be proved: the methods and
constants of their classes, their static fields, their functions, and the same for all nodes inside.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from typing import Any

import jax
import numpy as np

from ..base.pytree import is_pytree
from .library import is_library
from .opaque import Opaque
from .unchanged import Proof, proof_of

# Methods that run when a pipeline is built, or that `dataclass` generates.
_BUILDING = {"__init__", "__post_init__", "__new__", "__setattr__", "__delattr__", "__repr__"}
_BUILDING |= {"__eq__", "__hash__", "__replace__", "__getstate__", "__setstate__", "__annotate__"}
_BUILDING |= {"__annotate_func__", "__init_subclass__", "__class_getitem__"}
_NO_CODE = (jax.Array, np.ndarray, np.generic, np.dtype, jax.ShapeDtypeStruct, enum.Enum)
_NO_CODE += (int, float, complex, str, bytes, type(None), jax.sharding.Sharding)


def proof_of_node(node: Any) -> Proof | None:
    """The proof that all code in a node is unchanged, or None if there is none."""
    classes: dict[type, None] = {}
    values: list[Any] = []
    _find(node, classes, values)
    checks: list[Any] = []
    for each in dict.fromkeys(each for cls in classes for each in cls.__mro__):
        if not is_library(each):
            checks.append((len, vars(each), len(vars(each))))
            for name, value in sorted(vars(each).items()):
                if _may_run(each, name, value):
                    checks.append((vars(each).get, name, value))
                    values.append(getattr(value, "fget", getattr(value, "__func__", value)))
    proof = proof_of(*values)
    return None if proof is None else proof._replace(checks=proof.checks + checks)


def _may_run(cls: type, name: str, value: Any) -> bool:
    """Whether a step may use this attribute of a class. (Fields belong to the instances.)"""
    if name.startswith("__"):
        return isinstance(value, types.FunctionType) and name not in _BUILDING
    is_field = name in getattr(cls, "__dataclass_fields__", ())
    return not is_field and not name.startswith(("_flat", "_abc"))


def _find(node: Any, classes: dict[type, None], values: list[Any]) -> None:
    """Collects the user's classes in a node, and other values that must be proved."""
    cls: Any = type(node)
    if isinstance(node, _NO_CODE):
        return
    if isinstance(node, dict | list | tuple) and is_library(cls):
        for each in node.values() if isinstance(node, dict) else node:
            _find(each, classes, values)
    elif isinstance(node, Opaque):
        _find(node.tree, classes, values)
        _find(node.fixed, classes, values)
    elif _has_fixed_fields(node):
        if not is_library(cls):
            classes[cls] = None
        for field in dataclasses.fields(cls):
            _find(getattr(node, field.name, None), classes, values)
    elif cls.__module__.partition(".")[0] != "cereal":
        values.append(node)


def _has_fixed_fields(node: Any) -> bool:
    """Whether its fields cannot change, or JAX reads them at every call."""
    params = getattr(node, "__dataclass_params__", None)
    if params is None or isinstance(node, type):
        return False
    return params.frozen or is_pytree(node)
