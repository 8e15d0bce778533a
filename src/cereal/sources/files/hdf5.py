"""The datasets of an HDF5 file."""

from __future__ import annotations

from typing import Any

from ...base.numbers import as_count
from ...base.paths import as_path
from ...base.pytree import pytree_dataclass
from ...reading.formats.arrays.hdf5 import HDF5Table
from ..table import TableSource

_OWNER = "HDF5Source"


@pytree_dataclass
class HDF5Source(TableSource):
    """The rows of the datasets of an HDF5 file; groups are dicts. It needs h5py.

        digits.h5                        {"image": uint8[28,28], "train": {"label": int64}}
        ├── image   uint8[60000,28,28]
        └── train
            └── label  int64[60000]      row i of every dataset is element i

    All datasets must have one length; `keys=["image", "train/label"]` chooses some of them, and
    `keys="train"` makes that group the element. Scalars and attributes are left out. A dataset that
    lies in one piece in the file is mapped into memory. Of one in chunks, whole chunks are decoded,
    and `cache_bytes` of them are kept; with `ordering=BlockShuffle()` each is decoded once in an
    epoch. Compound types are dicts by their fields, enumerations are numbers with `classes`, text
    is str. HDF5 lets only one thread read at a time; worker processes open the file themselves.

    Install it by `pip install 'cereal-jax[hdf5]'`. Then::

        source = cereal.HDF5Source("digits.h5", keys=["image", "label"])
        loader = cereal.DataLoader([source, cereal.BatchTransform(128)])
    """

    def __init__(
        self,
        path: Any,
        keys: Any = None,
        ordering: Any = "shuffle",
        *,
        index_key: str | None = None,
        cache_bytes: int = 1 << 30,
    ) -> None:
        most = as_count(cache_bytes, "cache_bytes", _OWNER, least=0)
        table = HDF5Table(as_path(path, "path", _OWNER), keys, _OWNER, most)
        self._open(table, ordering, index_key)
