"""Arrays in files, mapped into memory: only the rows of a batch are read."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ...base.errors import PipelineError
from ...base.fitting import canonical
from ...base.numbers import as_optional_count
from ...base.pytree import pytree_dataclass, set_fields, static_field
from ...base.spec import Spec, spec_of
from ...host.element_spec import form_of
from ...host.host_data import HostData
from ...order.ordering import Order, Sequential, as_order
from ...pipeline.host_source import HostIndexed
from ...pipeline.traits import Traits
from ...reading.formats.array_folder import ArrayFolderTable, RaggedFile
from ...reading.readers.arrays import ArraysReader
from ...reading.readers.reader import Reader
from ...reading.structure import Structure
from ...reading.tables.table import TableReader, WithIndex
from ..array import one_length
from ..array_trees import refuse_list
from ..index_key import check_index_key, with_index
from ..length import check_length
from ..table import spec_of_table
from .array_files import open_arrays
from .mapped import MappedArrays

_OWNER = "MemmapSource"


@pytree_dataclass
class MemmapSource(HostIndexed[Any]):
    """Arrays in files, read row by row; they may be larger than memory.

        data/                          {"image": uint8[60000,28,28], "label": int32[60000]}
          image.npy  label.npy            --rows 7, 3-->  {"image": uint8[2,28,28], ...}

    `data` is the path of a `.npy`, `.npz` or `.safetensors` file; or of a folder, either written by
    `save_arrays` or by `convert`, or any folder of `.npy` files, which becomes a dict by their
    names; or a tree of arrays that `np.load(path, mmap_mode="r")` opened. Files are opened
    read-only, and never unpickled. The arrays of a `.npz` file must not be compressed. Row i is row
    i of the first axis of every array, so all have one length; `keys=["x_train", "y_train"]`
    chooses some of them. Ragged columns that `convert` wrote give an array, a text or bytes for
    each element; pad them by a `collate=`, or make arrays of them in a HostMapTransform.
    `prefetch_size` is how many elements a worker reads ahead; with None the loader decides.
    `index_key="index"` adds the index of each element to it, under that key.

    >>> import cereal, numpy as np, tempfile
    >>> folder = tempfile.mkdtemp() + "/digits"
    >>> cereal.save_arrays(folder, {"x": np.arange(12).reshape(6, 2), "y": np.arange(6)})
    >>> source = cereal.MemmapSource(folder, ordering="sequential")
    >>> batch, mask = next(iter(cereal.DataLoader([source, cereal.BatchTransform(2)])))
    >>> batch["x"].tolist(), batch["y"].tolist()
    ([[0, 1], [2, 3]], [0, 1])
    """

    data: Any
    n: int = static_field()
    spec: Spec = static_field()
    prefetch_size: int = static_field(default=0)
    index_key: str | None = static_field(default=None)
    ordering: Order = Sequential()  # the constructor sets it

    def __init__(
        self,
        data: Any,
        ordering: Any = "shuffle",
        *,
        keys: Any = None,
        prefetch_size: int | None = None,
        index_key: str | None = None,
    ) -> None:
        hint = "None leaves it to the loader"
        ahead = as_optional_count(prefetch_size, "prefetch_size", _OWNER, hint=hint) or 0
        where, fix, ragged = "", "", False
        if isinstance(data, str | os.PathLike):
            where, fix = Path(data).name, ', or choose arrays by `keys=["...", "..."]`'
            data = open_arrays(data, _OWNER, keys)
            ragged = any(isinstance(leaf, RaggedFile) for leaf in jax.tree.leaves(data))
        else:
            _refuse_paths(data, keys)
        if ragged:
            table = ArrayFolderTable(data, where, _OWNER)
            n, rows, spec = len(table), _RaggedRows(table), spec_of_table(table)
        else:
            n = one_length(data, _OWNER, files=True, fix=fix)
            rows = _Rows(data, where)
            spec = Spec(jax.tree.map(lambda leaf: spec_of(leaf, drop_axes=1), data))
        check_length(n, "`data`", _OWNER)
        check_index_key(spec.tree, index_key, _OWNER)
        index = jax.ShapeDtypeStruct((), np.int32 if n <= 2**31 else canonical(np.int64))
        spec = Spec(with_index(spec.tree, index, index_key))
        order = as_order(ordering, n, _OWNER)
        set_fields(self, data=rows, n=n, spec=spec, ordering=order, prefetch_size=ahead)
        set_fields(self, index_key=index_key)

    def __len__(self) -> int:
        return self.n

    def _describe(self) -> Traits:
        return self._describe_as(host=True, by_python=True, wide=True, ahead=self.prefetch_size)

    def element_spec(self) -> Any:
        return self.spec.tree

    @property
    def _label(self) -> str:
        where = f"{self.data.where}, " if self.data.where else ""
        carried = f", index_key={self.index_key!r}" if self.index_key else ""
        return f"{_OWNER}({where}ordering={self._order.name}{carried})"

    @cached_property
    def _reader(self) -> Reader:
        return self.data.reader(self._label, form_of(self.spec).structure, self.index_key)


def _refuse_paths(data: Any, keys: Any) -> None:
    """Refuses several paths, and names for arrays that the user has opened."""
    many = isinstance(data, list | tuple) and data
    if many and all(isinstance(each, str | os.PathLike) for each in data):
        raise PipelineError(
            f"{_OWNER}: `data` is one file or folder, got {len(data)} paths; for rows one after "
            f"another write `ConcatSource([MemmapSource(path) for path in paths])`, for arrays "
            f"side by side `ZipSource`."
        )
    if keys is not None:
        raise PipelineError(
            f"{_OWNER}: `keys` chooses arrays of a file or folder; of a tree of arrays, pass those "
            f"that you want."
        )
    refuse_list(data, _OWNER)


class _Rows(MappedArrays):
    """Arrays in files, read row by row."""

    def __init__(self, tree: Any, where: str = "") -> None:
        super().__init__(tree)
        self.where = where
        if where:  # arrays that the user has opened may be written to by the user
            self.arrays.files.watch()

    def reader(self, label: str, structure: Structure, index_key: str | None) -> Reader:
        places = structure.unflatten(range(structure.num_leaves))
        index_at = None if index_key is None else places[index_key]
        return ArraysReader(label, self.arrays, self.names, structure, index_at)


class _RaggedRows(HostData):
    """The same where some columns are ragged, text or bytes."""

    def __init__(self, table: ArrayFolderTable) -> None:
        super().__init__()
        self.table, self.where = table, table.name

    def reader(self, label: str, structure: Structure, index_key: str | None) -> Reader:
        reader = TableReader(label, self.table)
        return reader if index_key is None else WithIndex(reader, index_key, structure)

    def digest_of(self) -> Any:
        return self.table.digest()

    def __reduce__(self) -> tuple[Any, ...]:
        return _RaggedRows, (self.table,)
