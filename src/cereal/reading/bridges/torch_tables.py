"""Tables of arrays, and tables that are made of other tables.

ArraysTable    the rows of arrays that are in memory
ChosenTable    some rows of another table, by a list of indices
JoinedTable    the rows of several tables, one after another
NestedTable    row i of several tables, as one element: a dict or a tuple
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...base.errors import PipelineError
from ..leaves import ArrayForm
from ..read_context import read_context
from ..readers.arrays import Arrays, take_rows
from ..structure import flatten
from ..tables.table import Table


class ArraysTable(Table):
    """The rows of a tree of NumPy arrays, all of one length. They are not copied."""

    quick = True

    def __init__(self, tree: Any, name: str = "") -> None:
        leaves, structure = flatten(tree)
        self._arrays, self.name = Arrays(leaves), name
        self._names = [f"{name}{at}" for at in structure.names()]
        self.form = structure.unflatten(
            [ArrayForm(leaf.shape[1:], leaf.dtype) for leaf in self._arrays.leaves]
        )

    def __len__(self) -> int:
        return len(self._arrays.leaves[0])

    def take(self, indices: np.ndarray) -> list[Any]:
        named = zip(self._arrays.leaves, self._names, strict=True)
        return [take_rows(array, indices, name) for array, name in named]

    def digest(self) -> Any:
        return [self._names, self._arrays.leaves]


class ChosenTable(Table):
    """The rows of another table at these indices, in this order."""

    def __init__(self, table: Table, indices: Any, owner: str, name: str = "") -> None:
        self._table, self.name = table, name
        self._indices = _checked(indices, len(table), owner, name)
        self.form, self.classes, self.quick = table.form, table.classes, table.quick

    def __len__(self) -> int:
        return len(self._indices)

    def take(self, indices: np.ndarray) -> list[Any]:
        return self._table.take(self._indices[indices])

    def digest(self) -> Any:
        return [self._indices, self._table.digest()]


def _checked(given: Any, n: int, owner: str, name: str) -> np.ndarray:
    """The indices as int64, those below 0 counted from the end."""
    indices = np.asarray(given)
    if indices.size and (indices.ndim != 1 or indices.dtype.kind not in "iu"):
        raise PipelineError(
            f"{owner}: the indices of a {name} must be one axis of integers, got "
            f"{indices.dtype}{list(indices.shape)}; for a boolean mask write "
            f"`np.flatnonzero(mask)`."
        )
    indices = indices.astype(np.int64)
    wrong = np.flatnonzero((indices < -n) | (indices >= n))
    if len(wrong):
        raise PipelineError(
            f"{owner}: `indices[{wrong[0]}]` of a {name} is {indices[wrong[0]]}, and the dataset "
            f"below it has {n} elements; leave it out."
        )
    return np.where(indices < 0, indices + n, indices)


class JoinedTable(Table):
    """The rows of several tables of one form, one table after another."""

    def __init__(self, tables: Sequence[Table], name: str = "") -> None:
        self._tables, self.name = list(tables), name
        self._ends = np.cumsum([len(table) for table in tables])
        self.form, self.classes = tables[0].form, tables[0].classes
        self.quick = all(table.quick for table in tables)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def take(self, indices: np.ndarray) -> list[Any]:
        part = np.searchsorted(self._ends, indices, side="right")
        places = [np.flatnonzero(part == number) for number in np.unique(part)]
        found = []
        for at in places:
            number = int(part[at[0]])
            begin = int(self._ends[number - 1]) if number else 0
            found.append(self._tables[number].take(indices[at] - begin))
        if len(found) == 1:
            return found[0]
        columns = zip(*found, strict=True)
        return [_scattered(pieces, places, len(indices)) for pieces in columns]

    def digest(self) -> Any:
        return [table.digest() for table in self._tables]


def _scattered(pieces: Sequence[Any], places: Sequence[np.ndarray], n: int) -> Any:
    """One column of n values, of pieces with their places in it."""
    arrays = [piece for piece in pieces if isinstance(piece, np.ndarray)]
    if len(arrays) == len(pieces) and len({(x.dtype, x.shape[1:]) for x in arrays}) == 1:
        room = read_context().empty((n, *arrays[0].shape[1:]), arrays[0].dtype)
        for piece, at in zip(arrays, places, strict=True):
            room[at] = piece
        return room
    values: list[Any] = [None] * n
    for piece, at in zip(pieces, places, strict=True):
        for lane, value in zip(at.tolist(), piece, strict=True):
            values[lane] = value
    return values


class NestedTable(Table):
    """Row i of several tables of one length, in a dict or a tuple."""

    def __init__(self, tables: Mapping[str, Table] | tuple[Table, ...], name: str = "") -> None:
        keys = sorted(tables) if isinstance(tables, Mapping) else range(len(tables))
        self._tables: list[Table] = [tables[key] for key in keys]  # type: ignore[index]
        forms = [table.form for table in self._tables]
        mapping = isinstance(tables, Mapping)
        self.form: Any = dict(zip(keys, forms, strict=True)) if mapping else tuple(forms)
        self.quick, self.name = all(table.quick for table in self._tables), name

    def __len__(self) -> int:
        return len(self._tables[0])

    def take(self, indices: np.ndarray) -> list[Any]:
        return list(itertools.chain.from_iterable(each.take(indices) for each in self._tables))

    def digest(self) -> Any:
        keys = list(self.form) if isinstance(self.form, dict) else []
        return [keys, [table.digest() for table in self._tables]]
