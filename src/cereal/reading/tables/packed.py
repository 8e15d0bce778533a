"""Columns of numbers, packed: those of one dtype are the rows of one array.

    a  0 1 2 3 4 5                take([4, 1])  ->   a  4 1
    b  6 7 8 9 ...     [2, n]                        b  . 7       one gather for both columns

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
from ...base.fitting import canonical, is_numeric, narrowed
from ..leaves import OBJECT, ArrayForm
from ..read_context import read_context
from ..structure import flatten
from .columns import Numbers
from .pieces import Kept, PiecedTable
from .table import narrow_column

_WORTH_IT = 4  # columns of one dtype, from which on packing a piece is quicker than it costs


class Packed:
    """Room for n rows of columns of these forms."""

    def __init__(self, forms: Sequence[ArrayForm], n: int) -> None:
        self._count = len(forms)
        self.filled: set[int] = set()  # where the pieces begin that are there
        self._together: list[tuple[list[int], np.ndarray]] = []  # leaves, and [leaves, n]
        self._alone: list[tuple[int, np.ndarray]] = []  # a leaf, and [n, ...]
        for leaves in _by_dtype(forms).values():
            self._together.append((leaves, np.empty((len(leaves), n), forms[leaves[0]].dtype)))
        for leaf, form in enumerate(forms):
            if form.shape:
                self._alone.append((leaf, np.empty((n, *form.shape), form.dtype)))

    def put(self, begin: int, parts: Sequence[Any]) -> bool:
        """Copies the parts of a piece to the rows from `begin` on.

        False, and the rows stay empty, if a value is missing, or a part has another form.
        """
        places = [(leaf, room[at]) for leaves, room in self._together
                  for at, leaf in enumerate(leaves)]  # fmt: skip
        for leaf, room in [*places, *self._alone]:
            part = parts[leaf]
            if not isinstance(part, Numbers) or part.missing is not None:
                return False
            if part.form != ArrayForm(room.shape[1:], room.dtype):
                return False
        for leaf, room in [*places, *self._alone]:
            values = parts[leaf].values
            room[begin : begin + len(values)] = values
        self.filled.add(begin)
        return True

    def take(self, rows: np.ndarray) -> list[Any]:
        """A column for each leaf."""
        columns: list[Any] = [None] * self._count
        for leaves, room in self._together:
            for leaf, column in zip(leaves, _gathered(room, rows), strict=True):
                columns[leaf] = column
        for leaf, room in self._alone:
            columns[leaf] = Numbers(room).take(rows)
        return columns


def _gathered(room: np.ndarray, rows: np.ndarray) -> Sequence[Any]:
    """room[:, rows], with the dtype that JAX has."""
    dtype = canonical(room.dtype)
    if len(room) == 1:
        return [Numbers(room[0]).take(rows)]
    if dtype == room.dtype:
        out = read_context().empty((len(room), len(rows)), dtype)
        return list(room.take(rows, 1, out, "clip"))
    found = room.take(rows, 1)
    try:
        return list(narrowed(found, dtype))
    except PipelineError:
        return [narrow_column(column) for column in found]


def _by_dtype(forms: Sequence[ArrayForm]) -> dict[Any, list[int]]:
    """The leaves that are single numbers, by dtype."""
    found: dict[Any, list[int]] = {}
    for leaf, form in enumerate(forms):
        if not form.shape:
            found.setdefault(form.dtype, []).append(leaf)
    return found


@dataclasses.dataclass
class PackedPiece:
    """A piece whose rows are those of a `Packed` from `begin` on."""

    packed: Packed
    begin: int

    def take(self, rows: np.ndarray) -> list[Any]:
        return self.packed.take(rows + self.begin)


class PackedTable(PiecedTable):
    """A table in pieces that packs what it has read."""

    packs: bool = True
    """Whether pieces are copied into packed arrays; not, if they lie in the memory of a file."""
    _reopened = ("_whole",)

    @cached_property
    def _forms(self) -> list[ArrayForm] | None:
        """The forms of the columns; None if one of them is not of numbers."""
        if not self.packs:
            return None
        forms = flatten(self.form)[0]
        plain = all(form.dtype != OBJECT and is_numeric(np.dtype(form.dtype)) for form in forms)
        return forms if plain else None

    @cached_property
    def _whole(self) -> Packed | None:
        """Room for all rows, if they fit. (Memory that nobody has written to yet takes none.)"""
        if self._forms is None:
            return None
        row = sum(math.prod(form.shape) * np.dtype(form.dtype).itemsize for form in self._forms)
        return Packed(self._forms, len(self)) if row * len(self) <= self.most_bytes else None

    @cached_property
    def _kept(self) -> Kept:
        return Kept(self._load_packed, self.most_bytes, self.at_least)

    def _load_packed(self, number: int) -> tuple[Any, int]:
        parts, size = self.load(number)
        whole, begin = self._whole, int(self._ends[number] - self.lengths[number])
        if whole is not None:
            if whole.put(begin, parts):
                return PackedPiece(whole, begin), 0
            self._whole = None  # a value is missing: from now on, pieces are kept one by one
        elif self._forms and max(map(len, _by_dtype(self._forms).values()), default=0) >= _WORTH_IT:
            packed = Packed(self._forms, self.lengths[number])
            if packed.put(0, parts):
                return PackedPiece(packed, 0), size
        return parts, size

    def columns_of(self, number: int, rows: np.ndarray) -> list[Any]:
        piece: Any = self.piece(number)
        return piece.take(rows) if isinstance(piece, PackedPiece) else _each(piece, rows)

    def take(self, indices: np.ndarray) -> list[Any]:
        whole = self._whole
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
