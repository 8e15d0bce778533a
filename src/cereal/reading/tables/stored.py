"""Arrays in a store of chunks (HDF5, Zarr): chunks of rows are read whole, and kept for a while.

    store                          element                         read
    x  float32[1000, 3]            {"x": float32[3],               chunks of rows, each decoded once
    y  records (a, b)[1000]         "y": {"a": ..., "b": ...}}     while it is kept

An array that lies in one piece in its file is mapped into memory instead.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...base.errors import PipelineError
from ...base.fitting import is_numeric
from ..leaves import ArrayForm
from ..read_context import read_context
from ..readers.arrays import take_rows
from ..structure import flatten
from .chosen import chosen, mapped_tree
from .columns import ragged_form
from .table import Table, objects

_LOOKED_AT = 1 << 14  # rows of which the lengths are compared when a source is built


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """An array of a store, as plain data."""

    name: str
    length: int
    shape: tuple[int, ...]  # of a row
    dtype: np.dtype[Any]  # of its values in memory; `object` for text and ragged rows
    rows: int  # of a piece that is read whole
    ragged: bool = False
    place: tuple[str, int, np.dtype[Any]] | None = (
        None  # where it is mapped from: file, byte, dtype
    )

    @property
    def row_bytes(self) -> int:
        return max(1, math.prod(self.shape) * self.dtype.itemsize)


@dataclasses.dataclass(frozen=True)
class Unreadable:
    """A member of a store that is no array of rows, and why."""

    name: str
    why: str
    quiet: bool = False  # it is left out, unless the user names it


def stored_arrays(
    tree: Any, keys: Any, owner: str, where: str, make: Callable[[str], StoredArray]
) -> Any:
    """The arrays that `keys` chooses of a tree of names; `make` opens one by its name."""

    def one(leaf: Any) -> StoredArray:
        if isinstance(leaf, Unreadable):
            raise PipelineError(
                f"{owner}: {leaf.name!r} of {where!r} {leaf.why}; choose others by `keys=`."
            )
        return make(leaf)

    found = chosen(tree, keys, owner, repr(where))
    named = {keys} if isinstance(keys, str) else set(keys or ())
    return mapped_tree(one, _without_quiet(found, {name.strip("/") for name in named}))


def _without_quiet(tree: Any, named: set[str]) -> Any:
    """The tree without what the user has not named, and need not be told about."""
    if not isinstance(tree, dict):
        return tree
    found = {}
    for name, inner in tree.items():
        kept = _without_quiet(inner, named)
        quiet = isinstance(kept, Unreadable) and kept.quiet and kept.name not in named
        if kept != {} and not quiet:
            found[name] = kept
    return found


class StoredTable(Table):
    """A table of arrays of one length, which a library reads, or which are mapped."""

    most_bytes: int = 1 << 30
    """How many bytes of decoded pieces are kept."""
    _reopened = ("_maps", "_pieces")

    def __init__(self, arrays: Any, owner: str) -> None:
        self._arrays = stored_in(arrays)
        if not self._arrays:
            raise PipelineError(f"{owner}: {self.name} has no arrays.")
        lengths = {array.name: array.length for array in self._arrays}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name!r} {length}" for name, length in lengths.items())
            raise PipelineError(
                f"{owner}: all arrays must have one length, but {self.name} has {listed}; choose "
                f'arrays by `keys=["...", "..."]`.'
            )
        self._length = self._arrays[0].length
        if not self._length:
            raise PipelineError(f"{owner}: the arrays of {self.name} have no rows.")
        self.form = mapped_tree(self._form, arrays)
        self.quick = all(array.place is not None for array in self._arrays)
        self.blocks = _blocks(self._arrays)

    def __len__(self) -> int:
        return self._length

    @abstractmethod
    def check(self) -> None:
        """Raises if the files have changed."""

    @abstractmethod
    def read(self, array: StoredArray, pieces: Sequence[int]) -> list[np.ndarray]:
        """Reads these pieces of an array; their numbers ascend."""

    def _form(self, array: StoredArray) -> Any:
        if not array.ragged:
            return form_of_dtype(array.dtype, array.shape)
        some = self._taken(array, np.arange(min(self._length, _LOOKED_AT)))
        lengths = [len(row) for row in some]
        least, most = min(lengths), max(lengths)
        if least != most:
            return ragged_form(f"{least} to {most}", most)
        return ArrayForm((least,), some[0].dtype)

    @cached_property
    def _maps(self) -> dict[str, np.ndarray]:
        return {
            array.name: np.asarray(
                np.memmap(path, dtype, "r", offset, (array.length, *array.shape))
            )
            for array in self._arrays
            if array.place is not None
            for path, offset, dtype in [array.place]
        }

    @cached_property
    def _pieces(self) -> Pieces:
        by_name = {array.name: array for array in self._arrays}
        return Pieces(lambda name, numbers: self.read(by_name[name], numbers), self.most_bytes)

    def take(self, indices: np.ndarray) -> list[Any]:
        self.check()
        indices = indices.astype(np.int64, copy=False)
        found: list[Any] = []
        for array in self._arrays:
            found += columns_of_array(self._taken(array, indices), array.ragged)
        return found

    def _taken(self, array: StoredArray, indices: np.ndarray) -> np.ndarray:
        """Rows of an array."""
        if array.place is not None:
            mapped = self._maps[array.name]
            if mapped.dtype.names is None:
                return take_rows(mapped, indices, array.name)
            return mapped[indices].astype(array.dtype, copy=False)
        owner = indices // array.rows
        first = owner[0] if len(owner) else 0
        if (owner == first).all():
            piece = self._pieces.get(array.name, [int(first)])[int(first)]
            return take_plain(piece, indices - first * array.rows)
        order = np.argsort(owner, kind="stable")
        numbers, begins = np.unique(owner[order], return_index=True)
        pieces = self._pieces.get(array.name, numbers.tolist())
        plain = array.dtype.names is None and not array.dtype.hasobject
        empty: Any = read_context().empty if plain else np.empty
        out = empty((len(indices), *array.shape), array.dtype)
        for number, lanes in zip(numbers.tolist(), np.split(order, begins[1:]), strict=True):
            out[lanes] = pieces[number][indices[lanes] - number * array.rows]
        return out


def stored_in(tree: Any) -> list[StoredArray]:
    """The arrays of a tree, in the order of `jax.tree.leaves`."""
    return flatten(tree)[0]


def take_plain(piece: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Rows of a piece, in a new array."""
    if piece.dtype.names is None and is_numeric(piece.dtype):
        return take_rows(piece, rows, "")
    return piece[rows]


