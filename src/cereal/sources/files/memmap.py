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
from ...order.ordering import Order, Sequential, as_order
from ...pipeline.host_source import HostIndexed
from ...pipeline.traits import Traits
from ...reading.readers.arrays import ArraysReader
from ..array import one_length
from ..array_trees import refuse_list
from ..index_key import check_index_key, with_index
from ..length import check_length
from .array_files import open_arrays
from .mapped import MappedArrays

_OWNER = "MemmapSource"


@pytree_dataclass
class MemmapSource(HostIndexed[Any]):
    """Arrays in files, read row by row; they may be larger than memory.

        data/                          {"image": uint8[60000,28,28], "label": int32[60000]}
          image.npy  label.npy            --rows 7, 3-->  {"image": uint8[2,28,28], ...}

    `data` is the path of a `.npy`, `.npz` or `.safetensors` file; or of a folder, either written by
    `save_arrays` or any folder of `.npy` files, which becomes a dict by their names; or a tree of
    arrays that `np.load(path, mmap_mode="r")` opened. Files are opened read-only, and never
    unpickled. The arrays of a `.npz` file must not be compressed. Row i is row i of the first axis
    of every array, so all have one length; `keys=["x_train", "y_train"]` chooses some of them.
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
        where, fix = "", ""
        if isinstance(data, str | os.PathLike):
            where, fix = Path(data).name, ', or choose arrays by `keys=["...", "..."]`'
            data = open_arrays(data, _OWNER, keys)
        else:
            _refuse_paths(data, keys)
        n = one_length(data, _OWNER, files=True, fix=fix)
        check_length(n, "`data`", _OWNER)
        check_index_key(data, index_key, _OWNER)
        index = jax.ShapeDtypeStruct((), np.int32 if n <= 2**31 else canonical(np.int64))
        rows = jax.tree.map(lambda leaf: spec_of(leaf, drop_axes=1), data)
        order = as_order(ordering, n, _OWNER)
        spec = Spec(with_index(rows, index, index_key))
        set_fields(self, data=_Rows(data, where), n=n, spec=spec, ordering=order)
        set_fields(self, prefetch_size=ahead, index_key=index_key)

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
    def _reader(self) -> ArraysReader:
        structure, index_at = form_of(self.spec).structure, None
        if self.index_key is not None:
            index_at = structure.unflatten(range(structure.num_leaves))[self.index_key]
        return ArraysReader(self._label, self.data.arrays, self.data.names, structure, index_at)


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
