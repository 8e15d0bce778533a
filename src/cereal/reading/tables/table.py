"""Tables: what a format or a library must say about its data, and how it is read.

    table.form             {"x": float32[3], "name": object}       what a row looks like
    table.take([7, 3])     [array([[...], [...]]), ["b", "a"]]     a column for each of its leaves

If every column of a batch is an array of the promised shape, the batch is made of these arrays, and
there are no Python elements at all. Otherwise rows become elements, one by one, for the stages that
Python runs. A column may also wait (`Later`) until it is known which of both is wanted.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...base.errors import PipelineError
from ...base.fitting import canonical, narrowed
from ..element_batch import ElementBatch
from ..form import Form
from ..leaves import NO_ARRAY, OBJECT, ArrayForm
from ..loop import Link
from ..read_context import CAUGHT, Pace, read_context
from ..readers.by_element import DatasetReader
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
    elements: Any = None
    """A dataset with the same rows, if functions are to get its elements in place of the rows."""
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

        A column is a fresh array [n, ...], or a list of n objects (None: a value is missing), or a
        `Later`.
        """

    @abstractmethod
    def digest(self) -> Any:
        """Plain data that is the same in every process, and differs for other rows."""

    def __getstate__(self) -> dict[str, Any]:
        gone = {name for cls in type(self).__mro__ for name in vars(cls).get("_reopened", ())}
        return {name: value for name, value in vars(self).items() if name not in gone}


class Later(ABC):
    """A column of encoded values: they are decoded as objects for functions, or into a batch."""

    @abstractmethod
    def __getitem__(self, lane: int) -> Any:
        """The value as a Python object; None if it is missing."""

    @abstractmethod
    def array(self, lane: int) -> np.ndarray | None:
        """The value as an array, for the batch."""

    def block(self, lanes: range, form: ArrayForm) -> np.ndarray | None:
        """Several values at once, [n, ...]; None if they can only be had one by one."""
        del lanes, form
        return None


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

    @property
    def own_memory(self) -> bool:
        return self.table.quick

    @cached_property
    def form(self) -> Form:
        """What a row looks like."""
        leaves, structure = flatten(self.table.form)
        return Form(structure, leaves)

    @property
    def structure(self) -> Structure:  # type: ignore[override]
        return self.form.structure

    def take(self, indices: np.ndarray) -> list[Any]:
        columns = self.table.take(indices)
        return self._stacked(columns) or [narrow_column(each) for each in columns]

    def _stacked(self, columns: list[Any]) -> Any:
        """The columns, if they are arrays of the promised shapes; otherwise None."""
        if not self._stacks(columns):
            columns = [narrow_column(each) for each in columns]
            if not self._stacks(columns):
                return None
        return _Stacked(columns)

    def read(self, rows: Rows) -> ElementBatch:
        elements = self.table.elements
        if elements is None:
            return super().read(rows)
        one_by_one = lambda: DatasetReader(self.label, elements, 0).read(rows)  # noqa: E731
        whole = lambda pace: self._whole(rows, None, pace)  # noqa: E731
        return ElementBatch.either(len(rows.index), one_by_one, whole)

    def all_rows(self) -> list[np.ndarray] | None:
        """All rows as arrays; None if they do not stack."""
        index = np.arange(len(self.table))
        taken = self.read(Rows(np.zeros(2, np.uint32), np.zeros_like(index), index, None))
        if taken.whole is not None:
            return taken.whole(Pace())
        return taken.leaves if taken.is_stacked else None

    def as_batch(self, rows: Rows, leaves: list[Any]) -> ElementBatch:
        if isinstance(leaves, _Stacked):
            return super().as_batch(rows, leaves)
        unflatten = self.structure.unflatten
        if not any(isinstance(leaf, Later) for leaf in leaves):
            return ElementBatch.of_columns(len(rows.index), leaves, self.structure)
        run = lambda _, lane: unflatten([leaf[lane] for leaf in leaves])  # noqa: E731
        found = ElementBatch(len(rows.index), [Link(self.label, rows, run)])
        whole = lambda pace: self._whole(rows, leaves, pace)  # noqa: E731
        return ElementBatch.either(found.n, lambda: found, whole)

    def _whole(self, rows: Rows, columns: list[Any] | None, pace: Pace) -> list[np.ndarray] | None:
        """The columns (None: read them now) as arrays; None if they do not stack."""
        here, form = read_context(), self.form
        if here.known_to_hang or any(leaf.dtype == OBJECT for leaf in form.leaves):
            return None
        try:
            with here.at(self.label, rows):
                columns = self.table.take(rows.index) if columns is None else columns
            found = [
                self._decoded(column, leaf, rows, pace) if isinstance(column, Later) else column
                for column, leaf in zip(columns, form.leaves, strict=True)
            ]
            return self._stacked(found)
        except CAUGHT:  # reading them one by one will say which it was
            return None

    def _decoded(self, column: Later, form: ArrayForm, rows: Rows, pace: Pace) -> Any:
        n = len(rows.index)
        room = read_context().empty((n, *form.shape), form.dtype)

        def some(lanes: range) -> bool:
            here = read_context()
            with here.at(self.label, rows):
                block = column.block(lanes, form)
                if block is not None and block.shape == (len(lanes), *form.shape):
                    room[lanes.start : lanes.stop] = block
                    return True
                for lane in lanes:
                    here.lane = lane
                    here.begin(lane)
                    array = column.array(lane)
                    if array is None or array.shape != form.shape or array.dtype != form.dtype:
                        return False
                    room[lane] = array
            return True

        return room if all(pace.spread(some, n)) else None

    def _stacks(self, columns: Sequence[Any]) -> bool:
        """Whether these columns are arrays of the promised shapes, of types that JAX has."""
        for column, (shape, dtype) in zip(columns, self._promised, strict=True):
            if not isinstance(column, np.ndarray):
                return False
            if column.dtype != dtype or column.shape[1:] != shape:
                return False
        return True

    @property
    def _promised(self) -> list[tuple[tuple[int, ...], Any]]:
        """The shapes and dtypes of the columns, as JAX has them now."""
        wide = canonical(np.int64)
        if self._known is None or self._known[0] != wide:
            leaves = self.form.leaves
            self._known = wide, [(form.shape, canonical(form.dtype)) for form in leaves]
        return self._known[1]

    _known: Any = dataclasses.field(default=None, init=False, repr=False)


