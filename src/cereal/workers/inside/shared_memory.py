"""Memory that several processes see: parts of one file without a name.

The file is in memory (`memfd_create`; elsewhere a temporary file whose name is removed at once). So
nothing has to be cleaned up: if all processes that have it end, even by SIGKILL, it is gone. It
does not lie in `/dev/shm`, whose size does not matter.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Any, cast

import numpy as np

from .c_library import give_back_pages as give_back_pages
from .c_library import map_part as map_part

PAGE = mmap.PAGESIZE


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


def as_bytes(array: np.ndarray) -> memoryview:
    """The memory of an array."""
    return memoryview(cast(Any, array))
