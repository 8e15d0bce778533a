"""Writes elements into a batch: the first is checked fully, later ones by code made for it.

    first element   {"x": float32[3], "n": 5}   every leaf is looked at (`form.writable`)
    the others      x = e["x"]                  the same keys, types, dtypes and shapes?
                    room[lane] = x              arrays are written at once: the function may return
                    add(n)                      the same buffer every time
    the end         np.array([5, 6, ...])       numbers are checked and written by column

An element for which the code does not hold is checked fully again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.errors import PipelineError
from ..base.fitting import canonical, narrowed
from .code import columns_of, put_code
from .form import Form, array_for, writable

_MOST_CODE = 64  # kinds of elements for which one form keeps code
_MOST_TRIES = 8  # kinds of elements in one batch for which code is made
_INT64 = np.dtype(np.int64)


class Columns:
    """Some lanes of a batch. `code` puts elements into them; `flush` writes what waits."""

    def __init__(
        self, form: Form, rooms: list[np.ndarray], first: int, left_out: list[int]
    ) -> None:
        self._form, self._rooms = form, rooms
        # Numbers wait in columns; or in tuples, if there are many columns. They are those of the
        # lanes from `_begin` on that were not left out, or written one by one (`_gone`).
        self._waiting: list[list[Any]] = []
        self._numbers: tuple[tuple[int, Any], ...] = ()  # the leaves that are numbers
        self._begin, self._left_out, self._gone = first, left_out, set[int]()
        self._left = _MOST_TRIES
        # The lines that put an element, and what they name; None until an element was looked at.
        self.code: tuple[tuple[str, ...], dict[str, Any]] | None = None

    def write(self, lane: int, element: Any) -> None:
        """Checks and writes one element."""
        for room, leaf in zip(self._rooms, writable(element, self._form), strict=True):
            room[lane] = leaf

    def learn(self, lane: int, element: Any) -> None:
        """Checks and writes an element, and makes code for others of its kind."""
        self.write(lane, element)
        self._begin, self._waiting, self._numbers = lane + 1, [], ()
        self.code = ("put(lane, value)",), {"put": self.write}
        structure, self._left = self._form.structure, self._left - 1
        if self._left >= 0 and structure.plain:
            leaves = structure.flatten_up_to(element)
            made = _code_for(self._form, tuple(map(type, leaves)))
            if made is not None:
                lines, names, self._numbers, arrays = made
                self._waiting = [[] for _ in range(columns_of(self._numbers))]
                adds = {f"w{at}": column.append for at, column in enumerate(self._waiting)}
                rooms = {f"r{place}": self._rooms[place] for place in arrays}
                self.code = lines, {**names, **rooms, **adds}

    def _lanes(self, end: int) -> list[int]:
        gone = self._gone.union(self._left_out)
        return [lane for lane in range(self._begin, end) if lane not in gone]

    def flush(self, end: int) -> int | None:
        """Writes the numbers of the lanes before `end` that wait. If one does not fit: the lane of
        the first such element; then what waits goes on waiting."""
        if self._waiting and self._waiting[0]:
            lanes: Any = slice(self._begin, end)
            if len(self._waiting[0]) != end - self._begin:
                lanes = self._lanes(end)
            for (place, dtype), column in zip(self._numbers, self._columns(), strict=True):
                room = self._rooms[place]
                try:
                    room[lanes] = narrowed(np.array(column, dtype), room.dtype)
                except (ValueError, OverflowError):
                    return self._first_wrong(end)
            for column in self._waiting:
                column.clear()
        self._begin = end
        return None

    def _columns(self) -> Any:
        many = len(self._waiting) < len(self._numbers)
        return zip(*self._waiting[0], strict=True) if many else self._waiting

    def _first_wrong(self, end: int) -> int:
        for lane, numbers in zip(self._lanes(end), zip(*self._columns(), strict=True), strict=True):
            try:
                self._check(numbers)
            except PipelineError:
                return lane
        raise AssertionError("all numbers fit one by one, but not together")

    def _check(self, numbers: tuple[Any, ...]) -> None:
        for (place, _), number in zip(self._numbers, numbers, strict=True):
            name = lambda at=place: self._form.name(at)  # noqa: E731
            array_for(number, self._form.leaves[place], name)

    def check_waiting(self, lane: int, end: int) -> None:
        """Takes a lane from those that wait, and raises the error of its numbers."""
        at = self._lanes(end).index(lane)
        numbers = [column[at] for column in self._columns()]
        self._gone.add(lane)
        for column in self._waiting:
            del column[at]
        self._check(tuple(numbers))


def _code_for(form: Form, types: tuple[type, ...]) -> Any:
    """`put_code`, made once for each kind of element."""
    known = (canonical(_INT64), types)  # 64-bit types may be switched on in the meantime
    if known not in form.puts:
        if len(form.puts) >= _MOST_CODE:
            form.puts.clear()
        form.puts[known] = put_code(form, types)
    return form.puts[known]
