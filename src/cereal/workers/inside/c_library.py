"""What Python does not offer of the C library: mapping files, comparing memory, keeping memory."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
import weakref
from typing import Any, cast

import numpy as np

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's `mallopt`
_REMOVE = 9  # MADV_REMOVE of Linux: gives the pages of a part back
_FAILED = ctypes.c_void_p(-1).value
_library = ctypes.CDLL(None, use_errno=True)
_library.mmap.restype = ctypes.c_void_p
_library.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_library.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def address_of(array: np.ndarray) -> int:
    """Where an array begins in memory."""
    return array.__array_interface__["data"][0]


def map_part(descriptor: int, begin: int, size: int, *, private: bool = False) -> np.ndarray:
    """A part of a file as an array of bytes; unmapped when nobody has the array any more.

    `private`: what this process writes, others do not see. (Python's `mmap` would keep one more
    file descriptor open for every part.)
    """
    kind = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
    rights = mmap.PROT_READ | mmap.PROT_WRITE
    address = _library.mmap(None, size, rights, kind, descriptor, begin)
    if address in (None, _FAILED):
        number = ctypes.get_errno()
        raise OSError(number, f"cannot map {size} bytes: {os.strerror(number)}")
    memory = (ctypes.c_uint8 * size).from_address(address)
    # At the end of the process, arrays of JAX may still lie here: then it is left mapped.
    weakref.finalize(memory, _library.munmap, address, size).atexit = False
    return np.frombuffer(cast(Any, memory), np.uint8)


def give_back_pages(part: np.ndarray) -> None:
    """Frees the memory of a mapped part; what it held is gone."""
    if sys.platform == "linux":
        _library.madvise(address_of(part), part.nbytes, _REMOVE)


def same_bytes(one: np.ndarray, other: np.ndarray, size: int) -> bool:
    """Whether the first bytes of two arrays are the same."""
    return _library.memcmp(address_of(one), address_of(other), size) == 0


def keep_memory() -> None:
    """Lets the C library keep freed memory of up to 64 MB for what comes next.

    Otherwise every image is decoded into fresh pages: 400 page faults a photo, a third of the time.
    """
    with contextlib.suppress(OSError, AttributeError):
        _library.mallopt(_TRIM_THRESHOLD, 64 * 2**20)
        _library.mallopt(_MMAP_THRESHOLD, 32 * 2**20)
