"""The files of a conversion: every column is written from front to back.

    values     all rows of all elements, one after another
    offsets    only if elements differ in length: where each begins, and where the last one ends

As long as all elements have one length, there are no offsets: at the end, the values of n elements
of length k are an array [n, k, ...]. The bytes are the same in both cases.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..reading.packing.column import ColumnForm, Packed
from ..reading.packing.pack import Chunk, Layout
from ..sources.files.array_files import Names, described, write_tree
from ..sources.files.npy_file import NpyFile

_MANY = 1 << 16  # offsets that are written at once


@dataclasses.dataclass
class ColumnState:
    """How much of a column is written; part of the manifest."""

    rows: int = 0  # of its values
    length: int | None = None  # of every element so far; None: there are none, or they differ
    least: int = -1  # the smallest length; -1: there is none yet
    most: int = 0
    ragged: bool = False


class ColumnFiles:
    """The two files of a column."""

    def __init__(
        self, folder: Path, names: tuple[str, str], form: ColumnForm, state: ColumnState, count: int
    ) -> None:
        self.form, self.state, self._count = form, state, count
        self._values_name, self._offsets_name = names
        self._folder, self._offsets = folder, None
        begun = count > 0
        size = state.rows * int(np.prod(form.row, dtype=np.int64)) * np.dtype(form.dtype).itemsize
        self._values = NpyFile(
            folder / names[0], form.dtype, len(form.shape) + 1, kept=size if begun else None
        )
        if state.ragged:
            with _closing_if_it_fails(self._values):
                self._offsets = self._open_offsets(8 * (count + 1) if begun else None)

    def _open_offsets(self, kept: int | None = None) -> NpyFile:
        return NpyFile(self._folder / self._offsets_name, np.int64, 1, kept=kept)

    def append(self, packed: Packed, count: int) -> None:
        """Writes the values of so many more elements."""
        if not self.form.fixed and count:
            self._add_lengths(packed.lengths, count)
        self._values.append(packed.values)
        self.state.rows += len(packed.values)
        self._count += count

    def _add_lengths(self, lengths: Any, count: int) -> None:
        state = self.state
        one = lengths if isinstance(lengths, int) else None
        least, most = int(np.min(lengths)), int(np.max(lengths))
        state.least = least if state.least < 0 else min(state.least, least)
        state.most = max(state.most, most)
        alike = one is not None and state.length in (None, one)
        if alike and not state.ragged and self.form.kind == "array":
            state.length = one
            return
        if not state.ragged:
            self._become_ragged()
        assert self._offsets is not None
        lengths = np.full(count, lengths, np.int64) if one is not None else lengths
        self._offsets.append(state.rows + np.cumsum(lengths))

    def _become_ragged(self) -> None:
        """From now on elements differ in length; the offsets of those before are written."""
        self._offsets, length = self._open_offsets(), self.state.length or 0
        for begin in range(0, self._count + 1, _MANY):
            numbers = np.arange(begin, min(begin + _MANY, self._count + 1), dtype=np.int64)
            self._offsets.append(numbers * length)
        self.state.ragged, self.state.length = True, None

    def leaf(self, row: int) -> np.ndarray:
        """The values of an element that is written."""
        if self.form.fixed:
            return self._values.rows(row, row + 1, ())[0]
        begin, end = row * (self.state.length or 0), (row + 1) * (self.state.length or 0)
        if self._offsets is not None:
            begin, end = self._offsets.rows(row, row + 2, ()).tolist()
        return self._values.rows(begin, end, self.form.row)

    def sync(self) -> None:
        """What was written is on the disk."""
        self._values.sync()
        if self._offsets is not None:
            self._offsets.sync()

    def finish(self) -> dict[str, Any]:
        """Completes the files; returns their node for `tree.json`."""
        form, state, dtype = self.form, self.state, str(np.dtype(self.form.dtype))
        if not state.ragged:
            shape = (state.rows,) if form.fixed else (self._count, state.length or 0, *form.row)
            self._values.finish(shape)
            (self._folder / self._offsets_name).unlink(missing_ok=True)
            return {"array": self._values_name, "dtype": dtype}
        assert self._offsets is not None
        self._values.finish((state.rows, *form.row))
        self._offsets.finish((self._count + 1,))
        files = {"values": self._values_name, "offsets": self._offsets_name}
        lengths = [max(state.least, 0), state.most]
        return {"ragged": {**files, "dtype": dtype, "lengths": lengths}, "kind": form.kind}

    def close(self) -> None:
        self._values.close()
        if self._offsets is not None:
            self._offsets.close()


@contextlib.contextmanager
def _closing_if_it_fails(file: Any) -> Iterator[None]:
    try:
        yield
    except BaseException:
        file.close()
        raise


class Columns:
    """The files of all columns; `count` elements are in them."""

    def __init__(
        self, folder: Path, layout: Layout, states: list[dict[str, Any]] | None, count: int
    ) -> None:
        self._layout, self._folder, self.count = layout, folder, count
        self._names = _names(layout)
        known = [ColumnState(**each) for each in states] if count and states else None
        self._files: list[ColumnFiles] = []
        with _closing_if_it_fails(self):
            for at, form in enumerate(layout.columns):
                state = ColumnState() if known is None else known[at]
                self._files.append(ColumnFiles(folder, self._names[at], form, state, count))

    @property
    def leaves(self) -> list[Any]:
        """For each column, a function that gives the values of an element."""
        return [file.leaf for file in self._files]

    def append(self, chunk: Chunk) -> None:
        """Writes the elements of a chunk."""
        for part in chunk.parts:
            for file, packed in zip(self._files, part.columns, strict=True):
                file.append(packed, part.count)
            self.count += part.count

    def sync(self) -> None:
        """Everything is on the disk."""
        for file in self._files:
            file.sync()

    @property
    def states(self) -> list[dict[str, Any]]:
        """How much is written, for the manifest."""
        return [vars(file.state).copy() for file in self._files]

    def finish(self, **more: Any) -> None:
        """Completes all files, and writes `tree.json`."""
        nodes = iter([file.finish() for file in self._files])
        write_tree(self._folder, described(_tree(self._layout), lambda *_: next(nodes), ""), **more)
        with contextlib.suppress(OSError):  # some systems cannot do this to a folder
            handle = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def close(self) -> None:
        for file in self._files:
            file.close()


def _tree(layout: Layout) -> Any:
    return layout.structure.unflatten([_Leaf()] * len(layout.columns))


class _Leaf:
    """Stands for a column in a tree."""

    shape = ()


def check_tree(layout: Layout, owner: str) -> None:
    """Refuses elements whose structure `tree.json` cannot say."""
    described(_tree(layout), lambda *_: {}, owner)


def _names(layout: Layout) -> list[tuple[str, str]]:
    """The names of the files of each column: of its values, and of its offsets."""
    found: list[tuple[str, str]] = []

    def name(_: Any, names: Names) -> dict[str, Any]:
        found.append((names.new(), names.new(".offsets.npy")))
        return {}

    # The order of leaves is that of `structure`; `described` goes through dicts as they are.
    described(_tree(layout), name, "")
    return found
