"""Packs elements into columns: what stands where a batch would be stacked or collated.

    rows --reader, stages--> elements --pack--> a Chunk --handover--> the writer

A chunk has any number of bytes, and what a program returns has a fixed shape. So the program only
returns a summary of the chunk; the chunk itself is handed over in memory, or from another process
in a file.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import threading
import time
import zlib
from typing import Any

import numpy as np

from ...base.errors import PipelineError
from ..code import taken_apart
from ..element_batch import ElementBatch
from ..form import form_of_element
from ..read_context import Pace
from ..rows import Rows
from ..structure import Structure, flatten
from .column import ColumnForm, Packed, form_of_column, is_column_leaf, packed_array

SUMMARY = 4  # words: how many elements, how many bytes (two words), a checksum
_MOST_TRIES = 8  # kinds of elements in one chunk for which code is made
_HEAD = 1 << 12  # bytes of each column that the checksum is of


@dataclasses.dataclass
class Layout:
    """The structure of elements, and a form for each of their leaves."""

    structure: Structure
    columns: tuple[ColumnForm, ...]
    nbytes: int  # of the element that was looked at


def layout_of(element: Any) -> Layout:
    """The layout of elements like this one."""
    leaves, structure = flatten(element, is_column_leaf)
    names = [f"`element{name}`" for name in structure.names()]
    forms = [form_of_column(leaf, name) for leaf, name in zip(leaves, names, strict=True)]
    sizes = [
        len(leaf) if form.kind != "array" else form.nbytes
        for leaf, form in zip(leaves, forms, strict=True)
    ]
    return Layout(structure, tuple(forms), sum(sizes))


@dataclasses.dataclass
class Part:
    """Some elements: how many there are, and a column of values for each leaf."""

    count: int
    columns: list[Packed]


@dataclasses.dataclass
class Chunk:
    """The elements of one step, in parts that follow each other."""

    parts: list[Part]
    seconds: float  # that it took to read them

    @property
    def count(self) -> int:
        return sum(part.count for part in self.parts)

    @property
    def nbytes(self) -> int:
        return sum(column.values.nbytes for part in self.parts for column in part.columns)

    def summary(self) -> np.ndarray:
        """A few words that differ if the chunk does, probably."""
        check = 0
        for part in self.parts:
            for column in part.columns:
                check = zlib.crc32(column.values.reshape(-1)[:_HEAD].tobytes()[:_HEAD], check)
                if isinstance(column.lengths, np.ndarray):
                    check = zlib.crc32(column.lengths[:_HEAD].tobytes(), check)
        words = self.count, self.nbytes >> 32, self.nbytes & 0xFFFF_FFFF, check
        return np.array(words, np.uint32)


class Packer:
    """Puts elements, one after another, into columns: the end of the loop over elements."""

    def __init__(self, layout: Layout, rows: Rows, size: int) -> None:
        self._structure, self._rows, self._size = layout.structure, rows, size
        self._columns = [form.column(size) for form in layout.columns]
        self._left = _MOST_TRIES
        # The lines that put an element, and what they name; None until an element was looked at.
        self.code: tuple[tuple[str, ...], dict[str, Any]] | None = None

    def learn(self, lane: int, element: Any) -> None:
        """Checks and adds an element, and makes code for others of its kind."""
        self.write(lane, element)
        leaves = self._structure.flatten_up_to(element)
        self.code, self._left = (("put(lane, value)",), {"put": self.write}), self._left - 1
        if self._left < 0 or not self._structure.plain:
            return
        names: dict[str, Any] = {}
        lines = taken_apart(self._structure.node, names)
        for at, (column, leaf) in enumerate(zip(self._columns, leaves, strict=True)):
            unlike = column.unlike(type(leaf), f"v{at}", names)
            names[f"c_v{at}"] = column.check
            check = f"v{at} = c_v{at}(v{at})"
            lines.append(check if unlike is None else f"if {unlike}: {check}")
        lines += [f"w{at}(v{at})" for at in range(len(leaves))]
        names |= {f"w{at}": column.add for at, column in enumerate(self._columns)}
        self.code = tuple(lines), names

    def write(self, lane: int, element: Any) -> None:
        """Checks all of an element, and then adds it."""
        try:
            leaves = self._structure.flatten_up_to(element)
        except (ValueError, TypeError, KeyError):
            raise self._other_structure(lane, element) from None
        try:
            pairs = zip(self._columns, leaves, strict=True)
            values = [column.check(leaf) for column, leaf in pairs]
        except PipelineError as error:
            raise PipelineError(f"element {self._rows.index[lane]}: {error}") from None
        for column, value in zip(self._columns, values, strict=True):
            column.add(value)

    def _other_structure(self, lane: int, element: Any) -> PipelineError:
        return PipelineError(
            f"element {self._rows.index[lane]} is {form_of_element(element)}, and the first "
            f"element has the parts {self._structure}; give all of them the same keys, or parts, "
            f"in a HostMapTransform."
        )

    def flush(self, end: int) -> None:
        del end

    def check_waiting(self, lane: int, end: int) -> None:
        raise AssertionError(f"lane {lane} of {end} does not wait")

    def part(self, left_out: int) -> Part:
        """All elements; so many of the lanes have none."""
        return Part(self._size - left_out, [column.packed() for column in self._columns])


@dataclasses.dataclass
class Packs:
    """Makes a chunk of the elements of a step; stands where elements would be stacked."""

    label: str
    layout: Layout
    handover: Any

    def __post_init__(self) -> None:
        self.pace = Pace()

    def collect(self, taken: ElementBatch, rows: Rows) -> tuple[list[np.ndarray], None]:
        """The summary of the chunk. Its place is in `rows.draw`."""
        began = time.perf_counter()
        parts = self._by_columns(taken)
        if parts is None:
            size = lambda lanes: Packer(self.layout, rows, len(lanes))  # noqa: E731
            found = taken.run_into(size, self.label, rows, self.pace)
            parts = [packer.part(len(left_out)) for packer, left_out in found]
        chunk = Chunk(parts, time.perf_counter() - began)
        self.handover.give(int(rows.draw[0]), chunk)
        return [chunk.summary()], None

    def _by_columns(self, taken: ElementBatch) -> list[Part] | None:
        """The elements, if they are in columns and all is as it should be. Otherwise None: they are
        packed one by one, and errors name theirs."""
        leaves, structure = taken.columns or (taken.leaves, taken.structure)
        if structure != self.layout.structure:
            return None
        keep = None if taken.keep is None else np.flatnonzero(taken.keep)
        count = taken.n if keep is None else len(keep)
        columns = []
        try:
            for leaf, form in zip(leaves, self.layout.columns, strict=True):
                if isinstance(leaf, np.ndarray):
                    columns.append(packed_array(leaf if keep is None else leaf[keep], form))
                else:
                    column = form.column(count)
                    column.extend(leaf if keep is None else [leaf[at] for at in keep.tolist()])
                    columns.append(column.packed())
        except PipelineError:
            return None
        return [Part(count, columns)]


class Handover:
    """Brings chunks from where they are made to the writer: in memory, or by files in `folder`.

    Without a folder (""), only in memory.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._there: dict[int, Chunk] = {}

    def give(self, begin: int, chunk: Chunk) -> None:
        with self._lock:
            self._there[begin] = chunk

    def take(self, begin: int) -> Chunk:
        """The chunk that begins at this element; those before it are not asked for again."""
        with self._lock:
            found = self._there.pop(begin, None)
            for other in [each for each in self._there if each < begin]:
                del self._there[other]
        if found is None:
            with open(_file_of(self._folder, begin), "rb") as file:
                found = pickle.load(file)
        if self._folder:
            FileHandover(self._folder).drop(begin)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return FileHandover, (self._folder,)


@dataclasses.dataclass
class FileHandover:
    """The same in another process, which writes files."""

    folder: str

    def give(self, begin: int, chunk: Chunk) -> None:
        path = _file_of(self.folder, begin)
        with open(f"{path}.{os.getpid()}", "wb") as file:
            pickle.dump(chunk, file, protocol=5)
        os.replace(f"{path}.{os.getpid()}", path)

    def drop(self, begin: int) -> None:
        if os.path.exists(path := _file_of(self.folder, begin)):
            os.unlink(path)


def _file_of(folder: str, begin: int) -> str:
    return os.path.join(folder, f"chunk-{begin}")
