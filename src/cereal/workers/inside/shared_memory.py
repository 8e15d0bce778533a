"""Memory that several processes see: parts of one file without a name.

The file is in memory (`memfd_create`; elsewhere a temporary file whose name is removed at once). So
nothing has to be cleaned up: if all processes that have it end, even by SIGKILL, it is gone. It
does not lie in `/dev/shm`, whose size does not matter.

A part is mapped by `mmap` of the C library. Python's `mmap` would keep one more file descriptor
open for every part.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
import weakref
from typing import Any, cast

import numpy as np

PAGE = mmap.PAGESIZE
_REMOVE = 9  # MADV_REMOVE of Linux: gives the pages of a part back
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
_FAILED = ctypes.c_void_p(-1).value


def new_file() -> int:
    """The descriptor of an empty file in memory."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("cereal")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def reserve(descriptor: int, begin: int, size: int) -> None:
    """Makes room for a part. Without it, writing would end the process if memory is short."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, begin, size)
    else:
        os.ftruncate(descriptor, max(os.fstat(descriptor).st_size, begin + size))


def map_part(descriptor: int, begin: int, size: int, *, private: bool = False) -> np.ndarray:
    """A part of the file as an array of bytes; unmapped when nobody has the array any more.

    `private`: what this process writes, others do not see.
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


def as_bytes(array: np.ndarray) -> memoryview:
    """The memory of an array."""
    return memoryview(cast(Any, array))


def give_back_pages(part: np.ndarray) -> None:
    """Frees the memory of a mapped part; what it held is gone."""
    if sys.platform == "linux":
        _library.madvise(part.ctypes.data, part.nbytes, _REMOVE)
