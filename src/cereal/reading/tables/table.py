"""Tables: what a format or a library must say about its data, and how it is read.

    table.form             {"x": float32[3], "name": object}       what a row looks like
    table.take([7, 3])     [array([[...], [...]]), ["b", "a"]]     a column for each of its leaves

If every column of a batch is an array of the promised shape, the batch is made of these arrays, and
there are no Python elements at all. Otherwise rows become elements, one by one, for the stages that
Python runs.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...base.fitting import canonical, narrowed
from ..element_batch import ElementBatch
from ..form import Form
from ..leaves import NO_ARRAY, OBJECT, ArrayForm
from ..loop import Link
from ..readers.reader import Reader, TakeReader
from ..rows import Rows
from ..structure import Structure, flatten


class Table(ABC):
    """Rows that can be read by index, many at once, by several threads.

    It can be pickled, and opens its files again in another process.
    """

    form: Any
    """A row: a tree of `ArrayForm`. A dtype of `object` stands for any Python object."""
    name: str = ""
    """What it is called in drawings and errors: the name of its file, say."""
    classes: Mapping[str, tuple[Any, ...]] = {}
    """For columns of categories: what each number stands for."""
    blocks: np.ndarray | None = None
    """The lengths of the pieces that are read whole (row groups, chunks), if there are any."""
    quick: bool = False
    """Whether a batch is read so quickly that a worker would not help."""
    decode: Callable[[Any], Any] | None = None
    """A function that Python calls for each row; `form` says what rows are before it."""
    _reopened: tuple[str, ...] = ()
    """Fields that are not pickled (open files, say): each is a `cached_property`."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of rows."""

    @abstractmethod
    def take(self, indices: np.ndarray) -> list[Any]:
        """A column for each leaf of `form`, in the order of `jax.tree.leaves`.

        A column is a fresh array [n, ...], or a list of n objects; None: a value is missing.
        """

    @abstractmethod
    def digest(self) -> Any:
        """Plain data that is the same in every process, and differs for other rows."""

    def __getstate__(self) -> dict[str, Any]:
        gone = {name for cls in type(self).__mro__ for name in vars(cls).get("_reopened", ())}
        return {name: value for name, value in vars(self).items() if name not in gone}


@dataclasses.dataclass(frozen=True)
class Stream:
    """Data that can only be iterated: what `IterableSource` takes."""

    make_iterator: Any
    length: int | None = None


def objects(what: str) -> ArrayForm:
    """The form of a column of Python objects; `what` says in errors what they are."""
    return ArrayForm((), np.dtype(object, metadata={"words": f"{NO_ARRAY}: {what}"}))


@dataclasses.dataclass
class TableReader(TakeReader):
    """Reads rows of a table."""

    label: str
    table: Table

    @cached_property
    def _form(self) -> Form:
        leaves, structure = flatten(self.table.form)
        return Form(structure, leaves)

    @property
    def structure(self) -> Structure:  # type: ignore[override]
        return self._form.structure

    def take(self, indices: np.ndarray) -> list[Any]:
        columns, form = self.table.take(indices), self._form
        if not _stacks(columns, form.leaves):
            return columns
        return [
            narrowed(column, canonical(column.dtype), lambda at=at: form.name(at))
            for at, column in enumerate(columns)
        ]

    def as_batch(self, n: int, leaves: list[Any]) -> ElementBatch:
        if _stacks(leaves, self._form.leaves):
            return super().as_batch(n, leaves)
        unflatten = self.structure.unflatten
        return ElementBatch.of_list([unflatten(list(row)) for row in zip(*leaves, strict=True)])


def _stacks(columns: Sequence[Any], promised: Sequence[ArrayForm]) -> bool:
    """Whether these columns are arrays of the promised shapes and dtypes."""
    return all(
        isinstance(column, np.ndarray)
        and column.shape[1:] == form.shape
        and form.dtype != OBJECT
        and canonical(column.dtype) == canonical(form.dtype)
        for column, form in zip(columns, promised, strict=True)
    )


@dataclasses.dataclass
class WithIndex(Reader):
    """What another reader reads, dicts, with the index of each element added under a key."""

    reader: Reader
    key: str
    structure: Structure  # with the index

    @property
    def label(self) -> str:  # type: ignore[override]
        return self.reader.label

    @property
    def can_move(self) -> bool:
        return self.reader.can_move

    @property
    def labels(self) -> tuple[str, ...]:
        return self.reader.labels

    def find(self, rows: Rows, lane: int, label: str) -> Any:
        return self.reader.find(rows, lane, label)

    def read(self, rows: Rows) -> ElementBatch:
        taken, key = self.reader.read(rows), self.key
        index = narrowed(rows.index.astype(np.int64), canonical(np.int64), f"`{key}`")
        if not taken.is_stacked:
            return taken.linked(Link("", None, lambda value, lane: {**value, key: index[lane]}))
        places = self.structure.unflatten(range(self.structure.num_leaves))
        leaves = list(taken.leaves)
        leaves.insert(places[key], index)
        return ElementBatch.of_arrays(taken.n, leaves, self.structure, taken.keep)
