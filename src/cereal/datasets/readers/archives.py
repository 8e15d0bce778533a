"""Reads members of archives without unpacking them to disk, so no member can write a file."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...base.errors import DatasetError

_GZIP = b"\x1f\x8b"
_STORED, _DEFLATED = 0, 8


def unzipped(data: bytes, path: Path) -> bytes:
    """The bytes; if they are a gzip file, its contents."""
    if data[:2] != _GZIP:
        return data
    pieces = []
    try:
        while data[:2] == _GZIP:  # all at once: faster than through a file object
            unpack = zlib.decompressobj(31)
            pieces.append(unpack.decompress(data))
            if not unpack.eof:
                raise zlib.error("it ends too early")
            data = unpack.unused_data.lstrip(b"\0")  # zeros may follow as padding
        if data:
            raise zlib.error("other bytes follow")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    except zlib.error as error:
        raise _damaged(path, "gzip file", error) from error


def _damaged(path: Path, kind: str, error: Exception) -> DatasetError:
    return DatasetError(
        f"{path} is a damaged {kind} ({error}); delete it, so that it is fetched again."
    )


def _missing(path: Path, name: str) -> DatasetError:
    return DatasetError(f"{path} has no member {name!r}; is it another archive?")


def tar_members(path: Path, names: Sequence[str]) -> list[bytes]:
    """The contents of the members with these names, in this order."""
    import tarfile

    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if name in names and member.isfile():
                    file = archive.extractfile(member)
                    found[name] = b"" if file is None else file.read()
                if len(found) == len(names):
                    break
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise _damaged(path, "archive", error) from error
    for name in names:
        if name not in found:
            raise _missing(path, name)
    return [found[name] for name in names]


class ZipMembers:
    """The members of a zip archive by name; any thread can read any of them."""

    def __init__(self, path: Path) -> None:
        import zipfile

        self.path = path
        try:
            with zipfile.ZipFile(path) as archive:
                infos = [info for info in archive.infolist() if not info.is_dir()]
        except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError, OSError) as error:
            raise _damaged(path, "archive", error) from error
        # Numbers, not objects: an archive may have hundreds of thousands of members.
        self._rows = {info.filename: row for row, info in enumerate(infos)}
        columns = ("header_offset", "compress_size", "compress_type", "CRC")
        self._where = np.array(
            [[getattr(info, name) for name in columns] for info in infos], np.int64
        ).reshape(-1, len(columns))

    def __contains__(self, name: str) -> bool:
        return name in self._rows

    def __iter__(self):
        return iter(self._rows)

    def read(self, name: str) -> bytes:
        """The contents of a member."""
        if name not in self._rows:
            raise _missing(self.path, name)
        offset, size, method, crc = map(int, self._where[self._rows[name]])
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                header = file.read(30)
                file.seek(int.from_bytes(header[26:28], "little"), os.SEEK_CUR)
                file.seek(int.from_bytes(header[28:30], "little"), os.SEEK_CUR)
                data = file.read(size)
            if method == _DEFLATED:
                data = zlib.decompress(data, -15)
            elif method != _STORED:
                raise zlib.error(f"compressed by a method that is not known, {method}")
            if zlib.crc32(data) != crc:
                raise zlib.error("its checksum is wrong")
        except (zlib.error, OSError) as error:
            raise DatasetError(
                f"{self.path}: the member {name!r} is damaged ({error}); delete the archive, so "
                f"that it is fetched again."
            ) from error
        return data
