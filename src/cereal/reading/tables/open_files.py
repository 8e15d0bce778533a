"""Open files, for reading at any place by several threads; those that were used last stay open."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

_MOST = 256  # an operating system may allow a process only 1,024


class OpenFiles:
    """Opens files when they are needed, and closes those that were not needed for long."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths, self._lock = paths, threading.Lock()
        self._open: OrderedDict[int, _OpenFile] = OrderedDict()

    @contextlib.contextmanager
    def file(self, number: int) -> Iterator[int]:
        """Within it, the descriptor of a file is open."""
        with self._lock:
            found = self._open.get(number)
            if found is None:
                found = self._open[number] = _OpenFile(self._paths[number])
            self._open.move_to_end(number)
            while len(self._open) > _MOST:
                self._open.popitem(last=False)
        yield found.descriptor  # `found` keeps it open, even if another thread drops it


class _OpenFile:
    """A descriptor that is closed with the last reference to it."""

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        descriptor = vars(self).pop("descriptor", None)
        if descriptor is not None:
            close(descriptor)
