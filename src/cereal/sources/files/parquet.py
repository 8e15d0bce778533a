"""Parquet files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ...base.numbers import as_count
from ...base.pytree import pytree_dataclass
from ...reading.formats.parquet import ParquetTable
from ..table import TableSource

_OWNER = "ParquetSource"
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Columns = Sequence[str] | Mapping[str, str | Sequence[str]] | None


@pytree_dataclass
class ParquetSource(TableSource):
    """The rows of Parquet files, as dicts of their columns.

        source = ParquetSource("flights/*.parquet", columns=["delay", "distance"])
        source = ParquetSource("flights/*.parquet", ordering=BlockShuffle(together=4))

        row groups      [0 ... 9] [10 ... 14] [15 ... 24]       read whole, and kept for a while
        BlockShuffle()  13 10 12 11 14 | 20 15 ... | 3 9 ...    an epoch reads each of them once

    `paths` is a path, a pattern, a folder (all Parquet files below it), or a list of these. Files
    of a pattern or a folder are sorted by name. All files must have the same columns. `columns`
    chooses some; `"a.b"` is the field `b` of the struct `a`. With a dict they get other names, and
    several numbers become one array, which is also quicker: `columns={"x": ["a", "b"], "y": "c"}`
    gives `{"x": float32[2], "y": ...}`. Names of folders (`year=2024`) are no columns.

    Row groups are decoded as they are needed, and `cache_bytes` of them are kept in memory: small
    files are decoded once. If the data is larger, write `ordering=BlockShuffle()`, which reads
    each row group once in an epoch, or `convert` it first. `ordering="shuffle"` would decode a row
    group for almost every row, and warns.

    Numbers become arrays. Dictionary columns become integers; `source.classes` names them. Lists
    of one length become arrays; text, times and other lists need a host stage or a collate.
    `fill={"x": 0}` replaces missing values. It needs pyarrow: `pip install 'cereal-jax[arrow]'`.
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
        table = ParquetTable(paths, columns, _OWNER, fill=fill, most_bytes=most)
        self._open(table, ordering, index_key)
