"""Memory for batches that is used again as soon as nobody has it.

    a batch is read into a buffer  ->  JAX takes it as it is, without a copy  ->  the user drops it
                 ^                                                                      |
                 +----------------------------------------------------------------------+

A fresh array of 38 MB costs 12 ms of page faults, and a copy of it as much again. JAX on the CPU
takes an array that begins at a multiple of 64 bytes as it is: the batch *is* the buffer, as long as
any array lives that was made from it without a copy. A running program and a transfer hold it too.
So a buffer is free when nothing but this list refers to it, and Python counts exactly that.

The bet (`_nobody_has`): CPython counts every reference to an array, those of NumPy's views and of
JAX's arrays too, and JAX keeps one for as long as a program or a transfer reads the memory. Without
the GIL counts are not exact: then nothing is used again. If the bet is lost, a batch that somebody
still has is overwritten; `tests/core/test_buffers.py`,
`test_memory_that_somebody_has_is_left_alone`, fails first.
"""

from __future__ import annotations

import math
import sys
import threading
from typing import Any

import numpy as np

ALIGNMENT = 64
LEAST_BYTES = 1 << 16  # below, a fresh array is as fast
_counts_references = getattr(sys, "_is_gil_enabled", lambda: True)()
# What refers to a buffer that nobody has: the list, and the argument of getrefcount.
_NOBODY = 2


class Buffers:
    """Buffers of a few sizes, at most so many of each; thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._owned: dict[int, list[np.ndarray]] = {}

    def owns(self, array: np.ndarray) -> bool:
        """Whether this array lies in one of these buffers, which nobody else writes into."""
        root: Any = array
        while isinstance(getattr(root, "base", None), np.ndarray):
            root = root.base
        return any(root is room for rooms in list(self._owned.values()) for room in list(rooms))

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array without values, like `np.empty`, in memory that was used before if it can be."""
        dtype = np.dtype(dtype)
        size = math.prod(shape) * dtype.itemsize
        if size < LEAST_BYTES:
            return np.empty(shape, dtype)
        with self._lock:
            owned = self._owned.setdefault(size, [])
            for number in range(len(owned)):
                if _nobody_has(owned, number):
                    return owned[number].view(dtype).reshape(shape)
            room = _aligned(size)
            if len(owned) < self._most and _counts_references:
                owned.append(room)
            return room.view(dtype).reshape(shape)


def _nobody_has(owned: list[np.ndarray], number: int) -> bool:
    """Whether nothing but the list refers to one of its buffers."""
    return _counts_references and sys.getrefcount(owned[number]) <= _NOBODY


def _aligned(size: int) -> np.ndarray:
    """Bytes that begin at a multiple of the alignment; the array is the owner of its views."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    begin = -raw.__array_interface__["data"][0] % ALIGNMENT
    return np.frombuffer(raw.data[begin : begin + size], np.uint8)


NO_BUFFERS = Buffers(0)  # every array is a new one