def form_of_dtype(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """What rows of this dtype look like: numbers, a dict for records, Python objects."""
    if dtype.names is not None:
        return {
            name: form_of_dtype(dtype[name].base, (*shape, *dtype[name].shape))
            for name in dtype.names
        }
    if is_numeric(dtype):
        return ArrayForm(shape, dtype.newbyteorder("="))
    if dtype.kind in "Mm":
        return objects("a time; make it a number in a HostMapTransform")
    return objects("text" if dtype.kind in "OUST" else f"{dtype}")


def columns_of_array(values: np.ndarray, ragged: bool = False) -> list[Any]:
    """The columns of rows: arrays of numbers, or lists of objects; of records, one for a field."""
    if values.dtype.names is not None:
        return [
            column
            for name in sorted(values.dtype.names)
            for column in columns_of_array(values[name])
        ]
    if is_numeric(values.dtype):
        return [values]
    if ragged:
        alike = len({len(row) for row in values}) == 1
        return [np.stack(values) if alike else list(values)]  # type: ignore[arg-type]
    return [list(values) if values.dtype.kind in "MmV" else values.tolist()]


def _blocks(arrays: Sequence[StoredArray]) -> np.ndarray | None:
    """The lengths of the pieces of the largest array that is read in pieces."""
    pieced = [array for array in arrays if array.place is None and array.rows > 1]
    if not pieced:
        return None
    largest = max(pieced, key=lambda array: array.row_bytes)
    begins = np.arange(0, largest.length, largest.rows)
    return np.diff(begins, append=largest.length)


class Pieces:
    """Pieces of arrays, kept up to a number of bytes; those that are missing are read together."""

    def __init__(
        self, read: Callable[[str, Sequence[int]], list[np.ndarray]], most_bytes: int
    ) -> None:
        self._read, self._most = read, most_bytes
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._kept: OrderedDict[tuple[str, int], tuple[np.ndarray, int]] = OrderedDict()
        self._bytes = 0
        self.loads = 0  # how many pieces were read

    def get(self, name: str, numbers: Sequence[int]) -> dict[int, np.ndarray]:
        """These pieces of an array."""
        found = self._known(name, numbers)
        if len(found) == len(numbers):
            return found
        with self._reading:  # one thread reads; meanwhile others may have what they need
            found |= self._known(name, numbers)
            missing = [number for number in numbers if number not in found]
            if missing:
                read = dict(zip(missing, self._read(name, missing), strict=True))
                with self._lock:
                    for number, piece in read.items():
                        self._put((name, number), piece)
                found |= read
        return found

    def _known(self, name: str, numbers: Sequence[int]) -> dict[int, np.ndarray]:
        found = {}
        with self._lock:
            for number in numbers:
                known = self._kept.get((name, number))
                if known is not None:
                    self._kept.move_to_end((name, number))
                    found[number] = known[0]
        return found

    def _put(self, key: tuple[str, int], piece: np.ndarray) -> None:
        self.loads += 1
        size = _bytes_of(piece)
        self._kept[key] = piece, size
        self._bytes += size
        while self._bytes > self._most and len(self._kept) > 1:
            self._bytes -= self._kept.popitem(last=False)[1][1]


def _bytes_of(piece: np.ndarray) -> int:
    if not piece.dtype.hasobject:
        return piece.nbytes
    inside = (
        (getattr(x, "nbytes", 64) for x in piece.reshape(-1)) if piece.dtype.kind == "O" else ()
    )
    return piece.nbytes + sum(inside)
