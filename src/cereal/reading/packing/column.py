"""Columns: the values of one leaf of many elements, one after another in memory.

    numbers   3, 5, 4                  values [3, 5, 4]
    arrays    [1 2], [3], []           values [1, 2, 3], lengths [2, 1, 0]; any number of rows
    text      "a", "", "bc"            its bytes in UTF-8, with lengths
    bytes     b"a", b"", b"bc"

Arrays may differ in the length of their first axis, and in nothing else.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np

from ...base.errors import PipelineError, said
from ...base.fitting import canonical, narrowed
from ..leaves import as_array, is_leaf

Kind = Literal["array", "text", "bytes"]
_UINT8 = np.dtype(np.uint8)
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
    def fixed(self) -> bool:
        """Whether it is one number for each element."""
        return self.kind == "array" and not self.shape

    def column(self, size: int) -> Column:
        """An empty column, with room for so many elements to begin with."""
        if self.kind == "array":
            return NumberColumn(self, size) if self.fixed else ArrayColumn(self, size)
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


class Column:
    """Collects values. `check` refuses one, or makes it what `add` wants."""

    form: ColumnForm

    def check(self, leaf: Any) -> Any:
        raise NotImplementedError

    def add(self, value: Any) -> None:
        raise NotImplementedError

    def packed(self) -> Packed:
        raise NotImplementedError

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

    def __init__(self, form: ColumnForm, size: int) -> None:
        self.form, self._count = form, 0
        self._room = np.empty(size, form.dtype)

    def check(self, leaf: Any) -> Any:
        return self._checked_array(leaf)

    def add(self, value: Any) -> None:
        self._room[self._count] = value
        self._count += 1

    def packed(self) -> Packed:
        return Packed(self._room[: self._count], None)


class ArrayColumn(Column):
    """An array for each element; they are copied at once, one after another."""

    def __init__(self, form: ColumnForm, size: int) -> None:
        self.form, self._filled = form, 0
        self._lengths: list[int] = []
        self._room = np.empty((size * max(1, form.shape[0]), *form.row), form.dtype)

    def check(self, leaf: Any) -> Any:
        form = self.form
        if type(leaf) is np.ndarray and leaf.dtype == form.dtype and leaf.shape == form.shape:
            return leaf  # the common case
        return self._checked_array(leaf)

    def add(self, value: np.ndarray) -> None:
        begin, count = self._filled, len(value)
        self._filled = end = begin + count
        if end > len(self._room):
            larger = np.empty((max(end, 2 * len(self._room)), *self.form.row), self.form.dtype)
            larger[:begin] = self._room[:begin]
            self._room = larger
        self._room[begin:end] = value
        self._lengths.append(count)

    def packed(self) -> Packed:
        lengths = self._lengths
        values = self._room[: self._filled]
        if lengths and lengths.count(lengths[0]) == len(lengths):
            return Packed(values, lengths[0])
        return Packed(values, np.array(lengths, np.int64))


class TextColumn(Column):
    """Text or bytes for each element."""

    def __init__(self, form: ColumnForm) -> None:
        self.form = form
        self._pieces: list[bytes] = []

    def check(self, leaf: Any) -> bytes:
        form = self.form
        if form.kind == "text" and isinstance(leaf, str):
            return leaf.encode(*_ENCODING)
        if form.kind == "bytes" and isinstance(leaf, bytes | bytearray):
            return bytes(leaf)
        if leaf is None:
            raise PipelineError(f"{form.name} {_no_value(leaf)}")
        raise PipelineError(
            f"{form.name} is {type(leaf).__name__}, and that of the first element is "
            f"{form.kind}; make them alike in a HostMapTransform."
        )

    def add(self, value: bytes) -> None:
        self._pieces.append(value)

    def packed(self) -> Packed:
        values = np.frombuffer(b"".join(self._pieces), np.uint8)
        return Packed(values, np.array([*map(len, self._pieces)], np.int64))


def as_text(values: np.ndarray) -> str:
    """The text of the bytes of one element."""
    return values.tobytes().decode(*_ENCODING)