class _Stacked(list[Any]):
    """Columns that are arrays of the promised shapes and dtypes."""


def narrow_column(column: Any) -> Any:
    """A column with the dtype that JAX has for it. If a number does not fit, a list of its values:
    a host stage may make them smaller, and if none does, the error names the element."""
    if not isinstance(column, np.ndarray):
        return column
    try:
        return narrowed(column, canonical(column.dtype))
    except PipelineError:
        return list(column)


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
    def own_memory(self) -> bool:
        return self.reader.own_memory

    @property
    def labels(self) -> tuple[str, ...]:
        return self.reader.labels

    def find(self, rows: Rows, lane: int, label: str) -> Any:
        return self.reader.find(rows, lane, label)

    def read(self, rows: Rows) -> ElementBatch:
        taken, key = self.reader.read(rows), self.key
        index = narrowed(rows.index.astype(np.int64), canonical(np.int64), f"`{key}`")
        place = self.structure.unflatten(range(self.structure.num_leaves))[key]
        added = lambda leaves: [*leaves[:place], index, *leaves[place:]]  # noqa: E731
        link = Link("", None, lambda value, lane: {**value, key: index[lane]})
        if taken.is_stacked:
            leaves = added(taken.leaves)
            return ElementBatch.of_arrays(taken.n, leaves, self.structure, taken.keep)
        whole = taken.whole
        if whole is None:
            return taken.linked(link)

        def with_index(pace: Pace) -> list[np.ndarray] | None:
            found = whole(pace)
            return None if found is None else added(found)

        return ElementBatch.either(taken.n, lambda: taken.linked(link), with_index)
