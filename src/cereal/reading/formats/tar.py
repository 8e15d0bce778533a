"""WebDataset tars as a table: one row for each sample, read by `pread` at its place."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...base.errors import DatasetError, PipelineError, in_one_line
from ..files.kept_index import Index
from ..files.random_access import RandomAccess
from ..files.watched import WatchedFile
from ..images.names import ENCODED, SUFFIXES
from ..leaves import ArrayForm
from ..tables.table import Table, objects
from .tar_index import tar_index, texts

KEY = "__key__"
Columns = dict[str, tuple[str, ...]]
_NUMBERS = ("cls", "cls2", "class", "count", "index", "inx", "id")
_TEXTS = ("txt", "text", "transcript")


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _array(data: bytes) -> np.ndarray:
    return np.load(io.BytesIO(data), allow_pickle=False)


def decoder_of(extension: str) -> Callable[[bytes], Any] | None:
    """What makes a value of a member of this extension; None: it stays bytes."""
    last = extension.rpartition(".")[2]
    if last in _NUMBERS:
        return int
    if last in _TEXTS:
        return _text
    return {"json": json.loads, "jsn": json.loads, "npy": _array}.get(last)


class TarTable(Table):
    """Samples of tars, one after another.

    `columns`: for each name the extensions that it may have; None: every extension is a column.
    `auto`: members are decoded by their extensions; otherwise they stay bytes.
    """

    _reopened = ("_open",)

    def __init__(
        self, paths: Sequence[str], columns: Columns | None, auto: bool, owner: str
    ) -> None:
        self._owner, self._files = owner, [WatchedFile(path, owner) for path in paths]
        tars = [_Tar(file, tar_index(file, owner)) for file in self._files]
        self._ends = np.cumsum([tar.n for tar in tars], dtype=np.int64)
        self._keys = [tar.keys for tar in tars]
        found = list(dict.fromkeys(name for tar in tars for name in tar.extensions))
        columns = {name: (name,) for name in (KEY, *found)} if columns is None else columns
        _check_columns(columns, found, tars, owner)
        self._names = sorted(columns)  # as JAX sorts the keys of a dict
        self._columns = {name: columns[name] for name in self._names if name != KEY}
        self._decoders = {
            name: _one_decoder(name, extensions, owner) if auto else None
            for name, extensions in self._columns.items()
        }
        places = [tar.places(tuple(self._columns.values())) for tar in tars]
        _refuse_gaps(tars, places, self._columns, owner)
        self._begins = np.concatenate([begins for begins, _ in places])
        self._sizes = np.concatenate([sizes for _, sizes in places])
        ignored = sum(tar.ignored for tar in tars)
        self.name = self._files[0].name
        self.name += f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        self.name += f", {ignored} members ignored" if ignored else ""
        self.form = {name: self._form(name) for name in self._names}

    def __len__(self) -> int:
        return int(self._ends[-1])

    @cached_property
    def _open(self) -> RandomAccess:
        return RandomAccess(self._files)

    def _form(self, name: str) -> ArrayForm:
        if name == KEY:
            return objects('the name of the sample; choose what to read, `columns=("jpg", "cls")`')
        decoder, extension = self._decoders[name], self._columns[name][0].rpartition(".")[2]
        if decoder is int:
            return ArrayForm((), np.dtype(np.int64))
        if decoder is _array and len(self):
            first = self._read(np.zeros(1, np.int64), (name,))[name][0]
            return ArrayForm(first.shape, first.dtype)
        if extension in SUFFIXES:
            return objects(ENCODED)
        return objects({None: "bytes", _text: "str"}.get(decoder, f"what is in the {extension}"))

    def take(self, indices: np.ndarray) -> list[Any]:
        self._open.check(np.unique(self._tar_of(indices)).tolist())
        columns = self._read(indices, tuple(self._columns))
        if KEY in self._names:
            columns[KEY] = [self.key(index) for index in indices.tolist()]
        return [columns[name] for name in self._names]

    def _tar_of(self, indices: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._ends, indices, side="right")

    def _read(self, indices: np.ndarray, names: tuple[str, ...]) -> dict[str, Any]:
        """These columns of some samples, read from front to back, for disks that turn."""
        lanes = np.argsort(indices)
        rows, at = indices[lanes], [list(self._columns).index(name) for name in names]
        columns: list[list[Any]] = [[None] * len(indices) for _ in names]
        how = list(zip(columns, (self._decoders[name] for name in names), names, strict=True))
        read = self._open.read
        for lane, index, tar, begins, sizes in zip(
            lanes.tolist(),
            rows.tolist(),
            self._tar_of(rows).tolist(),
            self._begins[rows[:, None], at].tolist(),
            self._sizes[rows[:, None], at].tolist(),
            strict=True,
        ):
            for (column, decode, name), begin, size in zip(how, begins, sizes, strict=True):
                data = read(tar, begin, size)
                if len(data) < size:
                    raise self._ends_early(index, name)
                column[lane] = data if decode is None else self._decoded(data, index, name)
        return {name: _stacked(column, decode) for column, decode, name in how}

    def _decoded(self, data: bytes, index: int, name: str) -> Any:
        decode = self._decoders[name]
        assert decode is not None
        try:
            return decode(data)
        except (ValueError, EOFError, OSError) as error:  # and JSON's, and Unicode's
            raise DatasetError(
                f"{self._owner}: {self._where(index, name)} cannot be decoded "
                f"({in_one_line(error)}): it has {len(data)} bytes, {data[:20]!r}...; mend it, or "
                f"pass `decode=None`, which leaves bytes, or a function of your own."
            ) from error

    def _ends_early(self, index: int, name: str) -> DatasetError:
        return DatasetError(
            f"{self._owner}: {self._where(index, name)} is not all there: the file ends before; "
            f"copy or write it again."
        )

    def key(self, index: int) -> str:
        """The key of a sample."""
        tar = int(self._tar_of(np.array(index)))
        return self._keys[tar][index - (int(self._ends[tar - 1]) if tar else 0)]

    def _where(self, index: int, name: str) -> str:
        tar = self._files[int(self._tar_of(np.array(index)))]
        return f"{tar.path!r}: {self.key(index)!r}, member {';'.join(self._columns[name])!r},"

    def digest(self) -> Any:
        decoded = [decoder is not None for decoder in self._decoders.values()]
        return [[file.digest() for file in self._files], self._names, self._columns, decoded]


class _Tar:
    """The index of one tar."""

    def __init__(self, file: WatchedFile, index: Index) -> None:
        self.file, self._begins, self._sizes = file, index["begins"], index["sizes"]
        self.n, self.ignored = len(self._begins), int(index["ignored"][0])
        self.keys, self.extensions = texts(index, "keys"), list(texts(index, "extensions"))

    def places(self, columns: Sequence[tuple[str, ...]]) -> tuple[np.ndarray, np.ndarray]:
        """Where the columns begin in each sample, and their sizes; -1: there is none."""
        begins = np.zeros((self.n, len(columns)), np.int64)
        sizes = np.full((self.n, len(columns)), -1, np.int64)
        for at, extensions in enumerate(columns):
            for extension in reversed([each for each in extensions if each in self.extensions]):
                column = self.extensions.index(extension)
                there = self._sizes[:, column] >= 0
                begins[there, at] = self._begins[there, column]
                sizes[there, at] = self._sizes[there, column]
        return begins, sizes

    def sample(self, row: int) -> str:
        """A sample and what it has, for errors."""
        sizes = self._sizes[row].tolist()
        has = [name for name, size in zip(self.extensions, sizes, strict=True) if size >= 0]
        return f"{self.keys[row]!r} in {self.file.name} has {', '.join(has)}"


def _check_columns(columns: Columns, found: list[str], tars: list[_Tar], owner: str) -> None:
    for name, extensions in columns.items():
        if name != KEY and found and not any(each in found for each in extensions):
            raise PipelineError(
                f"{owner}: there is no member {';'.join(extensions)!r} in {tars[0].file.path!r}; "
                f"its samples have {', '.join(map(repr, found))}."
            )


def _one_decoder(name: str, extensions: tuple[str, ...], owner: str) -> Any:
    decoders = [decoder_of(each) for each in extensions]
    if len(set(decoders)) > 1:
        raise PipelineError(
            f"{owner}: `columns` has {';'.join(extensions)!r} as {name!r}, which are decoded in "
            f"different ways; pass `decode=` a function, or choose one of them."
        )
    return decoders[0]


def _refuse_gaps(tars: list[_Tar], places: list[Any], columns: Columns, owner: str) -> None:
    """Refuses samples that do not have all columns; the error names one that has and one that has
    not."""
    for at, extensions in enumerate(columns.values()):
        having = lacking = ""
        for tar, (_, sizes) in zip(tars, places, strict=True):
            gone = sizes[:, at] < 0
            if gone.any():
                lacking = lacking or tar.sample(int(np.argmax(gone)))
            if not gone.all():
                having = having or tar.sample(int(np.argmin(gone)))
        if lacking:
            what = ";".join(extensions)
            raise PipelineError(
                f"{owner}: not all samples have a member {what!r}: {having}, but {lacking}; name "
                f'those that all of them have, `columns=(...)`, or alternatives, `"jpg;png"`.'
            )


def _stacked(values: list[Any], decode: Any) -> Any:
    """A column: one array, if these are numbers, or arrays of one shape and dtype."""
    if decode is int:
        return np.array(values, np.int64)
    if decode is _array and len({(value.shape, value.dtype) for value in values}) == 1:
        return np.stack(values)
    return values
