"""Writes elements into a batch: the first is checked fully, later ones by code made for it.

    first element   {"x": float32[3], "n": 5}     every leaf is looked at (`form.writable`)
    the others      def put(lane, e):             the same keys, types, dtypes and shapes?
                        ...
                        room_1[lane] = x          arrays are written at once: the function may
                        add((lane, n))            return the same buffer every time
    the end         np.array([5, 6, ...])         numbers are checked and written by column

An element for which the code does not hold is checked fully again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.errors import PipelineError
from ..base.fitting import canonical, narrowed
from .form import Form, array_for, writable
from .structure import Node

_MOST_CODE = 64  # kinds of elements for which one form keeps code
_MOST_TRIES = 8  # kinds of elements in one batch for which code is made
_INT64 = np.dtype(np.int64)
_FROM_PYTHON = {int: _INT64, float: np.dtype(np.float64), bool: np.dtype(np.bool_)}


class UnlikeError(Exception):
    """An element is not like the one for which the code was made."""


class Columns:
    """Some lanes of a batch. `put(lane, element)` writes one; `flush` writes what waits."""

    def __init__(self, form: Form, rooms: list[np.ndarray]) -> None:
        self._form, self._rooms = form, rooms
        self._waiting: list[tuple[Any, ...]] = []  # lanes with their numbers
        self._numbers: tuple[tuple[int, Any], ...] = ()  # the leaves that are numbers
        self._left = _MOST_TRIES
        self.put: Callable[[int, Any], None] = self._first

    def write(self, lane: int, element: Any) -> None:
        """Checks and writes one element."""
        for room, leaf in zip(self._rooms, writable(element, self._form), strict=True):
            room[lane] = leaf

    def write_unlike(self, lane: int, element: Any) -> None:
        """The same, for an element to which the code does not apply; makes other code, then."""
        self.write(lane, element)
        self.put = self._first if self._left else self.write

    def _first(self, lane: int, element: Any) -> None:
        self.write(lane, element)
        self._left -= 1
        self.put = self.write
        if self._form.structure.plain:
            leaves = self._form.structure.flatten_up_to(element)
            made = _code_for(self._form, tuple(map(type, leaves)))
            if made is not None:
                self.flush()
                make, self._numbers = made
                self.put = make(self._rooms, self._waiting.append)

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
    """A function that makes `put`, and which leaves are numbers, for elements of these types.

    None if some leaf is neither an array nor a number.
    """
    known = (canonical(_INT64), types)  # 64-bit types may be switched on in the meantime
    if known not in form.puts:
        if len(form.puts) >= _MOST_CODE:
            form.puts.clear()
        form.puts[known] = _made_code(form, types)
    return form.puts[known]


def _made_code(form: Form, types: tuple[type, ...]) -> Any:
    names: dict[str, Any] = {"ndarray": np.ndarray, "UnlikeError": UnlikeError}
    numbers, arrays, wrong = [], [], []
    for place, (kind, promised) in enumerate(zip(types, form.leaves, strict=True)):
        if kind is np.ndarray:
            names[f"d{place}"], names[f"s{place}"] = promised.dtype, promised.shape
            arrays.append(place)
            wrong.append(
                f"type(v{place}) is not ndarray or v{place}.dtype != d{place} or v{place}.shape != "
                f"s{place}"
            )
            continue
        dtype = _number_dtype(kind)
        if dtype is None or promised.shape or canonical(dtype) != promised.dtype:
            return None
        names[f"t{place}"] = kind
        numbers.append((place, dtype))
        wrong.append(f"type(v{place}) is not t{place}")
    lines = _taken_apart(form.structure.node, names)
    lines += [f"if {each}: raise UnlikeError" for each in wrong]
    lines += [f"r{place}[lane] = v{place}" for place in arrays]
    if numbers:
        lines.append(f"add((lane, {', '.join(f'v{place}' for place, _ in numbers)}))")
    rooms = [f"    r{place} = rooms[{place}]" for place in arrays]
    body = "\n".join(f"        {line}" for line in lines)
    text = "\n".join(["def make(rooms, add):", *rooms, "    def put(lane, e):", body])
    exec(compile(f"{text}\n    return put", "<cereal: code for elements>", "exec"), names)
    return names["make"], tuple(numbers)


def _number_dtype(kind: type) -> np.dtype[Any] | None:
    if kind in _FROM_PYTHON:
        return _FROM_PYTHON[kind]
    known = issubclass(kind, np.number | np.bool_) and kind.__module__ == "numpy"
    return np.dtype(kind) if known else None


def _taken_apart(node: Node | None, names: dict[str, Any]) -> list[str]:
    """Lines that check the containers of an element `e`, and name its leaves v0, v1, ..."""
    lines: list[str] = []
    count, inner = itertools.count(), itertools.count()

    def visit(node: Node | None, value: str) -> None:
        if node is None:
            lines.append(f"v{next(count)} = {value}")
            return
        me = next(inner)
        names[f"k{me}"] = node.kind
        if node.kind is type(None):
            lines.append(f"if {value} is not None: raise UnlikeError")
            return
        lines.append(f"n{me} = {value}")
        lines.append(
            f"if type(n{me}) is not k{me} or len(n{me}) != {len(node.children)}: raise UnlikeError"
        )
        for number, ((_, at), child) in enumerate(zip(node.places(), node.children, strict=True)):
            names[f"a{me}_{number}"] = at
            visit(child, f"n{me}[{at!r}]" if type(at) in (str, int) else f"n{me}[a{me}_{number}]")

    visit(node, "e")
    return lines
