"""Rows of many pieces, gathered at once by their places in memory.

    a mapped file   ... | piece 0: rows of 784 bytes | ... | piece 1 | ... | piece 2 | ...
                                  ^ place(0, 5)                ^ place(1, 3)

A file of Arrow has a piece for every thousand rows, say. A batch of 128 shuffled rows lies in as
many pieces, and to ask them one by one takes ten times as long as to gather the rows.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from ..leaves import ArrayForm
from ..read_context import read_context
from .columns import Numbers

_UNKNOWN, _ALONE = -1, -2  # in place of a place: not looked at yet; cannot be gathered
_MOST_STRETCHES = 8  # with more, pieces are asked one by one
_LARGE = 1 << 13  # bytes of a row, from which on rows are copied one by one


class Scattered:
    """Where the rows of one column begin, piece by piece; thread-safe."""

    def __init__(self, pieces: int) -> None:
        self._begins = np.full(pieces, _UNKNOWN, np.int64)
        self._stretch_of = np.zeros(pieces, np.int64)
        self._stretches: dict[int, _Stretch] = {}  # by the address where they begin
        self._form: ArrayForm | None = None
        self._size = 0  # bytes of a row
        self._lock = threading.Lock()

    def take(self, parts: Any, owner: np.ndarray, rows: np.ndarray) -> np.ndarray | None:
        """The rows of these pieces, `owner`; None if they cannot be gathered.

        `parts(number)` gives the part of a piece.
        """
        begins = self._begins[owner]
        if begins.min() < 0:
            for number in np.unique(owner[begins == _UNKNOWN]).tolist():
                self._learn(number, parts(number))
            begins = self._begins[owner]
            if begins.min() < 0:
                return None
        form, size, stretches = self._form, self._size, list(self._stretches.values())
        assert form is not None
        places = begins + rows * size
        out = read_context().empty((len(rows), *form.shape), form.dtype)
        room = out.reshape(len(rows), -1).view(np.uint8)
        if len(stretches) == 1:
            stretches[0].gather(places, size, room)
            return out
        which = self._stretch_of[owner]
        for number in np.unique(which).tolist():
            lanes = np.flatnonzero(which == number)
            part = np.empty((len(lanes), size), np.uint8)
            stretches[number].gather(places[lanes], size, part)
            room[lanes] = part
        return out

    def _learn(self, number: int, part: Any) -> None:
        with self._lock:
            place = self._place(number, part)
            self._begins[number] = _ALONE if place is None else place

    def _place(self, number: int, part: Any) -> int | None:
        """Where the piece begins in its stretch of memory."""
        if not isinstance(part, Numbers) or part.missing is not None:
            return None
        values = part.values
        if not values.flags.c_contiguous or not values.nbytes:
            return None
        if self._form is None:
            self._form, self._size = part.form, values[:1].nbytes
        if part.form != self._form:
            return None
        whole = _memory_of(values)
        address = _address(whole)
        known = self._stretches.get(address)
        if known is None and len(self._stretches) == _MOST_STRETCHES:
            return None
        if known is None or known.size < len(whole):  # two buffers may begin at one place
            self._stretches[address] = _Stretch(whole)
        self._stretch_of[number] = list(self._stretches).index(address)
        return _address(values) - address


class _Stretch:
    """Memory that holds many pieces."""

    def __init__(self, memory: np.ndarray) -> None:
        self._memory, self.size = memory, len(memory)
        self._windows: dict[int, np.ndarray] = {}

    def gather(self, places: np.ndarray, size: int, out: np.ndarray) -> None:
        """Writes the bytes from these places on, `size` of each, to `out`, uint8[n,size]."""
        if size < _LARGE:
            windows = self._windows.get(size)
            if windows is None:
                windows = self._windows[size] = _all_windows(self._memory, size)
            out.view(windows.dtype)[...] = windows[places].reshape(len(places), -1)
            return
        for room, begin in zip(out, places.tolist(), strict=True):
            room[...] = self._memory[begin : begin + size]


def _all_windows(memory: np.ndarray, size: int) -> np.ndarray:
    """A view of all `size` bytes that follow each other; indexing it makes a copy."""
    count = len(memory) - size + 1
    strided = np.lib.stride_tricks.as_strided
    if size in (2, 4, 8):  # as one number, which need not be aligned
        return strided(memory[:size].view(f"u{size}"), (count,), (1,), writeable=False)
    return strided(memory, (count, size), (1, 1), writeable=False)


def _memory_of(values: np.ndarray) -> np.ndarray:
    """The bytes in which these values lie: of a file, if it is mapped; otherwise their own."""
    root: Any = values
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not hasattr(root.base, "parent"):  # no buffer of Arrow
        return values.reshape(-1).view(np.uint8)
    buffer = root.base
    while buffer.parent is not None:
        buffer = buffer.parent
    return np.frombuffer(buffer, np.uint8)


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]
