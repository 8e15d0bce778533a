"""Arrow files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...base.numbers import as_count
from ...base.pytree import pytree_dataclass
from ...reading.formats.arrow_files import ArrowFilesTable
from ..table import TableSource
from .parquet import Columns, Paths

_OWNER = "ArrowSource"


@pytree_dataclass
class ArrowSource(TableSource):
    """The rows of Arrow files (`.arrow`, `.feather`), as dicts of their columns.

        source = ArrowSource("data/*.arrow", columns=["x", "label"])

        a file that is not compressed      is mapped: only the rows of a batch are read
        a compressed file                  a record batch is decoded when it is needed, and kept
        a stream that is compressed        is decoded when it is opened; it must fit `cache_bytes`

    `paths`, `columns`, `fill` and `cache_bytes` are those of `ParquetSource`. Feather files are
    compressed unless they were written with `compression="uncompressed"`. Data that is mapped may
    be shuffled in any way; `BlockShuffle()` shuffles record batches. It needs pyarrow:
    `pip install 'cereal-jax[arrow]'`.
    """

    def __init__(
        self,
        paths: Paths,
        columns: Columns = None,
        ordering: Any = "shuffle",
        *,
        index_key: str | None = None,
        fill: Mapping[str, Any] | None = None,
        cache_bytes: int = 1 << 30,
    ) -> None:
        most = as_count(cache_bytes, "cache_bytes", _OWNER, least=0)
        table = ArrowFilesTable(paths, columns, _OWNER, fill=fill, most_bytes=most)
        self._open(table, ordering, index_key)
