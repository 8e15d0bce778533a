"""TFRecord files: where their records are is found out once, then any of them can be read.

    length (8 bytes), its checksum (4) | data | the checksum of the data (4)      a record

The places of all records are kept beside the file (`files/kept_index`). Whatever is read is
checked against both checksums, so damage is an error, and so is a file that ends too early.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...base.errors import DatasetError
from ..files.kept_index import kept_index
from ..files.random_access import RandomAccess
from ..files.watched import WatchedFile
from .crc32c import crc32c, masked, of_rows
from .record_table import RecordFiles

_KIND = "tfrecord 1"  # the form of the index
_HEAD, _TAIL = 12, 4  # bytes before and after the data
_AT_ONCE = 1 << 16  # records whose lengths are checked together
_WINDOW = 1 << 18  # bytes that are read at once to find small records
_GZIP, _ZLIB = b"\x1f\x8b", (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")


class TFRecordFiles(RecordFiles):
    """The records of TFRecord files."""

    def __init__(self, paths: Sequence[str], owner: str) -> None:
        self._files, self._owner = [WatchedFile(path, owner) for path in paths], owner
        self.lengths = [len(self._starts(number)) - 1 for number in range(len(paths))]

    def path(self, number: int) -> str:
        return self._files[number].path

    def digest(self) -> Any:
        return [file.digest() for file in self._files]

    def __getstate__(self) -> dict[str, Any]:
        gone = ("_places", "_open")  # another process opens the files for itself
        return {name: value for name, value in vars(self).items() if name not in gone}

    @cached_property
    def _places(self) -> dict[int, np.ndarray]:
        return {}

    @cached_property
    def _open(self) -> RandomAccess:
        return RandomAccess(self._files)

    def _starts(self, number: int) -> np.ndarray:
        """int64[n + 1]: where the records of a file begin; at last, where it ends."""
        found: Any = self._places.get(number)
        if found is None:
            file = self._files[number]
            make = lambda: {"starts": find_records(file.path, file.size, self._owner)}  # noqa: E731
            found = kept_index(file, _KIND, make).get("starts")
            if not _is_index(found, file.size):  # somebody else wrote it
                found = make()["starts"]
            self._places[number] = found
        return found

    def read_file(self, number: int, records: list[int]) -> Sequence[bytes]:
        file = self._files[number]
        file.check()
        starts = self._starts(number)
        places = starts[records].tolist()
        sizes = (starts[np.asarray(records) + 1] - starts[records]).tolist()
        read = self._open.read
        whole = [read(number, at, size) for at, size in zip(places, sizes, strict=True)]
        data = [each[_HEAD:-_TAIL] for each in whole]
        self._check(number, records, whole, data, sizes)
        return data

    def _check(
        self, number: int, records: list[int], whole: Any, data: list[bytes], sizes: list[int]
    ) -> None:
        """Compares each length with the index, whose lengths were checked, and the checksums."""
        heads = b"".join([each[:8] for each in whole])
        tails = b"".join([each[-_TAIL:] for each in whole])
        complete = list(map(len, whole)) == sizes
        if complete:
            right = np.frombuffer(heads, "<u8") == np.array(sizes, np.uint64) - (_HEAD + _TAIL)
            right &= np.frombuffer(tails, "<u4") == masked(crc32c(data))
            if right.all():
                return
            at = int(np.argmin(right))
        else:
            at = next(k for k, each in enumerate(whole) if len(each) != sizes[k])
        place = int(self._starts(number)[records[at]])
        raise DatasetError(
            f"{self._owner}: record {records[at]} of {self.path(number)!r}, at byte {place}, is "
            f"damaged: its checksum is wrong; get the file again, or leave such elements out: "
            f'`DataLoader(..., on_error="skip")`.'
        )


def _is_index(starts: Any, size: int) -> bool:
    """Whether these may be the places of the records of a file of this size."""
    if starts is None or starts.dtype != np.int64 or starts.ndim != 1 or not len(starts):
        return False
    return starts[0] == 0 and starts[-1] == size and not (np.diff(starts) < _HEAD + _TAIL).any()


def _right_heads(heads: bytes) -> np.ndarray:
    """Whether the checksum of each length is right."""
    rows = np.frombuffer(heads, np.uint8).reshape(-1, _HEAD)
    return masked(of_rows(rows[:, :8])) == np.frombuffer(heads, "<u8,<u4")["f1"]


def find_records(path: str, size: int, owner: str) -> np.ndarray:
    """int64[n + 1]: where the records of a file begin; at last, where it ends."""
    starts, heads, at, first = [0], [], 0, 0
    length, window, begin = struct.Struct("<Q").unpack_from, b"", 0
    with open(path, "rb", buffering=0) as file:
        while at < size:
            inside = at - begin
            if inside + _HEAD > len(window):
                small = at < len(starts) * (_WINDOW // 8)  # on average
                window, begin = os.pread(file.fileno(), _WINDOW if small else 4096, at), at
                inside = 0
            head = window[inside : inside + _HEAD]
            heads.append(head)
            if len(heads) == _AT_ONCE:
                _check_heads(heads, starts, first, path, owner)
                first, heads = len(starts), []
            # (A head that is not complete belongs to a record that ends after the file.)
            at += _HEAD + _TAIL + (length(head)[0] if len(head) == _HEAD else size)
            starts.append(at)
    _check_heads(heads, starts, first, path, owner)
    if at != size:
        number = len(starts) - 2
        raise DatasetError(
            f"{owner}: {path!r} is truncated: record {number}, at byte {starts[number]}, should "
            f"end at byte {at}, and the file has {size}; get the file again."
        )
    return np.array(starts, np.int64)


def _check_heads(heads: list[bytes], starts: list[int], first: int, path: str, owner: str) -> None:
    """Refuses lengths whose checksums are wrong; `first` is the number of the first of them."""
    whole = heads if not heads or len(heads[-1]) == _HEAD else heads[:-1]
    right = _right_heads(b"".join(whole)) if whole else np.ones(0, np.bool_)
    if right.all():
        return
    number = first + int(np.argmin(right))
    fix = "get the file again"
    if number == 0 and heads[0].startswith(_GZIP):
        fix = "it is compressed by gzip, which cannot be read at any place: unpack it, by `gunzip`"
    elif number == 0 and heads[0].startswith(_ZLIB):
        fix = "it may be compressed (`ZLIB`): write it again without `compression_type`"
    raise DatasetError(
        f"{owner}: {path!r} is damaged, or no TFRecord file: record {number}, at byte "
        f"{starts[number]}, has a length whose checksum is wrong; {fix}."
    )
