"""Folders of arrays in which some columns are ragged, text or bytes: their rows as a table.

image.npy                          uint8[60000,28,28]     Numbers
tokens.npy, tokens.offsets.npy     int32[912345], ...     Ragged: an array for each row
title.npy, title.offsets.npy       uint8[3456789], ...    text, in UTF-8

Folders without such columns are read as arrays (`readers/arrays.py`), which is quicker.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import Any

import numpy as np

from ...base.errors import PipelineError
from ..leaves import ArrayForm
from ..packing.column import Kind, as_text
from ..readers.arrays import Arrays, digest_of_file
from ..structure import flatten
from ..tables.columns import Numbers, Objects, Ragged, ragged_form
from ..tables.table import Table, objects


@dataclasses.dataclass
class RaggedFile:
    """A column in two files: row i is `values[offsets[i] : offsets[i + 1]]`."""

    values: np.ndarray
    offsets: np.ndarray
    kind: Kind
    lengths: tuple[int, int]  # the least and the largest

    def check(self, where: str) -> RaggedFile:
        """Refuses files that do not belong together."""
        offsets, end = self.offsets, len(self.values) if self.values.ndim else -1
        right = self.kind in ("array", "text", "bytes") and offsets.ndim == 1 and len(offsets) > 0
        if not right or offsets[0] != 0 or offsets[-1] != end:
            raise PipelineError(
                f"{where}: the offsets of a ragged column do not fit its values; write the folder "
                f"again, with `convert`."
            )
        if self.kind != "array" and (self.values.dtype, self.values.ndim) != (np.uint8, 1):
            raise PipelineError(f"{where}: a column of {self.kind} must have values of uint8.")
        return self

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def form(self) -> ArrayForm:
        """The form of its rows."""
        if self.kind != "array":
            return objects(self.kind)
        least, most = self.lengths
        return ragged_form(f"{least} to {most}", most)


class ArrayFolderTable(Table):
    """The rows of a tree of arrays, some of which are ragged."""

    quick = True
    _reopened = ("_columns",)

    def __init__(self, tree: Any, name: str, owner: str) -> None:
        leaves, structure = flatten(tree)
        self.name, self._names = name, [f"`data{place}`" for place in structure.names()]
        lengths = {place: len(x) for place, x in zip(self._names, leaves, strict=True)}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{place} {length}" for place, length in lengths.items())
            raise PipelineError(f"{owner}: all columns must have one length, got {listed}.")
        self._kinds: list[Kind | None] = [
            x.kind if isinstance(x, RaggedFile) else None for x in leaves
        ]
        ragged = [x for x in leaves if isinstance(x, RaggedFile)]
        values = [x.values if isinstance(x, RaggedFile) else x for x in leaves]
        self._values, self._offsets = Arrays(values), Arrays([x.offsets for x in ragged])
        self._values.files.watch()
        self._offsets.files.watch()
        forms = [
            x.form if isinstance(x, RaggedFile) else ArrayForm(x.shape[1:], x.dtype) for x in leaves
        ]
        self.form = structure.unflatten(forms)

    def __len__(self) -> int:
        return len(self._offsets.leaves[0]) - 1

    @cached_property
    def _columns(self) -> list[Any]:
        offsets, found = iter(self._offsets.leaves), []
        for kind, values, name in zip(self._kinds, self._values.leaves, self._names, strict=True):
            if kind is None:
                found.append(Numbers(values, name=name))
            elif kind == "array":
                found.append(Ragged(values, next(offsets), name=name))
            else:
                found.append(Objects(_Texts(values, next(offsets), kind)))
        return found

    def take(self, indices: np.ndarray) -> list[Any]:
        self._values.files.check()
        self._offsets.files.check()
        rows = indices.astype(np.int64, copy=False)
        return [column.take(rows) for column in self._columns]

    def digest(self) -> Any:
        return [digest_of_file(leaf) for leaf in (*self._values.leaves, *self._offsets.leaves)]


@dataclasses.dataclass
class _Texts:
    values: np.ndarray
    offsets: np.ndarray
    kind: Kind

    def __call__(self, rows: np.ndarray) -> list[Any]:
        begins, ends = self.offsets[rows].tolist(), self.offsets[rows + 1].tolist()
        pairs, values = zip(begins, ends, strict=True), self.values
        if self.kind == "bytes":
            return [values[begin:end].tobytes() for begin, end in pairs]
        return [as_text(values[begin:end]) for begin, end in pairs]
