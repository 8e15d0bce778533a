"""Numbers that were found out about a file (where its records are), kept beside it.

    train.tfrecord  --read once-->  .train.tfrecord.cereal-index      int64, and a checksum
                                    its first words: what it is, the file's size and its time

They are written atomically, and never pickled. If the file has changed, or its neighbour is
damaged, they are found out again. Where the folder cannot be written to, they are kept in the
user's cache folder; where that cannot be either, in no file.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...base.atomic import write_atomically
from ...base.paths import user_cache
from .watched import WatchedFile

_VERSION = 1
_HEAD = 5  # words before the numbers: version, kind, size, time, checksum
log = logging.getLogger("cereal")


def kept_numbers(file: WatchedFile, kind: str, find: Callable[[], np.ndarray]) -> np.ndarray:
    """What `find()` returns, int64[n]: read from beside the file, or found out and written there.

    `kind` names what the numbers mean; numbers of another kind are not used.
    """
    head = _head(file, kind)
    for path in _places(file, kind):
        found = _read(path, head)
        if found is not None:
            return found
    numbers = np.ascontiguousarray(find(), np.int64)
    file.check()  # it must not have changed meanwhile
    whole = np.concatenate([np.array([*head, _checksum(numbers)], np.int64), numbers])
    for path in _places(file, kind):
        with contextlib.suppress(OSError):
            write_atomically(path, lambda out: np.save(out, whole, allow_pickle=False))
            return numbers
    log.warning("no folder can be written to, so the %s of %s is not kept", kind, file.path)
    return numbers


def _head(file: WatchedFile, kind: str) -> list[int]:
    _, size, time = file.digest()
    return [_VERSION, zlib.crc32(kind.encode()), size, time]


def _places(file: WatchedFile, kind: str) -> Iterator[Path]:
    """Where the numbers may be. A hidden name: a pattern such as `train*` does not match it."""
    path = Path(file.path)
    yield path.with_name(f".{path.name}.cereal-{kind}")
    of_path = hashlib.blake2b(os.fsencode(path), digest_size=16).hexdigest()
    yield user_cache() / kind / of_path


def _read(path: Path, head: list[int]) -> np.ndarray | None:
    """The numbers in a file; None if there are none, of another file, or damaged ones."""
    found: Any = None
    with contextlib.suppress(OSError, ValueError, EOFError):
        found = np.asarray(np.load(path, "r", allow_pickle=False))  # mapped: processes share it
    if found is None or found.dtype != np.int64 or found.ndim != 1 or len(found) < _HEAD:
        return None
    numbers = found[_HEAD:]
    if found[:_HEAD].tolist() != [*head, _checksum(numbers)]:
        return None
    return numbers


def _checksum(numbers: np.ndarray) -> int:
    return zlib.crc32(numbers.view(np.uint8).data)
