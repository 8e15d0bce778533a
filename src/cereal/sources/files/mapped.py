"""A tree of arrays, some of them in files, as the data of sources that Python reads."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import jax
import numpy as np

from ...host.host_data import HostData


class MappedArrays(HostData):
    """Arrays in files stay there; others are copied, so that a user's later writes do no harm."""

    def __init__(self, tree: Any) -> None:
        super().__init__()
        self.tree = jax.tree.map(lambda x: x if isinstance(x, np.memmap) else np.array(x), tree)

    def digest_of(self) -> Any:
        return jax.tree.map(_file_digest, self.tree)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles a file as its name, if it can be mapped again from it; other arrays as values."""
        tree = jax.tree.map(_as_file, self.tree)
        return _restored, (type(self), tree, getattr(self, "where", None))


def _as_file(leaf: Any) -> Any:
    """A call that maps this part of a file again; an array that is not in a file, unchanged."""
    root, place = _place_of(leaf)
    flags = leaf.flags
    if root is None or not (flags.c_contiguous or flags.f_contiguous):
        return leaf
    order = "C" if flags.c_contiguous else "F"
    path = os.path.abspath(root.filename)
    return partial(np.memmap, path, leaf.dtype, "r", place, leaf.shape, order)


def _restored(cls: Any, tree: Any, where: Any) -> Any:
    made = cls(jax.tree.map(lambda leaf: leaf() if isinstance(leaf, partial) else leaf, tree))
    if where is not None:
        made.where = where
    return made


def _place_of(leaf: Any) -> tuple[Any, int]:
    """The mapped file that holds an array, and the place in it where the array begins."""
    root = leaf
    while isinstance(getattr(root, "base", None), np.memmap):
        root = root.base
    path = getattr(root, "filename", None)
    if path is None or not os.path.exists(path):
        return None, 0
    begin = leaf.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return root, begin + root.offset


def _file_digest(leaf: Any) -> Any:
    """For a file: its name, size and time, and the array's place in it. Otherwise the values."""
    root, place = _place_of(leaf)
    if root is None:
        return np.asarray(leaf)
    path = os.path.abspath(root.filename)
    status = os.stat(path)
    shape = [leaf.shape, leaf.strides, str(leaf.dtype)]
    return [path, status.st_size, status.st_mtime_ns, place, *shape]
