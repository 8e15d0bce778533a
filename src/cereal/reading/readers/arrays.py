"""Readers of arrays, in memory or in files."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ...base.fitting import canonical, narrowed
from ..element_batch import ElementBatch
from ..read_context import read_context
from ..rows import Rows
from ..structure import Structure
from .mapped_files import MappedFiles, mapped_root
from .reader import Reader, TakeReader


class Arrays:
    """A list of arrays for reading; those that are mapped from a file are pickled as its name."""

    def __init__(self, leaves: Sequence[Any], seen: Any = None) -> None:
        # Plain arrays: indexing a memmap makes another memmap, which is slower.
        self.leaves = [np.asarray(leaf() if isinstance(leaf, partial) else leaf) for leaf in leaves]
        self.files = MappedFiles(self.leaves)
        if seen:
            self.files.watch(seen)

    def __reduce__(self) -> tuple[Any, ...]:
        leaves = [as_file(leaf) for leaf in self.leaves]
        again = {os.path.abspath(leaf.args[0]) for leaf in leaves if isinstance(leaf, partial)}
        seen = {path: known for path, known in self.files.seen.items() if path in again}
        return Arrays, (leaves, seen)


def as_file(leaf: Any) -> Any:
    """A call that maps this part of a file again; an array that is not in a file, unchanged."""
    root, place = place_of(leaf)
    flags = leaf.flags
    if root is None or root.mode == "c" or not (flags.c_contiguous or flags.f_contiguous):
        return leaf  # what was written into a mapping of mode "c" is not in the file
    if not _is_of_file(leaf, root.filename):
        return leaf
    order = "C" if flags.c_contiguous else "F"
    path = os.path.abspath(root.filename)
    return partial(np.memmap, path, leaf.dtype, "r", place, leaf.shape, order)


def _is_of_file(array: np.ndarray, path: Any) -> bool:
    """Whether the file of this name is still the one that is mapped, and not a new one."""
    address, inode = array.__array_interface__["data"][0], str(os.stat(path).st_ino)
    try:
        with open("/proc/self/maps") as maps:
            lines = [line.split(None, 5) for line in maps]
    except OSError:  # not Linux: nobody can tell
        return True
    for bounds, _, _, _, mapped, *_ in lines:
        begin, _, end = bounds.partition("-")
        if int(begin, 16) <= address < int(end, 16):
            return mapped == inode
    return array.size == 0


def place_of(leaf: Any) -> tuple[Any, int]:
    """The mapped file that holds an array, and the place in it where the array begins."""
    root = mapped_root(leaf)
    if root is None or not os.path.exists(root.filename):
        return None, 0
    begin = leaf.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return root, begin + root.offset


def digest_of_file(leaf: Any) -> Any:
    """For a file: its name, size and time, and the array's place in it. Otherwise the values."""
    root, place = place_of(leaf)
    if root is None:
        return np.asarray(leaf)
    path = os.path.abspath(root.filename)
    status = os.stat(path)
    shape = [leaf.shape, leaf.strides, str(leaf.dtype)]
    return [path, status.st_size, status.st_mtime_ns, place, *shape]


@dataclasses.dataclass
class ArraysReader(TakeReader):
    """Rows of arrays, in memory or in files; with `index_key`, the index of each is added."""

    label: str
    arrays: Arrays
    names: Sequence[str]  # of the arrays, in errors
    structure: Structure  # with the index, if it is added
    index_at: int | None = None  # the place of the index among the leaves
    cuts: Any = None  # for each array, slices of the axes of a row (None: whole rows)

    @property
    def own_memory(self) -> bool:
        return True

    def narrowed(self, parts: Any) -> Any:
        own = [part for at, part in enumerate(parts) if at != self.index_at]
        cuts = [_as_slices(part) for part in own]
        whole = any(cut is None and part is not None for cut, part in zip(cuts, own, strict=True))
        return None if whole else dataclasses.replace(self, cuts=cuts)

    def _views(self) -> list[np.ndarray]:
        """The arrays; if only parts of rows are wanted, views of these parts."""
        if self.cuts is None:
            return self.arrays.leaves
        pairs = zip(self.arrays.leaves, self.cuts, strict=True)
        return [leaf if cut is None else leaf[(slice(None), *cut)] for leaf, cut in pairs]

    def take(self, indices: np.ndarray) -> list[np.ndarray]:
        self.arrays.files.check()
        named = zip(self._views(), self.names, strict=True)
        found = [take_rows(leaf, indices, name) for leaf, name in named]
        if self.index_at is not None:
            few = len(self.arrays.leaves[0]) <= 2**31
            index = indices.astype(np.int32 if few else np.int64)
            found.insert(self.index_at, index if few else narrowed(index, canonical(index.dtype)))
        return found


