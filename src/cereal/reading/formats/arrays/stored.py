"""Arrays in a store of chunks (HDF5, Zarr): chunks of rows are read whole, and kept for a while.

    store                          element                         read
    x  float32[1000, 3]            {"x": float32[3],               chunks of rows, each decoded once
    y  records (a, b)[1000]         "y": {"a": ..., "b": ...}}     while it is kept

in one piece in its file      mapped into memory
all fit into `most_bytes`     an array in memory, filled by the chunks that are needed
larger                        chunks that were used last are kept, up to so many bytes
"""

from __future__ import annotations

import dataclasses
import math
import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from ....base.errors import PipelineError
from ....base.fitting import is_numeric
from ...leaves import ArrayForm
from ...read_context import read_context
from ...readers.arrays import take_rows
from ...structure import flatten
from ...tables.columns import ragged_form
from ...tables.table import Table, objects
from .chosen import chosen, mapped_tree

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

    called = "chunks"
    at_least: int = 1
    """How many blocks are kept, however large they are."""
    _reopened = ("_taken",)

    def __init__(self, arrays: Any, owner: str, most_bytes: int) -> None:
        self.most_bytes = most_bytes  # of decoded pieces that are kept
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

    @property
    def sizes(self) -> Sequence[int] | None:
        """About how many bytes each of its blocks takes when it is decoded."""
        row = sum(array.row_bytes for array in self._arrays if array.place is None)
        return None if self.blocks is None else (self.blocks * row).tolist()

    @property
    def lengths(self) -> Sequence[int]:
        return [] if self.blocks is None else self.blocks.tolist()

    def keep_at_least(self, count: int) -> None:
        """Lets it keep so many blocks; call it before the table is read."""
        self.at_least = count

    @abstractmethod
    def check(self) -> None:
        """Raises if the files have changed."""

    @abstractmethod
    def read(self, array: StoredArray, pieces: Sequence[int]) -> list[np.ndarray]:
        """Reads these pieces of an array; their numbers ascend."""

    def _form(self, array: StoredArray) -> Any:
        if not array.ragged:
            return form_of_dtype(array.dtype, array.shape)
        some = self._taken[array.name](np.arange(min(self._length, _LOOKED_AT)))
        lengths = [len(row) for row in some]
        least, most = min(lengths), max(lengths)
        if least != most:
            return ragged_form(f"{least} to {most}", most)
        return ArrayForm((least,), some[0].dtype)

    @cached_property
    def _taken(self) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
        """For each array, a function that gives rows of it."""
        plain = [x for x in self._arrays if x.place is None and not x.dtype.hasobject]
        fits = sum(array.length * array.row_bytes for array in plain) <= self.most_bytes
        pieces = Pieces(max(self.most_bytes, self.at_least * max(self.sizes or [0])))
        found: dict[str, Any] = {}
        for array in self._arrays:
            if array.place is not None:
                found[array.name] = Mapped(array)
            elif fits and array in plain:
                found[array.name] = Filled(array, partial(self.read, array))
            else:
                found[array.name] = InPieces(array, partial(self.read, array), pieces)
        return found

    def take(self, indices: np.ndarray) -> list[Any]:
        self.check()
        indices = indices.astype(np.int64, copy=False)
        found: list[Any] = []
        for array in self._arrays:
            found += columns_of_array(self._taken[array.name](indices), array.ragged)
        return found


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


Read = Callable[[Sequence[int]], list[np.ndarray]]  # numbers of pieces, which ascend -> the pieces


class Mapped:
    """Rows of an array that lies in one piece in a file."""

    def __init__(self, array: StoredArray) -> None:
        assert array.place is not None
        path, offset, dtype = array.place
        shape = (array.length, *array.shape)
        self._values = np.asarray(np.memmap(path, dtype, "r", offset, shape))
        self._name, self._dtype = array.name, array.dtype

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        if self._dtype.names is None:
            return take_rows(self._values, indices, self._name)
        return self._values[indices].astype(self._dtype, copy=False)


class Filled:
    """Rows of an array that fits into memory, which is filled by those pieces that are needed."""

    def __init__(self, array: StoredArray, read: Read) -> None:
        self._array, self._read, self._lock = array, read, threading.Lock()
        self._values = np.empty((array.length, *array.shape), array.dtype)
        self._there = np.zeros(-(-array.length // array.rows), bool)
        self.loads = 0  # how many pieces were read

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        owner, rows = indices // self._array.rows, self._array.rows
        if not self._there[owner].all():
            with self._lock:
                missing = np.unique(owner[~self._there[owner]]).tolist()
                read = self._read(missing) if missing else []  # by another thread, meanwhile
                for number, piece in zip(missing, read, strict=True):
                    self._values[number * rows : number * rows + len(piece)] = piece
                    self._there[number] = True
                self.loads += len(missing)
        return take_plain(self._values, indices)


class InPieces:
    """Rows of an array of which some pieces are kept."""

    def __init__(self, array: StoredArray, read: Read, pieces: Pieces) -> None:
        self._array, self._read, self.pieces = array, read, pieces

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        array, get = self._array, partial(self.pieces.get, self._array.name, self._read)
        owner = indices // array.rows
        first = int(owner[0]) if len(owner) else 0
        if (owner == first).all():
            return take_plain(get([first])[first], indices - first * array.rows)
        order = np.argsort(owner, kind="stable")
        numbers, begins = np.unique(owner[order], return_index=True)
        pieces = get(numbers.tolist())
        plain = array.dtype.names is None and not array.dtype.hasobject
        empty: Any = read_context().empty if plain else np.empty
        out = empty((len(indices), *array.shape), array.dtype)
        for number, lanes in zip(numbers.tolist(), np.split(order, begins[1:]), strict=True):
            out[lanes] = pieces[number][indices[lanes] - number * array.rows]
        return out


class Pieces:
    """Pieces of arrays, kept up to a number of bytes; those that are missing are read together."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._kept: OrderedDict[tuple[str, int], tuple[np.ndarray, int]] = OrderedDict()
        self._bytes = 0
        self.loads = 0  # how many pieces were read

    def get(self, name: str, read: Read, numbers: Sequence[int]) -> dict[int, np.ndarray]:
        """These pieces of an array."""
        found = self._known(name, numbers)
        if len(found) == len(numbers):
            return found
        with self._reading:  # one thread reads; meanwhile others may have what they need
            found |= self._known(name, numbers)
            missing = [number for number in numbers if number not in found]
            if missing:
                new = dict(zip(missing, read(missing), strict=True))
                with self._lock:
                    for number, piece in new.items():
                        self._put((name, number), piece)
                found |= new
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
