"""The proof that nodes of a pipeline with code of the user's in them do what they did.

Their arrays are arguments of compiled programs. What is left: methods and constants of their
classes, fields that are part of the structure, functions, and the same of all nodes inside them.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import jax
import numpy as np

from .held import Held
from .library import is_library
from .pytree import is_pytree
from .unchanged import Proof, proof_of, proof_of_class

_NO_CODE = (jax.Array, np.ndarray, np.generic, np.dtype, jax.ShapeDtypeStruct, enum.Enum)
_NO_CODE += (int, float, complex, str, bytes, type(None), jax.sharding.Sharding)


def proof_of_node(node: Any) -> Proof | None:
    """What proves that all code in a node is unchanged, or None."""
    classes: dict[type, None] = {}
    values: list[Any] = []
    _find(node, classes, values)
    proofs = [proof_of(*values), *map(proof_of_class, classes)]
    found = [proof for proof in proofs if proof is not None]
    if len(found) < len(proofs):
        return None
    return Proof(
        tuple(proof.key for proof in found),
        tuple(thing for proof in found for thing in proof.held),
        [array for proof in found for array in proof.arrays],
        [check for proof in found for check in proof.checks],
        [content for proof in found for content in proof.contents],
    )


def _find(node: Any, classes: dict[type, None], values: list[Any]) -> None:
    """Collects the user's classes in a node, and what must be proved besides."""
    cls: Any = type(node)
    if isinstance(node, _NO_CODE):
        return
    if isinstance(node, dict | list | tuple) and is_library(cls):
        for each in node.values() if isinstance(node, dict) else node:
            _find(each, classes, values)
    elif isinstance(node, Held):
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
    """Whether this has fields that stay, or that JAX asks for at every call."""
    params = getattr(node, "__dataclass_params__", None)
    if params is None or isinstance(node, type):
        return False
    return params.frozen or is_pytree(node)
