"""HDF5 files, by h5py: datasets of one length; groups are dicts.

contiguous      mapped into memory: HDF5 is not asked again
chunked         chunks of rows, decoded by HDF5, which does one at a time for all threads
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ....base.errors import PipelineError
from ....base.extras import needs
from ....base.fitting import is_numeric
from ...files.watched import WatchedFile
from .stored import StoredArray, StoredTable, Unreadable, stored_arrays, stored_in

_LEAST_PIECE = 1 << 15  # bytes: smaller chunks are read several at a time
_UNCHUNKED_PIECE = 1 << 20  # bytes that are read at once of what has no chunks and cannot be mapped


class HDF5Table(StoredTable):
    """The datasets of a file, or of some of its groups."""

    _reopened = ("_file",)

    def __init__(self, path: Path, keys: Any, owner: str, most_bytes: int = 1 << 30) -> None:
        self._owner, self.name = owner, path.name
        self._watched = [WatchedFile(path, owner)]
        tree = _tree(self._file, "", (self._file.id,))
        arrays = stored_arrays(tree, keys, owner, self.name, self._array)
        files = {name for array in stored_in(arrays) for name in self._other_files(array.name)}
        self._watched += [WatchedFile(name, owner) for name in sorted(files)]
        super().__init__(arrays, owner, most_bytes)
        self.classes = {
            array.name: names for array in self._arrays if (names := self._names_of(array.name))
        }

    @cached_property
    def _file(self) -> Any:
        """The open file of this process; HDF5 itself lets in one thread at a time."""
        h5py, path = needs("h5py", "hdf5", self._owner), self._watched[0].path
        self._watched[0].check()
        try:
            return h5py.File(path, "r")
        except OSError as error:
            locked = isinstance(error, BlockingIOError)
            why = "another program writes to it; wait until it is closed" if locked else str(error)
            raise PipelineError(
                f"{self._owner}: the file {path!r} cannot be opened: {why}."
            ) from error

    def check(self) -> None:
        for watched in self._watched:
            watched.check()

    def digest(self) -> Any:
        named = [[array.name, array.length] for array in self._arrays]
        return [[watched.digest() for watched in self._watched], named]

    # When it is built

    def _array(self, name: str) -> StoredArray:
        h5py = needs("h5py", "hdf5", self._owner)
        dataset = self._file[name]
        dtype, shape = dataset.dtype, tuple(dataset.shape[1:])
        if dtype.subdtype is not None:
            dtype, shape = dtype.base, (*shape, *dtype.shape)
        inner = h5py.check_vlen_dtype(dtype)
        text = h5py.check_string_dtype(dtype) is not None
        if dtype.hasobject and not text and (inner is None or shape):
            raise PipelineError(
                f"{self._owner}: {name!r} of {self.name!r} holds values that are no arrays "
                f"({dtype}): references, or text in a compound type; choose others by `keys=`."
            )
        plain = np.dtype(object) if text else _native(dtype)
        array = StoredArray(
            name, dataset.shape[0], shape, plain, 1, ragged=bool(inner) and not text
        )
        place = self._place(dataset) if _is_numbers(plain) else None
        return dataclasses.replace(array, place=place, rows=_rows_of_piece(dataset, array))

    def _place(self, dataset: Any) -> tuple[str, int, np.dtype[Any]] | None:
        """Where a dataset lies in the file, if it does so in one piece, as NumPy would write it."""
        h5py = needs("h5py", "hdf5", self._owner)
        ours = os.path.abspath(dataset.file.filename) == self._watched[0].path
        if not ours or dataset.chunks or dataset.is_virtual or dataset.external:
            return None
        as_numpy = h5py.h5t.py_create(dataset.dtype, logical=True)
        size = dataset.size * dataset.dtype.itemsize
        if dataset.id.get_type() != as_numpy or dataset.id.get_storage_size() != size:
            return None  # values that were never written have no place
        offset = dataset.id.get_offset()
        if offset is None or offset + size > self._watched[0].size:
            return None
        return self._watched[0].path, offset, dataset.dtype.base

    def _other_files(self, name: str) -> Iterator[str]:
        """Files beside this one from which a dataset is read."""
        dataset, folder = self._file[name], os.path.dirname(self._watched[0].path)
        parts = dataset.virtual_sources() if dataset.is_virtual else []
        names = [part.file_name for part in parts if part.file_name != "."]
        names += [each[0] for each in dataset.external or ()]
        names += [dataset.file.filename]
        for each in names:
            beside = os.path.join(folder, each)
            path = os.path.abspath(beside if os.path.exists(beside) else each)
            if path != self._watched[0].path and "%" not in each:
                yield path

    def _names_of(self, name: str) -> tuple[str, ...]:
        """The names of an enumeration that counts from 0."""
        h5py = needs("h5py", "hdf5", self._owner)
        values = h5py.check_enum_dtype(self._file[name].dtype) or {}
        by_number = {number: each for each, number in values.items()}
        if self._file[name].dtype == bool or sorted(by_number) != list(range(len(by_number))):
            return ()
        return tuple(by_number[number] for number in range(len(by_number)))

    # For every batch

    def read(self, array: StoredArray, pieces: Sequence[int]) -> list[np.ndarray]:
        h5py, found = needs("h5py", "hdf5", self._owner), []
        dataset = self._file[array.name]
        if h5py.check_string_dtype(dataset.dtype) is not None:
            dataset = dataset.asstr()
        for begin, end in _runs(pieces):
            try:
                values = dataset[begin * array.rows : end * array.rows]
            except (OSError, UnicodeDecodeError) as error:
                raise PipelineError(
                    f"{self._owner}: {array.name!r} of {self.name!r} cannot be read between rows "
                    f"{begin * array.rows} and {end * array.rows}: {error}."
                ) from error
            values = values.astype(array.dtype, copy=False)
            found += [values[at : at + array.rows] for at in range(0, len(values), array.rows)]
        return found


def _runs(pieces: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Pieces that follow one another, as (first, last + 1)."""
    begin = last = pieces[0]
    for number in pieces[1:]:
        if number != last + 1:
            yield begin, last + 1
            begin = number
        last = number
    yield begin, last + 1


