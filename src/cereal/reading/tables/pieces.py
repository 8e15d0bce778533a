"""Tables in pieces (row groups, chunks, files): a piece is read whole, and kept for a while.

rows 0..99 | 100..199 | 200..249      take([7, 230, 3])  ->  pieces 0 and 2, each read once
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ..read_context import read_context
from .scattered import Scattered
from .table import Table


class PiecedTable(Table):
    """A table that is read piece by piece.

    For each leaf of `form` a piece has a *part*, which holds the values; `part.take(rows)` gives a
    column of them.
    """

    lengths: Sequence[int]
    """The number of rows of each piece."""
    sizes: Sequence[int] | None = None
    """About how many bytes each piece takes when it is read, if that is known beforehand."""
    most_bytes: int = 1 << 30
    """How many bytes of pieces are kept."""
    at_least: int = 1
    """How many pieces are kept, however large they are."""
    called: str = "pieces"
    """What its pieces are called in messages: row groups, chunks."""
    stays: bool = False
    """Whether all pieces stay in memory (mapped files do), so that rows can be gathered there."""
    _reopened = ("_kept", "_places")

    @abstractmethod
    def load(self, number: int) -> tuple[Sequence[Any], int]:
        """Reads a piece: its parts, and how many bytes they take."""

    @cached_property
    def _kept(self) -> Kept:
        return Kept(self.load, self.most_bytes, self.at_least)

    def keep_at_least(self, count: int) -> None:
        """Lets it keep so many pieces, however large they are: those that an order reads at a time.

        Call it before the table is read.
        """
        self.at_least = self._kept.at_least = count

    @cached_property
    def blocks(self) -> np.ndarray | None:  # type: ignore[override]
        return np.asarray(self.lengths, np.int64)

    def piece(self, number: int) -> Sequence[Any]:
        """The parts of a piece."""
        return self._kept.get(number)

    @cached_property
    def _places(self) -> dict[int, Scattered]:
        return {}

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum(np.asarray(self.lengths, np.int64))

    @cached_property
    def _begins(self) -> np.ndarray:
        return self._ends - np.asarray(self.lengths, np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self.lengths) else 0

    def columns_of(self, number: int, rows: np.ndarray) -> list[Any]:
        """These rows of a piece, a column for each leaf."""
        return [part.take(rows) for part in self.piece(number)]

    def one_piece(self, indices: np.ndarray) -> int | None:
        """The piece in which all of these rows are; None if there are several."""
        if len(self.lengths) == 1 or not len(indices):
            return 0
        first, last = self._ends.searchsorted((indices.min(), indices.max()), "right").tolist()
        return first if first == last else None

    def take(self, indices: np.ndarray) -> list[Any]:
        indices = indices.astype(np.int64, copy=False)
        first = self.one_piece(indices)
        if first is not None:
            return self.columns_of(first, indices - (self._ends[first] - self.lengths[first]))
        owner = np.searchsorted(self._ends, indices, side="right")
        return self._take_from(owner, indices - self._begins[owner])

    def _take_from(self, owner: np.ndarray, rows: np.ndarray) -> list[Any]:
        """Rows of several pieces, `owner`."""
        if not self.stays:
            return _by_piece(owner, rows, self.columns_of)
        leaves = range(len(self.piece(int(owner[0]))))
        part = lambda number, leaf: self.piece(number)[leaf]  # noqa: E731
        found = [
            self._scattered(leaf).take(lambda number, leaf=leaf: part(number, leaf), owner, rows)
            for leaf in leaves
        ]
        rest = [leaf for leaf in leaves if found[leaf] is None]
        some = lambda number, rows: [part(number, leaf).take(rows) for leaf in rest]  # noqa: E731
        columns = _by_piece(owner, rows, some) if rest else []
        for leaf, column in zip(rest, columns, strict=True):
            found[leaf] = column
        return found

    def _scattered(self, leaf: int) -> Scattered:
        if leaf not in self._places:
            self._places.setdefault(leaf, Scattered(len(self.lengths)))
        return self._places[leaf]


def _by_piece(owner: np.ndarray, rows: np.ndarray, read: Any) -> list[Any]:
    """Columns of rows of several pieces; `read(number, rows)` gives those of one piece."""
    found = []
    for number in np.unique(owner).tolist():
        lanes = np.flatnonzero(owner == number)
        found.append((lanes, read(number, rows[lanes])))
    return [
        joined(len(rows), [(lanes, columns[at]) for lanes, columns in found])
        for at in range(len(found[0][1]))
    ]


def joined(n: int, found: list[tuple[np.ndarray, Any]]) -> Any:
    """One column of n rows, from columns for some lanes each."""
    _, first = found[0]
    alike = isinstance(first, np.ndarray) and all(
        isinstance(each, np.ndarray)
        and each.shape[1:] == first.shape[1:]
        and each.dtype == first.dtype
        for _, each in found
    )
    if alike:
        out = read_context().empty((n, *first.shape[1:]), first.dtype)
        for lanes, each in found:
            out[lanes] = each
        return out
    values: list[Any] = [None] * n
    for lanes, each in found:
        for lane, value in zip(lanes.tolist(), each, strict=True):
            values[lane] = value
    return values


class Kept:
    """The pieces that were used last, up to a number of bytes; each is read by one thread only.

    The `at_least` pieces that were used last are always kept, however large they are.
    """

    def __init__(
        self, load: Callable[[int], tuple[Any, int]], most_bytes: int, at_least: int = 1
    ) -> None:
        self._load, self._most, self.at_least = load, most_bytes, at_least
        self._lock = threading.Lock()
        self._there: OrderedDict[int, tuple[Any, int]] = OrderedDict()
        self._coming: dict[int, threading.Lock] = {}
        self._bytes = 0
        self.loads = 0  # how often a piece was read

    def get(self, number: int) -> Any:
        """A piece; `load(number)` gives it, and its size, if it is not there."""
        while True:
            with self._lock:
                if number in self._there:
                    self._there.move_to_end(number)
                    return self._there[number][0]
                waiting = self._coming.get(number)
                if waiting is None:
                    mine = self._coming[number] = threading.Lock()
                    mine.acquire()
                    break
            with waiting:  # another thread reads it
                pass
        try:
            found = self._load(number)
            with self._lock:
                self._put(number, found)
            return found[0]
        finally:
            with self._lock:
                del self._coming[number]
            mine.release()

    def _put(self, number: int, found: tuple[Any, int]) -> None:
        self.loads += 1
        self._there[number] = found
        self._bytes += found[1]
        while self._bytes > self._most and len(self._there) > self.at_least:
            _, (_, size) = self._there.popitem(last=False)
            self._bytes -= size
