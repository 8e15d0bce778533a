"""Shared memory for batches, used again as soon as nobody has the batch any more.

    a worker writes into a slot  ->  the loader hands out arrays that lie in it  ->  free again

Whether a slot is free is known as for all buffers (`buffers`): its array counts the references of
all arrays that were made from it without a copy. A slot that nobody needs again is given back.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, NamedTuple

import numpy as np

from ...reading.buffers import nobody_has
from ..inside.c_library import address_of
from ..inside.shared_memory import PAGE, give_back_pages, map_part, new_file, reserve


class Slot(NamedTuple):
    """A part of the shared file: as an array, and its place and size."""

    memory: np.ndarray
    part: tuple[int, int]


class Slots:
    """Parts of one shared file. At most `most` free ones of each size are kept."""

    def __init__(self, most: int) -> None:
        self.file = new_file()
        self._most = most
        self._lock = threading.Lock()
        self._end = 0
        self._owned: dict[int, list[np.ndarray]] = {}
        self._last: dict[int, int] = {}  # by size, the number of the one that was taken last
        self._parts: dict[int, tuple[int, int]] = {}  # by the address of the array
        self._gaps: dict[int, list[int]] = {}  # places that were given back, by size
        self._dead: list[tuple[int, tuple[int, int]]] = []  # finalizers only append here
        self.close = weakref.finalize(self, os.close, self.file)

    def take(self, size: int) -> Slot:
        """A slot of at least this size; an OSError if there is no memory for it."""
        size = max(1, -(-size // PAGE)) * PAGE
        with self._lock:
            self._check_open()
            self._bury()
            owned = self._owned.setdefault(size, [])
            last = self._last.get(size, -1)  # after it come those that were used longest ago
            for number in (*range(last + 1, len(owned)), *range(last + 1)):
                if nobody_has(owned, number):
                    found, self._last[size] = owned[number], number
                    return Slot(found[:], self._parts[address_of(found)])
            found = self._new(size)
            if len(owned) < self._most:
                owned.append(found)
            return Slot(found[:], self._parts[address_of(found)])

    def keep(self, size: int) -> Slot:
        """A slot that is not used for batches; the caller keeps it."""
        with self._lock:
            self._check_open()
            self._bury()
            size = max(1, -(-size // PAGE)) * PAGE
            found = self._new(size)
            return Slot(found, self._parts[address_of(found)])

    def end(self) -> None:
        """Closes the file. Batches that somebody has stay as they are."""
        with self._lock:
            self.close()
            self._owned.clear()

    @property
    def ended(self) -> bool:
        return not self.close.alive

    def _check_open(self) -> None:
        if self.ended:  # its number may be that of another file by now
            raise OSError("the memory of the worker processes was closed")

    def _new(self, size: int) -> np.ndarray:
        gaps = self._gaps.get(size)
        begin = gaps.pop() if gaps else self._end
        reserve(self.file, begin, size)
        found = map_part(self.file, begin, size)
        self._end = max(self._end, begin + size)
        self._parts[address_of(found)] = (begin, size)
        gone = weakref.finalize(found, _note, self._dead, address_of(found), (begin, size))
        gone.atexit = False
        return found

    def _bury(self) -> None:
        """Gives back the slots that died since. (Their pages go, and their places are free.)"""
        while self._dead:
            address, part = self._dead.pop()
            if self._parts.get(address) == part:
                del self._parts[address]
            give_back_pages(map_part(self.file, *part))
            self._gaps.setdefault(part[1], []).append(part[0])


def _note(dead: list[Any], address: int, part: tuple[int, int]) -> None:
    dead.append((address, part))
