"""Bytes at any place of many files, read by many threads.

    files.read(3, begin, size)      `os.pread`: threads share one descriptor, and no position

A file is opened when it is first read. At most 64 are open; the one that was used the longest time
ago is closed when no thread reads it any more.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from .watched import WatchedFile

_MOST_OPEN = 64


class _Descriptor:
    """An open file. It is closed when nobody refers to it."""

    def __init__(self, path: str) -> None:
        self.number = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))

    def __del__(self, close: object = os.close) -> None:
        number = getattr(self, "number", None)
        if number is not None:
            close(number)  # type: ignore[operator]


class RandomAccess:
    """Files that are open for reading. (Do not pickle it: open it again.)"""

    def __init__(self, files: Sequence[WatchedFile]) -> None:
        self._files = files
        self._open: OrderedDict[int, _Descriptor] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, numbers: Iterable[int]) -> None:
        """Raises if one of these files has changed."""
        for number in numbers:
            self._files[number].check()

    def _descriptor(self, number: int) -> _Descriptor:
        with self._lock:
            found = self._open.get(number)
            if found is None:
                found = self._open[number] = _Descriptor(self._files[number].path)
                if len(self._open) > _MOST_OPEN:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(number)
            return found

    def read(self, number: int, begin: int, size: int) -> bytes:
        """So many bytes of a file; fewer only if the file ends before."""
        file = self._descriptor(number)
        data = os.pread(file.number, size, begin)
        while len(data) < size:  # a signal, or more than 2 GB
            more = os.pread(file.number, size - len(data), begin + len(data))
            if not more:
                break
            data += more
        return data
