"""The arrays of a Zarr store."""

from __future__ import annotations

from typing import Any

from ...base.numbers import as_count
from ...base.paths import as_path
from ...base.pytree import pytree_dataclass
from ...reading.formats.arrays.zarr import ZarrTable
from ..table import TableSource

_OWNER = "ZarrSource"


@pytree_dataclass
class ZarrSource(TableSource):
    """The rows of the arrays of a Zarr store, a folder or a .zip file; groups are dicts.

        digits.zarr                      {"image": uint8[28,28], "train": {"label": int64}}
        ├── image   uint8[60000,28,28]
        └── train
            └── label  int64[60000]      row i of every array is element i

    All arrays must have one length; `keys=["image", "train/label"]` chooses some of them, and
    `keys="train"` makes that group the element. Scalars and attributes are left out. Whole chunks
    are decoded, those of a batch side by side, and `cache_bytes` of them are kept; with
    `ordering=BlockShuffle()` each is decoded once in an epoch. Formats 2 and 3 are read, as the
    library zarr does, which it needs.

    Install it by `pip install 'cereal-jax[zarr]'`. Then::

        source = cereal.ZarrSource("digits.zarr", keys=["image", "label"])
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
        table = ZarrTable(as_path(path, "path", _OWNER), keys, _OWNER, most)
        self._open(table, ordering, index_key)
