"""Parts of columns: the values of one piece of a table, read by row.

Numbers    [n, ...]                       an array
Ragged     values, offsets                rows of different lengths
Objects    anything with `take(rows)`     text, bytes, Python objects
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ...base.errors import PipelineError
from ...base.fitting import canonical, narrowed
from ..leaves import ArrayForm
from ..readers.arrays import take_rows


@dataclasses.dataclass
class Numbers:
    """An array whose rows are the values; `missing` is true where there is none."""

    values: np.ndarray
    missing: np.ndarray | None = None
    name: str = ""

    @property
    def form(self) -> ArrayForm:
        return ArrayForm(self.values.shape[1:], self.values.dtype)

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: np.ndarray) -> Any:
        if self.missing is not None and (gone := self.missing[rows]).any():
            return with_gaps(self.values[rows], gone)  # any number may stand in a gap
        try:
            return take_rows(self.values, rows, self.name)
        except PipelineError:  # a number does not fit JAX's dtype: host stages may change it
            return list(self.values[rows])


def with_gaps(values: Iterable[Any], gone: np.ndarray) -> list[Any]:
    """The values as a list, None where one is missing."""
    return [
        None if missing else value for value, missing in zip(values, gone.tolist(), strict=True)
    ]


@dataclasses.dataclass
class Ragged:
    """Rows of different lengths: row i is `values[offsets[i] : offsets[i + 1]]`."""

    values: np.ndarray
    offsets: np.ndarray
    missing: np.ndarray | None = None
    name: str = ""

    def form(self, most: int = 1 << 20) -> ArrayForm:
        """The form of its rows; objects, if the first `most` rows differ in length."""
        lengths = np.diff(self.offsets[: most + 1])
        if self.missing is not None:
            lengths = lengths[~self.missing[:most]]
        least, largest = (int(lengths.min()), int(lengths.max())) if len(lengths) else (0, 0)
        if least == largest:
            return ArrayForm((least, *self.values.shape[1:]), self.values.dtype)
        return ragged_form(f"{least} to {largest}", largest)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: np.ndarray) -> Any:
        begins, ends = self.offsets[rows], self.offsets[rows + 1]
        lengths = ends - begins
        gone = None if self.missing is None else self.missing[rows]
        if len(rows) and (lengths == lengths[0]).all() and (gone is None or not gone.any()):
            at = begins[:, None] + np.arange(int(lengths[0]))
            return self.values[at]
        found = [
            self.values[a:b].copy() for a, b in zip(begins.tolist(), ends.tolist(), strict=True)
        ]
        found = narrow_rows(found)
        return found if gone is None else with_gaps(found, gone)


def narrow_rows(rows: list[np.ndarray]) -> list[np.ndarray]:
    """Rows of different lengths with the dtype that JAX has for them, as those of one length have:
    what a function gets must not depend on the other rows of its batch."""
    dtype = canonical(rows[0].dtype) if rows else None
    if dtype is None or dtype == rows[0].dtype:
        return rows
    return [_narrow_row(row, dtype) for row in rows]


def _narrow_row(row: np.ndarray, dtype: Any) -> np.ndarray:
    try:
        return narrowed(row, dtype)
    except PipelineError:  # a number does not fit: host stages may change it
        return row


def ragged_form(lengths: str, most: int) -> ArrayForm:
    """The form of a column whose rows have different lengths."""
    words = (
        f": its rows have different lengths ({lengths}), and a batch needs one; pad them, by "
        f"`BatchTransform(..., collate=pad_collate({most}))`, or cut them in a HostMapTransform."
    )
    return ArrayForm((), np.dtype(object, metadata={"words": words}))


@dataclasses.dataclass
class Objects:
    """Values that are Python objects, read by a function from rows to a list."""

    read: Callable[[np.ndarray], list[Any]]

    def take(self, rows: np.ndarray) -> list[Any]:
        return self.read(rows)
