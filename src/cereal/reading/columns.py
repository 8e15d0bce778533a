"""Writes elements into a batch: the first is checked fully, later ones by code made for it.

    first element   {"x": float32[3], "n": 5}   every leaf is looked at (`form.writable`)
    the others      x = e["x"]                  the same keys, types, dtypes and shapes?
                    room[lane] = x              arrays are written at once: the function may return
                    add((lane, n))              the same buffer every time
    the end         np.array([5, 6, ...])       numbers are checked and written by column

An element for which the code does not hold is checked fully again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.errors import PipelineError
from ..base.fitting import canonical, narrowed
from .code import put_code
from .form import Form, array_for, writable

_MOST_CODE = 64  # kinds of elements for which one form keeps code
_MOST_TRIES = 8  # kinds of elements in one batch for which code is made
_INT64 = np.dtype(np.int64)


class Columns:
    """Some lanes of a batch. `code` puts elements into them; `flush` writes what waits."""

    def __init__(self, form: Form, rooms: list[np.ndarray]) -> None:
        self._form, self._rooms = form, rooms
        self._waiting: list[tuple[Any, ...]] = []  # lanes with their numbers
        self._numbers: tuple[tuple[int, Any], ...] = ()  # the leaves that are numbers
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
        self.code = ("put(lane, value)",), {"put": self.write}
        structure, self._left = self._form.structure, self._left - 1
        if self._left >= 0 and structure.plain:
            leaves = structure.flatten_up_to(element)
            made = _code_for(self._form, tuple(map(type, leaves)))
            if made is not None:
                lines, names, self._numbers, arrays = made
                rooms = {f"r{place}": self._rooms[place] for place in arrays}
                self.code = lines, {**names, **rooms, "add": self._waiting.append}

    def flush(self) -> int | None:
        """Writes the numbers that wait. If one does not fit: the lane of the first such element;
        then nothing is written."""
        if not self._waiting:
            return None
        columns = zip(*self._waiting, strict=True)
        lanes: Any = [*next(columns)]
        if lanes[-1] - lanes[0] == len(lanes) - 1:
            lanes = slice(lanes[0], lanes[-1] + 1)
        for (place, dtype), column in zip(self._numbers, columns, strict=True):
            room = self._rooms[place]
            try:
                room[lanes] = narrowed(np.array(column, dtype), room.dtype)
            except (ValueError, OverflowError):
                return next(each[0] for each in self._waiting if self._is_wrong(each))
        self._waiting.clear()
        return None

    def _is_wrong(self, waiting: tuple[Any, ...]) -> bool:
        try:
            self._check(waiting)
        except PipelineError:
            return True
        return False

    def _check(self, waiting: tuple[Any, ...]) -> None:
        for (place, _), number in zip(self._numbers, waiting[1:], strict=True):
            name = lambda at=place: self._form.name(at)  # noqa: E731
            array_for(number, self._form.leaves[place], name)

    def check_waiting(self, lane: int) -> None:
        """Takes a lane from those that wait, and raises the error of its numbers."""
        at = next(at for at, each in enumerate(self._waiting) if each[0] == lane)
        self._check(self._waiting.pop(at))


def _code_for(form: Form, types: tuple[type, ...]) -> Any:
    """`put_code`, made once for each kind of element."""
    known = (canonical(_INT64), types)  # 64-bit types may be switched on in the meantime
    if known not in form.puts:
        if len(form.puts) >= _MOST_CODE:
            form.puts.clear()
        form.puts[known] = put_code(form, types)
    return form.puts[known]
