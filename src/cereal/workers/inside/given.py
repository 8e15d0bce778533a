"""Elements that the loader read itself: of iterators, and of sources that only it can read."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...reading.element_batch import ElementBatch
from ...reading.read_context import read_context
from ...reading.readers.reader import Reader
from ...reading.rows import Rows


class GivenReader(Reader):
    """Gives the elements that came with the job, in their order."""

    def __init__(self, label: str) -> None:
        self.label = label

    def read(self, rows: Rows) -> ElementBatch:
        values, keep = read_context().given.take(len(rows.index))  # type: ignore[attr-defined]
        return ElementBatch.of_list(values, keep)


class Given:
    """Elements on their way to a process; `take(n)` gives the next ones."""

    def __init__(self, values: list[Any], keep: np.ndarray | None) -> None:
        self._values, self._keep, self._at = values, keep, 0

    def take(self, n: int) -> tuple[list[Any], np.ndarray | None]:
        begin, self._at = self._at, self._at + n
        keep = None if self._keep is None else self._keep[begin : self._at]
        return self._values[begin : self._at], keep

    def again(self) -> Given:
        """The same elements, from the first one on."""
        return Given(self._values, self._keep)
