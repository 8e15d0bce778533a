"""Files that are mapped into memory: they must not become shorter, and must not change.

To read a page of a mapped file that is no longer there ends the whole process (SIGBUS), so the
sizes are looked at before every batch. This takes less than a microsecond. Asking for the time
when a file was written takes longer (two microseconds, and more where disks are far away), and is
done as often as it takes one part in fifty of the time: for a few files, before each batch.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ...base.errors import PipelineError

_SHARE = 50  # a look at the times of files is followed by a pause this many times as long,
_PAUSE = 0.02  # and never longer than these seconds
Status = tuple[int, int, int]  # inode, size, time


class MappedFiles:
    """The files that some arrays are mapped from."""

    def __init__(self, arrays: Iterable[Any]) -> None:
        found = {id(root.base): root for root in map(mapped_root, arrays) if root is not None}
        self._maps = [
            (root.base, root.offset + root.nbytes, str(root.filename)) for root in found.values()
        ]
        self._seen: dict[str, Status] = {}
        self._next = 0.0

    @property
    def seen(self) -> dict[str, Status]:
        """What is known about files that must not change."""
        return self._seen

    def watch(self, seen: Mapping[str, Status] | None = None) -> None:
        """From now on, files that are written to are an error; `seen` is how they should be."""
        if seen is None:
            paths = {os.path.abspath(path) for _, _, path in self._maps}
            seen = {path: _status(path) for path in paths if os.path.exists(path)}
        else:
            for path, known in seen.items():  # opened again by their names
                if not os.path.exists(path) or _status(path) != known:
                    raise _changed(path)
        self._seen = dict(seen)

    def check(self) -> None:
        """Raises if a file is shorter than what is mapped of it, or was written to."""
        for mapped, needed, path in self._maps:
            if mapped.size() < needed:
                raise PipelineError(
                    f"the file {path!r} was cut off while it was being read: it has "
                    f"{mapped.size()} bytes, and its arrays need {needed}; write it again under "
                    f"another name, then rename it, and build the source and the loader again."
                )
        start = time.monotonic()
        if self._seen and start > self._next:
            for path, known in self._seen.items():
                self._compare(path, known)
            end = time.monotonic()
            self._next = end + min(_SHARE * (end - start), _PAUSE)

    def _compare(self, path: str, known: Status) -> None:
        try:
            now = _status(path)
        except OSError:
            return  # a file that was deleted or renamed is read as it was
        if now != known and now[0] == known[0]:
            raise _changed(path)


def mapped_root(leaf: Any) -> Any:
    """The `np.memmap` that holds the memory of an array; None if there is none."""
    root = leaf
    while isinstance(getattr(root, "base", None), np.memmap):
        root = root.base
    mapped = isinstance(root, np.memmap) and isinstance(root.base, mmap.mmap)
    return root if mapped and root.filename is not None else None


def _status(path: str) -> Status:
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


def _changed(path: str) -> PipelineError:
    return PipelineError(
        f"the file {path!r} has changed since the source was built, so its rows are not what they "
        f"were; write such a file under another name, then rename it, and build the source and the "
        f"loader again."
    )
