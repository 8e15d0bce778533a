"""The structure of elements, as JAX sees it, but without JAX.

    {"b": (1, 2), "a": x}   leaves x, 1, 2      dicts by sorted keys, as `jax.tree.leaves` has them

Dicts, ordered dicts, lists, tuples, named tuples and None are plain. For a tree with any other node
(a dataclass that was registered with JAX, say), JAX is imported and asked.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

_NONE = type(None)
_SURELY_LEAVES = frozenset({int, float, bool, complex, str, bytes, np.ndarray})


@dataclasses.dataclass(frozen=True)
class Node:
    """A container: its type, the keys of a dict, and its children (None stands for a leaf)."""

    kind: type
    keys: tuple[Any, ...]
    children: tuple[Node | None, ...]

    @property
    def named(self) -> bool:
        """Whether it is a named tuple."""
        return issubclass(self.kind, tuple) and self.kind is not tuple

    def places(self) -> list[tuple[str, Any]]:
        """The name of each child, as in an error message, and how to get it: a key or a number."""
        if self.named:
            fields: Any = self.kind._fields  # type: ignore[attr-defined]
            return [(f".{name}", at) for at, name in enumerate(fields)]
        at = self.keys if issubclass(self.kind, dict) else range(len(self.children))
        return [(f"[{key!r}]", key) for key in at]

    def made_of(self, children: list[Any]) -> Any:
        """A container of this kind."""
        if self.kind is _NONE:
            return None
        if issubclass(self.kind, dict):
            return self.kind(zip(self.keys, children, strict=True))
        return self.kind(*children) if self.named else self.kind(children)


class _ForeignError(Exception):
    """A node that is not plain."""


def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Structure]:
    """The leaves of a tree, and its structure."""
    leaves: list[Any] = []
    try:
        return leaves, Structure(_node(tree, is_leaf, leaves))
    except _ForeignError:
        import jax

        leaves, known = jax.tree.flatten(tree, is_leaf=is_leaf)
        return leaves, Structure(None, (known.unflatten(range(len(leaves))),))


def structure_of(tree: Any) -> Structure:
    """The structure of a tree."""
    return flatten(tree)[1]


def _node(tree: Any, is_leaf: Callable[[Any], bool] | None, leaves: list[Any]) -> Node | None:
    kind = type(tree)
    if kind in _SURELY_LEAVES or (is_leaf is not None and is_leaf(tree)):
        leaves.append(tree)
        return None
    if kind is dict or kind is OrderedDict:
        keys = tuple(tree) if kind is OrderedDict else _sorted(tree)
        return Node(kind, keys, tuple(_node(tree[key], is_leaf, leaves) for key in keys))
    if kind is list or kind is tuple or (isinstance(tree, tuple) and hasattr(tree, "_fields")):
        return Node(kind, (), tuple(_node(each, is_leaf, leaves) for each in tree))
    if tree is None:
        return Node(_NONE, (), ())
    if _is_foreign(tree):
        raise _ForeignError
    leaves.append(tree)
    return None


def _sorted(tree: dict[Any, Any]) -> tuple[Any, ...]:
    try:
        return tuple(sorted(tree))
    except TypeError as error:
        raise ValueError(f"the keys of a dict cannot be sorted: {error}") from error


def _is_foreign(value: Any) -> bool:
    """Whether JAX sees inside this object. (Nothing is registered where JAX was never imported.)"""
    jax = sys.modules.get("jax")
    return jax is not None and not jax.tree_util.all_leaves([value])


class Structure:
    """The structure of a tree: plain nodes, or an example of a tree that JAX must flatten."""

    __slots__ = ("_example", "_known", "node", "num_leaves")

    def __init__(self, node: Node | None, example: tuple[Any, ...] = ()) -> None:
        self.node, self._example, self._known = node, example, None
        self.num_leaves = len(self.names())

    @property
    def plain(self) -> bool:
        """Whether JAX is not needed."""
        return not self._example

    @property
    def known(self) -> Any:
        """The same as JAX's own object."""
        if self._known is None:
            import jax

            example = self._example[0] if self._example else self.unflatten([0] * self.num_leaves)
            self._known = jax.tree.structure(example)
        return self._known

    def names(self) -> list[str]:
        """The place of each leaf as error messages print it, such as "['image'][0]"."""
        if self.plain:
            return list(_names(self.node, ""))
        import jax

        paths = jax.tree_util.tree_flatten_with_path(self._example[0])[0]
        return [jax.tree_util.keystr(path) for path, _ in paths]

    def unflatten(self, leaves: Any) -> Any:
        """A tree of these leaves."""
        if not self.plain:
            return self.known.unflatten(leaves)
        if self.node is None:
            return leaves[0]
        if not any(self.node.children):
            return self.node.made_of(leaves)
        left = iter(leaves)

        def made(node: Node | None) -> Any:
            return next(left) if node is None else node.made_of([*map(made, node.children)])

        return made(self.node)

    def flatten_up_to(self, tree: Any) -> list[Any]:
        """The leaves of a tree of this structure, or a ValueError. A leaf may be any object."""
        if not self.plain:
            return self.known.flatten_up_to(tree)
        leaves: list[Any] = []
        _flatten_up_to(self.node, tree, leaves)
        return leaves

    def of(self, inner: list[Structure]) -> Structure:
        """The structure in which each leaf is replaced by a tree of one of these structures."""
        trees = [each.unflatten(list(range(each.num_leaves))) for each in inner]
        return structure_of(self.unflatten(trees))

    def __repr__(self) -> str:
        if "jax" in sys.modules:
            return str(self.known)
        return f"PyTreeDef({self.unflatten([_Star()] * self.num_leaves)!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Structure):
            return NotImplemented
        if self.plain and other.plain:
            return self.node == other.node
        return self.plain == other.plain and self.known == other.known

    def __hash__(self) -> int:
        return hash(self.num_leaves)

    def __reduce__(self) -> tuple[Any, ...]:
        return Structure, (self.node, self._example)


class _Star:
    """A leaf, as JAX prints it."""

    def __repr__(self) -> str:
        return "*"


def _names(node: Node | None, before: str) -> Iterator[str]:
    if node is None:
        yield before
        return
    for (name, _), child in zip(node.places(), node.children, strict=True):
        yield from _names(child, before + name)


def _flatten_up_to(node: Node | None, tree: Any, leaves: list[Any]) -> None:
    if node is None:
        leaves.append(tree)
        return
    if type(tree) is not node.kind:
        raise ValueError(f"expected {node.kind.__name__}, got {type(tree).__name__}")
    if node.kind is _NONE:
        return
    if len(tree) != len(node.children):
        raise ValueError(f"expected {len(node.children)} parts, got {len(tree)}")
    if node.kind is OrderedDict and tuple(tree) != node.keys:
        raise ValueError(f"expected the keys {node.keys}, got {tuple(tree)}")
    for (_, at), child in zip(node.places(), node.children, strict=True):
        _flatten_up_to(child, tree[at], leaves)
