"""Columns of numbers, packed: those of one dtype are the columns of one array.

    a b
    0 6       take([2, 0])  ->   2 8   ->   a  2 0       one gather for all columns, whose rows lie
    1 7                          0 6        b  8 6       together; then the batch is turned
    2 8

A gather per column would read another line of the processor's cache for every number: of 32
columns it takes five times as long (1,024 rows of a million).

If all of a table fits into the bytes that it may keep, its pieces are packed into one such array,
and any rows are gathered from it at once. Otherwise each piece is packed by itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...base.errors import PipelineError
from ...base.fitting import canonical, check_fits, is_numeric
from ..leaves import OBJECT, ArrayForm
from ..read_context import read_context
from ..structure import flatten
from .columns import Numbers
from .pieces import Kept, PiecedTable

_WORTH_IT = 4  # columns of one dtype, from which on packing a piece is quicker than it costs


class Packed:
    """Room for n rows of columns of these forms, with the dtypes that JAX has now."""

    def __init__(self, forms: Sequence[ArrayForm], n: int) -> None:
        self._forms = forms
        self.filled: set[int] = set()  # where the pieces begin that are there
        self._together: list[tuple[list[int], np.ndarray]] = []  # leaves, and [n, leaves]
        self._alone: list[tuple[int, np.ndarray]] = []  # a leaf, and [n, ...]
        for dtype, leaves in _by_dtype(forms).items():
            if len(leaves) > 1:
                self._together.append((leaves, np.empty((n, len(leaves)), dtype)))
            else:
                self._alone.append((leaves[0], np.empty(n, dtype)))
        for leaf, form in enumerate(forms):
            if form.shape:
                self._alone.append((leaf, np.empty((n, *form.shape), canonical(form.dtype))))

    def put(self, begin: int, parts: Sequence[Any]) -> bool:
        """Copies the parts of a piece to the rows from `begin` on.

        False, and the rows stay empty, if a value is missing, if a part has another form, or if a
        number does not fit JAX's dtype.
        """
        for part, form in zip(parts, self._forms, strict=True):
            if not isinstance(part, Numbers) or part.missing is not None or part.form != form:
                return False
            try:
                check_fits(part.values)
            except PipelineError:
                return False
        for leaves, room in self._together:
            for at, leaf in enumerate(leaves):
                values = parts[leaf].values
                room[begin : begin + len(values), at] = values
        for leaf, room in self._alone:
            values = parts[leaf].values
            room[begin : begin + len(values)] = values
        self.filled.add(begin)
        return True

    def take(self, rows: np.ndarray) -> list[Any]:
        """A column for each leaf."""
        columns: list[Any] = [None] * len(self._forms)
        empty = read_context().empty
        for leaves, room in self._together:
            found = np.empty((len(rows), len(leaves)), room.dtype)
            out = empty((len(leaves), len(rows)), room.dtype)
            out[...] = room.take(rows, 0, found, "clip").T
            for leaf, column in zip(leaves, out, strict=True):
                columns[leaf] = column
        for leaf, room in self._alone:
            out = empty((len(rows), *room.shape[1:]), room.dtype)
            columns[leaf] = room.take(rows, 0, out, "clip")
        return columns


def _by_dtype(forms: Sequence[ArrayForm]) -> dict[Any, list[int]]:
    """The leaves that are single numbers, by the dtype that JAX has for them."""
    found: dict[Any, list[int]] = {}
    for leaf, form in enumerate(forms):
        if not form.shape:
            found.setdefault(canonical(form.dtype), []).append(leaf)
    return found


@dataclasses.dataclass
class PackedPiece:
    """A piece whose rows are those of a `Packed` from `begin` on."""

    packed: Packed
    begin: int

    def take(self, rows: np.ndarray) -> list[Any]:
        return self.packed.take(rows + self.begin)


@dataclasses.dataclass
class _Store:
    """What is kept of a table."""

    kept: Kept
    whole: Packed | None  # room for all rows, if they fit


class PackedTable(PiecedTable):
    """A table in pieces that packs what it has read."""

    packs: bool = True
    """Whether pieces are copied into packed arrays; not, if they lie in the memory of a file."""
    _reopened = ("_stores",)

    @cached_property
    def _forms(self) -> list[ArrayForm] | None:
        """The forms of the columns; None if one of them is not of numbers."""
        if not self.packs:
            return None
        forms = flatten(self.form)[0]
        plain = all(form.dtype != OBJECT and is_numeric(np.dtype(form.dtype)) for form in forms)
        return forms if plain else None

    @cached_property
    def _stores(self) -> dict[Any, _Store]:
        return {}

    @property
    def _store(self) -> _Store:
        """What is kept with the dtypes that JAX has now (`jax_enable_x64`)."""
        wide = canonical(np.int64)
        found = self._stores.get(wide)
        if found is None:
            made = _Store(Kept(self._load_packed, self.most_bytes, self.at_least), self._room())
            found = self._stores.setdefault(wide, made)
        return found

    @property
    def _kept(self) -> Kept:  # type: ignore[override]
        return self._store.kept

    def _room(self) -> Packed | None:
        """Room for all rows, if they fit. (Memory that nobody has written to yet takes none.)"""
        if self._forms is None:
            return None
        row = sum(math.prod(f.shape) * canonical(f.dtype).itemsize for f in self._forms)
        return Packed(self._forms, len(self)) if row * len(self) <= self.most_bytes else None

    def _load_packed(self, number: int) -> tuple[Any, int]:
        parts, size = self.load(number)
        store, begin = self._store, int(self._ends[number] - self.lengths[number])
        if store.whole is not None:
            if store.whole.put(begin, parts):
                return PackedPiece(store.whole, begin), 0
            store.whole = None  # a value is missing: from now on, pieces are kept one by one
        elif self._forms and max(map(len, _by_dtype(self._forms).values()), default=0) >= _WORTH_IT:
            packed = Packed(self._forms, self.lengths[number])
            if packed.put(0, parts):
                return PackedPiece(packed, 0), size
        return parts, size

    def columns_of(self, number: int, rows: np.ndarray) -> list[Any]:
        piece: Any = self.piece(number)
        return piece.take(rows) if isinstance(piece, PackedPiece) else _each(piece, rows)

    def take(self, indices: np.ndarray) -> list[Any]:
        whole = self._store.whole
        if whole is None or not self._is_in(whole, indices):
            return super().take(indices)
        return whole.take(indices)

    def _is_in(self, whole: Packed, indices: np.ndarray) -> bool:
        """Whether these rows are in it now; those that are not are read."""
        if len(whole.filled) == len(self.lengths):
            return True
        one = self.one_piece(indices)
        owners: list[Any] = [one]
        if one is None:
            owners = np.unique(np.searchsorted(self._ends, indices, side="right")).tolist()
        pieces: list[Any] = [self.piece(number) for number in owners]
        return all(isinstance(piece, PackedPiece) and piece.packed is whole for piece in pieces)


def _each(parts: Sequence[Any], rows: np.ndarray) -> list[Any]:
    return [part.take(rows) for part in parts]
