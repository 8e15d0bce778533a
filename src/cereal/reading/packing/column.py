"""Columns: the values of one leaf of many elements, one after another in memory.

    numbers   3, 5, 4                  values [3, 5, 4]
    arrays    [1 2], [3], []           values [1, 2, 3], lengths [2, 1, 0]; any number of rows
    text      "a", "", "bc"            its bytes in UTF-8, with lengths
    bytes     b"a", b"", b"bc"

Arrays may differ in the length of their first axis, and in nothing else.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from ...base.errors import PipelineError, said
from ...base.fitting import canonical, narrowed
from ..code import number_dtype
from ..leaves import as_array, is_leaf
from ..read_context import read_context

Kind = Literal["array", "text", "bytes"]
_UINT8 = np.dtype(np.uint8)
_ROOM = 64 * 2**20  # bytes of memory that are taken for a column before its values are known
_ENCODING = ("utf-8", "surrogatepass")  # every text that Python has, also halves of a pair


def is_column_leaf(value: Any) -> bool:
    """Whether this is one leaf of an element: as `is_leaf`, and empty lists and None, too."""
    return value is None or is_leaf(value) or (type(value) is list and not value)


@dataclasses.dataclass(frozen=True)
class ColumnForm:
    """What the values of a column are. Of `shape`, that of the first element, only the first axis
    may differ in others."""

    kind: Kind
    dtype: Any
    shape: tuple[int, ...]
    name: str  # in errors

    @property
    def row(self) -> tuple[int, ...]:
        """The shape of one row of the values."""
        return self.shape[1:]

    @property
    def nbytes(self) -> int:
        """The bytes of an array of this shape."""
        return np.dtype(self.dtype).itemsize * int(np.prod(self.shape, dtype=np.int64))

    @property
    def fixed(self) -> bool:
        """Whether it is one number for each element."""
        return self.kind == "array" and not self.shape

    def column(self, size: int) -> Column:
        """An empty column, with room for so many elements to begin with."""
        if self.kind == "array":
            return NumberColumn(self) if self.fixed else ArrayColumn(self, size)
        return TextColumn(self)


def form_of_column(leaf: Any, name: str) -> ColumnForm:
    """The form of the column of a leaf, given its value in one element."""
    if isinstance(leaf, str | bytes | bytearray):
        return ColumnForm("text" if isinstance(leaf, str) else "bytes", _UINT8, (0,), name)
    array = _array(leaf)
    if array is None:
        raise PipelineError(f"{name} {_no_value(leaf)}")
    return ColumnForm("array", canonical(array.dtype), array.shape, name)


def _array(leaf: Any) -> np.ndarray | None:
    return np.zeros(0, np.int32) if type(leaf) is list and not leaf else as_array(leaf)


def _no_value(leaf: Any) -> str:
    if leaf is None:
        return (
            "is None, a missing value; replace it in a HostMapTransform (by -1, say), or leave "
            "such elements out: `HostFilterTransform(fn)`."
        )
    kind = type(leaf).__name__
    shown = said(lambda: f"{kind} ({leaf!r:.40})", kind)
    return (
        f"is no number, array, text or bytes: {shown}; turn it into one of these in a "
        f"HostMapTransform."
    )


@dataclasses.dataclass
class Packed:
    """Some values of a column: their rows, and how many each element has. (None: one; a number:
    all have as many.)"""

    values: np.ndarray
    lengths: np.ndarray | int | None


class Column(ABC):
    """Collects values.

    `check` refuses a value, or makes it what `add` wants. Most values need no such check: `unlike`
    gives code that is true for a value that does.
    """

    form: ColumnForm
    add: Callable[[Any], None]

    @abstractmethod
    def check(self, leaf: Any) -> Any:
        """The value as `add` wants it, or an error."""

    @abstractmethod
    def unlike(self, kind: type, value: str, names: dict[str, Any]) -> str | None:
        """An expression that is true if `value`, an expression too, must be checked; it may use
        what is put into `names`. None: all values must. `kind` is the type of an earlier value."""

    def extend(self, values: list[Any]) -> None:
        """Checks and adds many values."""
        for value in values:
            self.add(self.check(value))

    @abstractmethod
    def packed(self) -> Packed:
        """All values."""

    def _checked_array(self, leaf: Any) -> np.ndarray:
        form = self.form
        try:
            array = _array(leaf)
        except PipelineError as error:  # a number that does not fit
            raise PipelineError(f"{form.name}: {error}") from None
        if array is None:
            raise PipelineError(f"{form.name} {_no_value(leaf)}")
        if form.shape and array.ndim and not len(array):
            return np.zeros((0, *form.row), form.dtype)  # an empty list has no dtype
        if array.ndim != len(form.shape) or array.shape[1:] != form.row:
            raise PipelineError(
                f"{form.name} has shape {array.shape}, and that of the first element is "
                f"{form.shape}: only the first axis may differ; resize it in a HostMapTransform."
            )
        if canonical(array.dtype) != form.dtype:
            raise PipelineError(
                f"{form.name} is {canonical(array.dtype)}, and that of the first element is "
                f"{form.dtype}; make them alike in a HostMapTransform, by "
                f"`np.{form.dtype}(x)`, say."
            )
        return narrowed(array, form.dtype, form.name)


class NumberColumn(Column):
    """One number for each element."""

    def __init__(self, form: ColumnForm) -> None:
        self.form = form
        self._numbers: list[Any] = []
        self.add = self._numbers.append

    def check(self, leaf: Any) -> Any:
        return self._checked_array(leaf)

    def unlike(self, kind: type, value: str, names: dict[str, Any]) -> str | None:
        dtype = number_dtype(kind)
        if dtype is None or canonical(dtype) != self.form.dtype:
            return None
        names[f"t_{value}"] = kind
        other = f"type({value}) is not t_{value}"
        if dtype == self.form.dtype:
            return other
        if dtype.kind in "iu":
            limits = np.iinfo(self.form.dtype)
            return f"{other} or not {limits.min} <= {value} <= {limits.max}"
        if dtype.kind == "f":  # whether it is infinite or nan, `check` finds out
            most = float(np.finfo(self.form.dtype).max)
            return f"{other} or not {-most!r} < {value} < {most!r}"
        return None

    def packed(self) -> Packed:
        return Packed(np.array(self._numbers, self.form.dtype), None)


class ArrayColumn(Column):
    """An array for each element. They are copied at once: a function may use its buffer again."""

    def __init__(self, form: ColumnForm, size: int) -> None:
        self.form, self._count, self._axes = form, 0, len(form.shape)
        self._most = max(1, min(size, _ROOM // max(1, form.nbytes)))
        # As long as all have the shape of the first, they are written into one room.
        self._room: np.ndarray | None = read_context().empty((self._most, *form.shape), form.dtype)
        self._pieces: list[np.ndarray] = []
        self._lengths: list[int] = []
        self.add = self._add

    def check(self, leaf: Any) -> Any:
        form = self.form
        if type(leaf) is np.ndarray and leaf.shape[1:] == form.row and leaf.ndim == self._axes:
            if leaf.dtype == form.dtype:
                return leaf
            if canonical(leaf.dtype) == form.dtype and len(leaf):
                return narrowed(leaf, form.dtype, form.name)
        return self._checked_array(leaf)

    def unlike(self, kind: type, value: str, names: dict[str, Any]) -> str | None:
        if kind is not np.ndarray:
            return None
        form = self.form
        names |= {f"d_{value}": form.dtype, f"s_{value}": form.shape, f"r_{value}": form.row}
        return (
            f"type({value}) is not ndarray or {value}.dtype != d_{value} or ({value}.shape != "
            f"s_{value} and ({value}.ndim != {len(form.shape)} or {value}.shape[1:] != r_{value}))"
        )

    def _add(self, value: np.ndarray) -> None:
        if self._room is None:
            self._pieces.append(value.copy())
            self._lengths.append(len(value))
        elif value.shape == self.form.shape and self._count < self._most:
            self._room[self._count] = value
            self._count += 1
        else:
            rows = (self._count * self.form.shape[0], *self.form.row)
            self._pieces = [self._room[: self._count].reshape(rows)]
            self._lengths = [self.form.shape[0]] * self._count
            self._room = None
            self._add(value)

    def extend(self, values: list[Any]) -> None:
        kinds = {(x.dtype, x.ndim, x.shape[1:]) if type(x) is np.ndarray else None for x in values}
        if self._count or len(kinds) != 1 or getattr(values[0], "ndim", 0) != self._axes:
            super().extend(values)
            return
        self._pieces = [self.check(np.concatenate(values))]  # all at once
        self._lengths, self._room = [*map(len, values)], None

    def packed(self) -> Packed:
        shape, row, lengths = self.form.shape, self.form.row, self._lengths
        if self._room is not None:
            values = self._room[: self._count]
            return Packed(values.reshape(self._count * shape[0], *row), shape[0])
        values = np.concatenate(self._pieces)
        if lengths.count(lengths[0]) == len(lengths):
            return Packed(values, lengths[0])
        return Packed(values, np.array(lengths, np.int64))


class TextColumn(Column):
    """Text or bytes for each element."""

    def __init__(self, form: ColumnForm) -> None:
        self.form = form
        self._pieces: list[Any] = []
        self.add = self._pieces.append

    def check(self, leaf: Any) -> Any:
        form = self.form
        if form.kind == "text" and isinstance(leaf, str):
            return str(leaf)
        if form.kind == "bytes" and isinstance(leaf, bytes | bytearray):
            return bytes(leaf)
        if leaf is None:
            raise PipelineError(f"{form.name} {_no_value(leaf)}")
        raise PipelineError(
            f"{form.name} is {type(leaf).__name__}, and that of the first element is "
            f"{form.kind}; make them alike in a HostMapTransform."
        )

    def unlike(self, kind: type, value: str, names: dict[str, Any]) -> str | None:
        del kind
        names[f"t_{value}"] = str if self.form.kind == "text" else bytes
        return f"type({value}) is not t_{value}"

    def extend(self, values: list[Any]) -> None:
        if {*map(type, values)} == {str if self.form.kind == "text" else bytes}:
            self._pieces += values
        else:
            super().extend(values)

    def packed(self) -> Packed:
        pieces = self._pieces
        if self.form.kind == "text":
            joined = "".join(pieces)
            if joined.isascii():  # all letters have one byte
                values, pieces = joined.encode(), pieces
            else:
                pieces = [piece.encode(*_ENCODING) for piece in pieces]
                values = b"".join(pieces)
        else:
            values = b"".join(pieces)
        lengths = np.array([*map(len, pieces)], np.int64)
        return Packed(np.frombuffer(values, np.uint8), lengths)


def packed_array(array: np.ndarray, form: ColumnForm) -> Packed:
    """The values of many elements that are stacked in one array, [n, ...]."""
    if form.kind != "array" or array.ndim != 1 + len(form.shape) or array.shape[2:] != form.row:
        raise PipelineError(f"{form.name} has shape {array.shape[1:]}, not {form.shape}")
    if canonical(array.dtype) != form.dtype:
        raise PipelineError(f"{form.name} is {array.dtype}, not {form.dtype}")
    values = np.ascontiguousarray(narrowed(array, form.dtype, form.name))
    if form.fixed:
        return Packed(values, None)
    rows = (len(values) * values.shape[1], *form.row)
    return Packed(values.reshape(rows), values.shape[1])


def as_text(values: np.ndarray) -> str:
    """The text of the bytes of one element."""
    return values.tobytes().decode(*_ENCODING)
