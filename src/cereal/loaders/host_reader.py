"""Batches of a pipeline over data on the host, one after another, in the caller's thread.

    rows of many steps, one compiled call  ->  fetch one step in Python  ->  compiled stages

The order of thousands of rows takes one call; per batch there is the reading, and one call of the
compiled stages, to which the batch is handed as NumPy arrays.
"""

from __future__ import annotations

from typing import Any

from ..core.execute import place, read_rows, routed_rows
from ..core.source import Positional

_LANES = 1 << 14


class HostReader:
    """Reads the steps from a position on."""

    def __init__(self, source: Positional[Any], words: Any) -> None:
        self._source, self._words = source, words
        self._steps = max(1, _LANES // source.plan.batch)
        self._rows: Any = None
        self._next = 0

    def read(self) -> tuple[Any, Any]:
        """The next batch, and its mask if stages change masks, else None."""
        if self._rows is None or self._next == self._steps:
            self._rows, self._words = routed_rows(self._source, self._words, self._steps)
            self._next = 0
        pair = read_rows(self._source, self._rows[self._next], masked=False)
        self._next += 1
        return pair if self._source.placement is None else place(pair, self._source.placement)
