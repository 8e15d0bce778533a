"""The rows of a SQLite query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...base.numbers import as_count
from ...base.paths import as_path
from ...base.pytree import pytree_dataclass
from ..table import TableSource

_OWNER = "SQLiteSource"


@pytree_dataclass
class SQLiteSource(TableSource):
    """The rows of a query over a SQLite file, as dicts by the names of its columns.

        SELECT id, x, label FROM points      {"id": int32, "x": float32, "label": int32}
                key="id"                        rows 7, 3 --> ... WHERE id IN (?, ?)

    `key` names a column of the query that holds integers, each once, and that has an index:
    usually the primary key, or `rowid`. The keys are read once, and a batch is one query for its
    keys. Without `key`, the query must end with ORDER BY; then all of its rows are read once, into
    memory, at most `cache_bytes`. `parameters` are the values for `?` in the query, or a dict of
    those for `:name`.

    The file is opened read-only, and a query that does anything but read is refused. If another
    program writes to the file later, the next batch is an error. Every thread and every worker
    process has its own connection.

    INTEGER and REAL are numbers, TEXT is str, BLOB is bytes, NULL is None. If BLOBs hold arrays,
    name their dtype, and the shape if they have one: `blobs={"image": "(28,28)uint8"}`.

    >>> import cereal, sqlite3, tempfile
    >>> path = tempfile.mkdtemp() + "/points.db"
    >>> database = sqlite3.connect(path)
    >>> _ = database.execute("CREATE TABLE points (id INTEGER PRIMARY KEY, x REAL, y INTEGER)")
    >>> rows = [(1, 0.5, 0), (2, 1.5, 1), (3, 2.5, 0)]
    >>> _ = database.executemany("INSERT INTO points VALUES (?, ?, ?)", rows)
    >>> database.commit(), database.close()
    (None, None)
    >>> query = "SELECT id, x FROM points WHERE y = ?"
    >>> source = cereal.SQLiteSource(path, query, (0,), key="id", ordering="sequential")
    >>> ((batch, mask),) = cereal.DataLoader([source, cereal.BatchTransform(2)])
    >>> batch["id"].tolist(), batch["x"].tolist()
    ([1, 3], [0.5, 2.5])
    """

    def __init__(
        self,
        path: Any,
        query: str,
        parameters: Any = (),
        key: str | None = None,
        ordering: Any = "shuffle",
        *,
        index_key: str | None = None,
        blobs: Mapping[str, Any] | None = None,
        cache_bytes: int = 1 << 30,
    ) -> None:
        # Not every Python has sqlite3, and to import it takes a few milliseconds.
        from ...reading.formats.sqlite.tables import sqlite_table

        most = as_count(cache_bytes, "cache_bytes", _OWNER, least=0)
        place = as_path(path, "path", _OWNER)
        table = sqlite_table(place, query, parameters, key, blobs or {}, most, _OWNER)
        self._open(table, ordering, index_key)
