"""What an element looks like: trees of `jax.ShapeDtypeStruct`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .errors import PipelineError
from .errors import format_spec as format_spec
from .fitting import canonical
from .fitting import is_numeric as is_numeric


class Spec:
    """A tree of `ShapeDtypeStruct` that is hashable, so that it can be static in a pytree."""

    __slots__ = ("_hash", "leaves", "structure")

    def __init__(self, tree: Any) -> None:
        leaves, self.structure = jax.tree.flatten(tree)
        self.leaves = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
        self._hash = hash((self.leaves, self.structure))

    @property
    def tree(self) -> Any:
        return jax.tree.unflatten(self.structure, self.leaves)

    def batched(self, size: int) -> Spec:
        """The spec of `size` elements stacked."""
        return Spec(
            jax.tree.map(lambda s: jax.ShapeDtypeStruct((size, *s.shape), s.dtype), self.tree)
        )

    @property
    def nbytes(self) -> int:
        return sum(leaf.size * leaf.dtype.itemsize for leaf in self.leaves)

    def zeros(self) -> Any:
        """A tree of NumPy arrays of zeros."""
        zeros = [np.zeros(leaf.shape, leaf.dtype) for leaf in self.leaves]
        return jax.tree.unflatten(self.structure, zeros)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Spec) or self._hash != other._hash:
            return False
        return self.leaves == other.leaves and self.structure == other.structure

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Spec, (self.tree,)  # hashes of strings differ between processes

    def __repr__(self) -> str:
        return format_spec(self.tree)


def spec_of(array: Any, drop_axes: int = 0) -> jax.ShapeDtypeStruct:
    """The spec of an array, without its first `drop_axes` axes."""
    return jax.ShapeDtypeStruct(array.shape[drop_axes:], canonical(array.dtype))


def named_places(tree: Any, name: str, is_leaf: Any = None) -> list[tuple[str, Any]]:
    """The leaves of a tree, each with its place as error messages print it: "`data['image']`"."""
    paths = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)[0]
    return [(f"`{name}{jax.tree_util.keystr(path)}`", leaf) for path, leaf in paths]


def as_override(tree: Any, owner: str, name: str = "element_spec_override") -> Spec | None:
    """Reads `element_spec_override=`: a tree of `ShapeDtypeStruct` or of arrays, or None."""
    for place, leaf in named_places(tree, name):
        if not isinstance(leaf, jax.ShapeDtypeStruct | jax.Array | np.ndarray | np.generic):
            raise PipelineError(
                f"{owner}: {place} must be a shape and a dtype, got {leaf!r:.60}; write "
                f"`jax.ShapeDtypeStruct(shape, dtype)`."
            )
    return None if tree is None else Spec(jax.tree.map(spec_of, tree))


def is_array_like(leaf: Any) -> bool:
    """Arrays and the numbers that JAX takes for arrays; not strings, lists or objects."""
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return True
    if isinstance(leaf, np.ndarray | np.generic):
        return is_numeric(leaf.dtype)
    return isinstance(leaf, bool | int | float | complex)


def strong(leaf: Any) -> Any:
    """An array without a weak type, so that a loop may carry it."""
    array = jnp.asarray(leaf)
    if jnp.issubdtype(array.dtype, jax.dtypes.extended) or not array.weak_type:
        return array
    return jax.lax.convert_element_type(array, array.dtype)


def without_weak_types(tree: Any) -> Any:
    """The same arrays without weak types. (Only arrays of JAX can have one.)"""
    return jax.tree.map(lambda x: strong(x) if getattr(x, "weak_type", False) else x, tree)


def at_least_float32(dtype: Any) -> Any:
    """The dtype to calculate in: this one, or float32 if this is narrower (or no float).

    (`jnp.promote_types` refuses under strict promotion.)
    """
    wide = jnp.issubdtype(dtype, jnp.inexact) and np.dtype(dtype).itemsize >= 4
    return np.dtype(dtype) if wide else np.dtype(np.float32)
