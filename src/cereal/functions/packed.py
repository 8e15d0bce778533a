"""A tree as a dict of one list, which C code makes from the results of a program.

    {its structure: [its arrays]}

JAX makes a class of ours by calling Python. There Python handles an interrupt, and the results of
the program are lost. For a dict and a list nothing in Python is called: also not to hash the key.
"""

from __future__ import annotations

from typing import Any

import jax

from .compiled import Latest

_known = Latest()


class _Structure:
    """The structure of a tree, known by its identity."""

    def __init__(self, of: Any) -> None:
        self.of = of


def packed(tree: Any) -> dict[Any, list[Any]]:
    """The tree as a dict of one list. Equal structures have one key, as long as it is in use."""
    leaves, structure = jax.tree.flatten(tree)
    return {_known.get(structure, lambda: _Structure(structure)): leaves}


def unpacked(tree: dict[Any, list[Any]]) -> Any:
    """The tree that was packed."""
    ((structure, leaves),) = tree.items()
    return jax.tree.unflatten(structure.of, leaves)