def _rows_of_piece(dataset: Any, array: StoredArray) -> int:
    row = array.row_bytes
    if not dataset.chunks:
        return min(array.length, max(1, _UNCHUNKED_PIECE // row)) or 1
    rows = dataset.chunks[0]
    return min(rows * max(1, _LEAST_PIECE // (rows * row)), max(rows, array.length))


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in this machine's order of bytes, without the words that h5py adds."""
    if dtype.names is not None:
        return np.dtype([(name, _native_field(dtype[name])) for name in dtype.names])
    return np.dtype(object) if dtype.kind == "O" else np.dtype(dtype.newbyteorder("=").str)


def _native_field(dtype: np.dtype[Any]) -> Any:
    return _native(dtype) if dtype.subdtype is None else (_native(dtype.base), dtype.shape)


def _is_numbers(dtype: np.dtype[Any]) -> bool:
    if dtype.names is not None:
        return all(_is_numbers(dtype[name].base) for name in dtype.names)
    return is_numeric(dtype)


def _tree(group: Any, above: str, seen: tuple[Any, ...]) -> dict[str, Any]:
    """What a group holds: groups as dicts, and the names of datasets."""
    found: dict[str, Any] = {}
    for name in group:
        full = f"{above}/{name}".lstrip("/")
        try:
            inner = group[name]
        except (KeyError, OSError) as error:
            found[name] = Unreadable(full, f"is a link that leads nowhere ({error})")
            continue
        if hasattr(inner, "keys"):
            inside = inner.id in seen
            found[name] = (
                Unreadable(full, "is a link to a group around it")
                if inside
                else _tree(inner, full, (*seen, inner.id))
            )
        elif hasattr(inner, "shape"):
            scalar = Unreadable(full, "has no rows: it is a scalar", quiet=True)
            found[name] = full if inner.shape else scalar
    return found
