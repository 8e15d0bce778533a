"""A tree of arrays, some of them in files, as data of host sources."""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np

from ..core.host_data import HostData


class MappedArrays(HostData):
    """Arrays in files as they are; of arrays beside them copies, which nobody else writes into."""

    def __init__(self, tree: Any) -> None:
        super().__init__()
        self.tree = jax.tree.map(_own, tree)

    def digest_of(self) -> Any:
        return jax.tree.map(_file_digest, self.tree)

    def __reduce__(self) -> tuple[Any, ...]:
        """Files travel by name, if they can be opened again as they are."""
        tree = jax.tree.map(_as_file, self.tree)
        return _restored, (type(self), tree, {"where": getattr(self, "where", None)})


class _File:
    """A part of a file, to be mapped again."""

    def __init__(self, *place: Any) -> None:
        self.place = place

    def open(self) -> np.ndarray:
        path, dtype, offset, shape, order = self.place
        return np.memmap(path, dtype, mode="r", offset=offset, shape=shape, order=order)


def _as_file(leaf: Any) -> Any:
    root, place = _place_of(leaf)
    flags = leaf.flags
    if root is None or not (flags.c_contiguous or flags.f_contiguous):
        return leaf
    order = "C" if flags.c_contiguous else "F"
    return _File(os.path.abspath(root.filename), leaf.dtype, place, leaf.shape, order)


def _restored(cls: Any, tree: Any, words: dict[str, Any]) -> Any:
    made = cls(jax.tree.map(lambda leaf: leaf.open() if isinstance(leaf, _File) else leaf, tree))
    if words["where"] is not None:
        made.where = words["where"]
    return made


def _own(leaf: Any) -> Any:
    return leaf if isinstance(leaf, np.memmap) else np.array(leaf)


def _place_of(leaf: Any) -> tuple[Any, int]:
    """The mapped file that an array is a part of, and where in it the array begins."""
    root = leaf
    while isinstance(getattr(root, "base", None), np.memmap):
        root = root.base
    path = getattr(root, "filename", None)
    if path is None or not os.path.exists(path):
        return None, 0
    begin = leaf.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return root, begin + root.offset


def _file_digest(leaf: Any) -> Any:
    """A file by its name, size and time, and the place of the array in it; else the values."""
    root, place = _place_of(leaf)
    if root is None:
        return np.asarray(leaf)
    path = os.path.abspath(root.filename)
    status = os.stat(path)
    shape = [leaf.shape, leaf.strides, str(leaf.dtype)]
    return [path, status.st_size, status.st_mtime_ns, place, *shape]
