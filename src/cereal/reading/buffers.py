"""Memory for batches, used again as soon as nobody holds the batch any more.

    a batch is read into a buffer  ->  JAX takes it as it is, without a copy  ->  the user drops it
                 ^                                                                      |
                 +----------------------------------------------------------------------+

A new array of 38 MB costs 12 ms of page faults, and a copy of it costs as much again. If an array
begins at a multiple of 64 bytes, JAX on the CPU uses it without a copy: the batch *is* the buffer.
Every array that was made from it without a copy holds a reference to it, and so does a running
program or a transfer. So a buffer is free when its reference count says that only our list has it.

The bet (`nobody_has`): CPython counts every reference to an array, also those of NumPy's views and
of JAX's arrays; and JAX holds a reference while a program or a transfer reads the memory. Without
the GIL, counts are not exact: then no buffer is used again. If the bet is lost, a batch that
somebody still holds is overwritten. `tests/reading/test_buffers.py`,
`test_memory_that_somebody_has_is_left_alone`, fails first.
"""

from __future__ import annotations

import math
import sys
import threading
from typing import Any

import numpy as np

ALIGNMENT = 64
LEAST_BYTES = 1 << 16  # below this, a new array is as fast
_counts_references = getattr(sys, "_is_gil_enabled", lambda: True)()
# References to a free buffer: one from the list, one from the argument of `getrefcount`.
_NOBODY = 2


class Buffers:
    """Buffers of a few sizes, at most `most` of each size; thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._owned: dict[int, list[np.ndarray]] = {}

    def owns(self, array: np.ndarray) -> bool:
        """Whether this array lies in one of these buffers. (Only cereal writes into them.)"""
        root: Any = array
        while isinstance(getattr(root, "base", None), np.ndarray):
            root = root.base
        return any(root is room for rooms in list(self._owned.values()) for room in list(rooms))

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array without values, like `np.empty`; in a free buffer if there is one."""
        dtype = np.dtype(dtype)
        size = math.prod(shape) * dtype.itemsize
        if size < LEAST_BYTES:
            return np.empty(shape, dtype)
        with self._lock:
            owned = self._owned.setdefault(size, [])
            for number in range(len(owned)):
                if nobody_has(owned, number):
                    return owned[number].view(dtype).reshape(shape)
            room = _aligned(size)
            if len(owned) < self._most and _counts_references:
                owned.append(room)
            return room.view(dtype).reshape(shape)


def nobody_has(owned: list[np.ndarray], number: int) -> bool:
    """Whether nothing but the list refers to one of its buffers."""
    return _counts_references and sys.getrefcount(owned[number]) <= _NOBODY


def _aligned(size: int) -> np.ndarray:
    """Bytes that begin at a multiple of the alignment. Views of the array have it as their base."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    begin = -raw.__array_interface__["data"][0] % ALIGNMENT
    return np.frombuffer(raw.data[begin : begin + size], np.uint8)


NO_BUFFERS = Buffers(0)  # every array is a new one
