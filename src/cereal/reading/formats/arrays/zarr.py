"""Zarr stores, folders and .zip files, by the library zarr; groups are dicts."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ....base.errors import PipelineError
from ....base.extras import needs
from ...files.watched import WatchedFile
from .stored import StoredArray, StoredTable, Unreadable, stored_arrays, stored_in

_METADATA = ("zarr.json", ".zarray", ".zgroup", ".zmetadata")


class ZarrTable(StoredTable):
    """The arrays of a store, or of some of its groups."""

    _reopened = ("_store",)

    def __init__(self, path: Path, keys: Any, owner: str, most_bytes: int = 1 << 30) -> None:
        if not path.exists():
            raise PipelineError(f"{owner}: {str(path)!r} does not exist.")
        self._owner, self.name, self._path = owner, path.name, os.path.abspath(path)
        self._built = time.time_ns()
        arrays = stored_arrays(_tree(self._store, ""), keys, owner, self.name, self._array)
        self._watched = [WatchedFile(file, owner) for file in self._metadata(arrays)]
        super().__init__(arrays, owner, most_bytes)

    @cached_property
    def _store(self) -> Any:
        """The open array or group of this process."""
        zarr = needs("zarr", "zarr", self._owner)
        try:
            if os.path.isdir(self._path):
                return zarr.open(self._path, mode="r")
            return zarr.open(zarr.storage.ZipStore(self._path, mode="r"), mode="r")
        except Exception as error:
            raise PipelineError(
                f"{self._owner}: {self._path!r} is no Zarr store, or it is damaged: {error}."
            ) from error

    def check(self) -> None:
        for watched in self._watched:
            watched.check()

    def digest(self) -> Any:
        named = [[array.name, array.length] for array in self._arrays]
        return [[watched.digest() for watched in self._watched], named]

    def _opened(self, name: str) -> Any:
        return self._store[name] if name else self._store

    # When it is built

    def _array(self, name: str) -> StoredArray:
        array = self._opened(name)
        dtype, shape = np.dtype(array.dtype), tuple(array.shape[1:])
        dtype = dtype if dtype.kind in "OTV" else dtype.newbyteorder("=")
        first = array[:1] if dtype.kind == "O" else ()
        ragged = len(first) > 0 and isinstance(first[0], np.ndarray)
        plain = np.dtype(object) if dtype.kind == "T" else dtype
        rows = max(1, min(array.chunks[0], array.shape[0]))
        return StoredArray(name, array.shape[0], shape, plain, rows, ragged)

    def _metadata(self, arrays: Any) -> list[str]:
        """The files that say what the arrays are; of a .zip, the file itself."""
        if not os.path.isdir(self._path):
            return [self._path]
        folders = {self._path, *(os.path.join(self._path, each.name) for each in stored_in(arrays))}
        paths = [os.path.join(folder, name) for folder in sorted(folders) for name in _METADATA]
        return [path for path in paths if os.path.exists(path)]

    # For every batch

    def read(self, array: StoredArray, pieces: Sequence[int]) -> list[np.ndarray]:
        """All pieces by one call: zarr reads and decodes their chunks side by side."""
        opened = self._opened(array.name)
        bounds = [
            (number * array.rows, min((number + 1) * array.rows, array.length)) for number in pieces
        ]
        rows = np.concatenate([np.arange(begin, end) for begin, end in bounds])
        try:
            joined = int(rows[-1]) - int(rows[0]) + 1 == len(rows)
            some = slice(int(rows[0]), int(rows[-1]) + 1) if joined else rows
            values = opened[some] if joined else opened.oindex[some]
        except Exception as error:
            raise PipelineError(
                f"{self._owner}: {array.name!r} of {self.name!r} cannot be read between rows "
                f"{rows[0]} and {rows[-1]}: {error}."
            ) from error
        self._check_chunks(opened, array, pieces)
        values = np.asarray(values).astype(array.dtype, copy=False)
        ends = np.cumsum([end - begin for begin, end in bounds])
        return np.split(values, ends[:-1])

    def _check_chunks(self, opened: Any, array: StoredArray, pieces: Sequence[int]) -> None:
        """Raises if a chunk was written after the source was built."""
        if not os.path.isdir(self._path):
            return
        sizes = getattr(opened, "shards", None) or opened.chunks
        others = [range(-(-n // size)) for n, size in zip(opened.shape[1:], sizes[1:], strict=True)]
        for number in sorted({piece * array.rows // sizes[0] for piece in pieces}):
            for place in itertools.product([number], *others):
                key = opened.metadata.encode_chunk_key(place)
                path = os.path.join(self._path, array.name, key)
                there = path
                while not os.path.exists(there):  # a chunk without values has no file
                    there = os.path.dirname(there)
                if os.stat(there).st_mtime_ns > self._built:
                    raise PipelineError(
                        f"{self._owner}: the chunk {path!r} was written after the source was "
                        f"built; build the source and the loader again."
                    )


def _tree(node: Any, above: str) -> Any:
    """Groups as dicts; the names of arrays."""
    if hasattr(node, "shape"):
        scalar = Unreadable(above, "has no rows: it is a scalar", quiet=True)
        return above if node.shape else scalar
    return {name: _tree(inner, f"{above}/{name}".lstrip("/")) for name, inner in node.members()}