def _as_slices(part: Any) -> Any:
    """Sorted indices of each axis as slices, None if one of them has gaps."""
    if part is None:
        return None
    if any(kept is not None and kept[-1] - kept[0] + 1 != len(kept) for kept in part):
        return None
    return tuple(
        slice(None) if kept is None else slice(int(kept[0]), int(kept[-1]) + 1) for kept in part
    )


def take_rows(array: np.ndarray, indices: np.ndarray, name: str) -> np.ndarray:
    """The rows of an array, in memory that JAX can use without a copy."""
    dtype = canonical(array.dtype)
    out = read_context().empty((len(indices), *array.shape[1:]), dtype)
    if dtype != array.dtype or not array.flags.c_contiguous:
        out[...] = narrowed(array[indices], dtype, name)
        return out
    if not array.flags.aligned and array.size and len(indices):  # NumPy would copy all of it first
        in_bytes = lambda x: x.reshape(len(x), -1).view(np.uint8)  # noqa: E731
        np.take(in_bytes(array), indices, axis=0, out=in_bytes(out), mode="clip")
        return out
    # With `mode="raise"` NumPy would read into a buffer of its own first, and then copy. (The
    # function `np.take` takes twice as long as the method, for a thousand numbers.)
    return array.take(indices, 0, out, "clip")


@dataclasses.dataclass
class WindowReader(TakeReader):
    """Windows over arrays: `length` moments, cut into parts of these lengths."""

    label: str
    arrays: Arrays
    names: Sequence[str]
    structure: Structure
    stride: int
    parts: tuple[int, ...]  # the whole window; or a context and a target
    cuts: Any = None  # for each leaf, slices of its axes (None: the whole part)

    def narrowed(self, parts: Any) -> Any:
        cuts = [_as_slices(part) for part in parts]
        whole = any(cut is None and part is not None for cut, part in zip(cuts, parts, strict=True))
        return None if whole else dataclasses.replace(self, cuts=cuts)

    def _take_cut(self, starts: np.ndarray) -> list[np.ndarray]:
        """Parts of windows: each leaf is read by itself."""
        found, at = [], 0
        for length, cuts in zip(self.parts, self._cuts_by_part(), strict=True):
            for leaf, name, cut in zip(self.arrays.leaves, self.names, cuts, strict=True):
                time, *inner = cut or (slice(None),)
                begin, end, _ = time.indices(length)
                view = leaf[(slice(None), *inner)]
                windows = _all_windows(view, end - begin)[starts + (at + begin)]
                found.append(narrowed(windows, canonical(leaf.dtype), name))
            at += length
        return found

    def _cuts_by_part(self) -> list[list[Any]]:
        count = len(self.arrays.leaves)
        return [self.cuts[at : at + count] for at in range(0, len(self.cuts), count)]

    def take(self, indices: np.ndarray) -> list[np.ndarray]:
        self.arrays.files.check()
        starts, length = indices.astype(np.int64) * self.stride, sum(self.parts)
        if self.cuts is not None:
            return self._take_cut(starts)
        found = []
        for leaf, name in zip(self.arrays.leaves, self.names, strict=True):
            windows = _all_windows(leaf, length)[starts]
            found.append(narrowed(windows, canonical(leaf.dtype), name))
        cuts = np.cumsum([0, *self.parts])
        return [x[:, begin:end] for begin, end in itertools.pairwise(cuts) for x in found]


def _all_windows(array: np.ndarray, length: int) -> np.ndarray:
    """A view of every window, [windows, length, ...]; indexing the view makes a copy.

    `sliding_window_view` would take 30 us longer for each batch.
    """
    shape = (array.shape[0] - length + 1, length, *array.shape[1:])
    strides = (array.strides[0], *array.strides)
    return np.lib.stride_tricks.as_strided(array, shape, strides, writeable=False)


@dataclasses.dataclass
class RangeReader(Reader):
    """The integers from `start` on. If the index is a leaf too: whether it is the first leaf."""

    label: str
    start: int
    structure: Structure
    index_first: bool = False

    def read(self, rows: Rows) -> ElementBatch:
        values = (rows.index + self.start).astype(np.int32)
        leaves = [values]
        if self.structure.num_leaves == 2:
            leaves.insert(0 if self.index_first else 1, rows.index.astype(np.int32))
        return ElementBatch.of_arrays(len(values), leaves, self.structure)
