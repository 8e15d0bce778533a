"""Where the members of a tar begin, as arrays.

    a/1.jpg  a/1.cls  a/2.jpg  a/2.cls      keys        "a/1", "a/2"
                                            extensions  "jpg", "cls"
                                            begins      [[512, 40960], ...]    sizes  [[...], ...]

As WebDataset has it, the name of a member up to the first dot behind the last slash is the key of
its sample; the rest is its extension.
"""

from __future__ import annotations

import re
import tarfile
from array import array
from typing import Any

import numpy as np

from ...base.errors import DatasetError, PipelineError
from ..files.kept_index import Index, kept_index
from ..files.watched import WatchedFile
from ..tables.words import Words

KIND = "tar 1"  # the form of the index
_NAME = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)", re.DOTALL)
_MOST_EXTENSIONS = 64
_PACKED = {
    b"\x1f\x8b": "gunzip --keep",
    b"BZh": "bunzip2 --keep",
    b"\xfd7zXZ": "unxz --keep",
    b"\x28\xb5\x2f\xfd": "unzstd",
    b"\x04\x22\x4d\x18": "unlz4 --keep",
}
_KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}


def tar_index(file: WatchedFile, owner: str) -> Index:
    """The index of a tar, made once and kept beside it."""
    index = kept_index(file, KIND, lambda: _Members(file, owner).index())
    sizes = index["sizes"]
    ends = index["begins"] + np.maximum(sizes, 0)
    if (index["begins"] < 0).any() or ends.max(initial=0) > file.size:  # somebody else wrote it
        index = _Members(file, owner).index()
    return index


def texts(index: Index, name: str) -> Words:
    """The texts that an index holds under a name."""
    return Words(index[name], index[f"{name}_ends"])


class _Members:
    """Reads all headers of a tar, from front to back."""

    def __init__(self, file: WatchedFile, owner: str) -> None:
        self._file, self._where = file, f"{owner}: {file.path!r}"
        self._rows: dict[str, int] = {}  # the samples, and the extensions, in their order
        self._extensions: dict[str, int] = {}
        self._members = array("q")  # row, extension, begin, size; row, ...
        self._ignored = 0

    def index(self) -> Index:
        with open(self._file.path, "rb") as opened:
            self._refuse_packed(opened.read(8))
            opened.seek(0)
            self._read(opened)
        names, n = list(self._extensions), len(self._rows)
        if len(names) > _MOST_EXTENSIONS:
            raise PipelineError(
                f"{self._where}: its members have {len(names)} different extensions, such as "
                f"{names[0]!r} and {names[-1]!r}: everything after the first dot of a name is one. "
                f"Write the tar again, without dots in the names of samples."
            )
        members = np.array(self._members, np.int64).reshape(-1, 4)
        rows, columns, begins, sizes = members.T
        self._refuse_twins(rows * max(1, len(names)) + columns)
        found = np.zeros((n, len(names)), np.int64), np.full((n, len(names)), -1, np.int64)
        found[0][rows, columns], found[1][rows, columns] = begins, sizes
        keys, extensions = Words.of(self._rows), Words.of(names)
        return {
            "keys": keys.letters,
            "keys_ends": keys.ends,
            "extensions": extensions.letters,
            "extensions_ends": extensions.ends,
            "begins": found[0],
            "sizes": found[1],
            "ignored": np.array([self._ignored]),
        }

    def _refuse_twins(self, places: np.ndarray) -> None:
        found, times = np.unique(places, return_counts=True)
        if (times > 1).any():
            row, column = divmod(int(found[np.argmax(times > 1)]), len(self._extensions))
            raise PipelineError(
                f"{self._where}: the sample {list(self._rows)[row]!r} has two members "
                f"{list(self._extensions)[column]!r}; give each sample a name of its own."
            )

    def _refuse_packed(self, begin: bytes) -> None:
        for magic, command in _PACKED.items():
            if begin.startswith(magic):
                path = self._file.path
                raise PipelineError(
                    f"{self._where} is compressed, so samples in it cannot be reached directly; "
                    f"unpack it once, `{command} {path}`, and name the .tar that this writes. "
                    f"(Photos do not get smaller by it anyway.)"
                )

    def _read(self, opened: Any) -> None:
        last = ""
        try:
            with tarfile.open(fileobj=opened, mode="r:") as tar:
                while (member := tar.next()) is not None:
                    last = member.name
                    self._add(member)
                    getattr(tar, "members", []).clear()  # a kilobyte each
                end = tar.offset
        except tarfile.TarError as error:
            if not last:
                raise DatasetError(f"{self._where} is no tar file: {error}.") from error
            raise self._truncated(last, str(error)) from error
        self._check_end(opened, end, last)

    def _truncated(self, last: str, why: str) -> DatasetError:
        return DatasetError(
            f"{self._where} is truncated: {why}, in or after its member {last!r}; copy or write "
            f"the file again."
        )

    def _check_end(self, opened: Any, end: int, last: str) -> None:
        """A tar ends with blocks of zeros. `tarfile` stops without a word where it cannot go on."""
        opened.seek(end)
        block = opened.read(512)
        if len(block) < 512:
            raise self._truncated(last, "the mark of its end is missing")
        if any(block):
            raise DatasetError(
                f"{self._where} is damaged: at byte {end:,}, after its member {last!r}, there is "
                f"neither a member nor the end; copy or write the file again."
            )
        if any(opened.read(1 << 16)):
            raise PipelineError(
                f"{self._where} goes on behind its end, at byte {end:,} (several tars in one "
                f"file?); name each tar by itself, or join them by `tar --concatenate`."
            )

    def _add(self, member: tarfile.TarInfo) -> None:
        name = member.name
        if name.startswith("/") or ".." in name.split("/"):
            raise PipelineError(
                f"{self._where}: its member {name!r} has a path that leads outside; write the tar "
                f"again, from inside of its folder (`tar --create --file=x.tar --directory=folder "
                f".`)."
            )
        if member.isdir():
            return
        if not member.isreg() or member.issparse():
            kind = _KINDS.get(member.type, "of an unknown kind")
            raise PipelineError(
                f"{self._where}: its member {name!r} is {kind}, and no plain file; write the tar "
                f"again with what it stands for (`tar --dereference --hard-dereference ...`)."
            )
        found = _NAME.fullmatch(name.removeprefix("./"))
        if found is None:  # a README, a hidden file: as WebDataset does
            self._ignored += 1
            return
        key, extension = found[1], found[2].lower()
        row = self._rows.setdefault(key, len(self._rows))
        column = self._extensions.setdefault(extension, len(self._extensions))
        self._members.extend((row, column, member.offset_data, member.size))
