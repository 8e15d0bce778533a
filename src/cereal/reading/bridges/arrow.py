"""Arrow's tables and record batches."""

from __future__ import annotations

from typing import Any

from ..arrow.arrow_columns import ArrowTable
from ..tables.table import Table


def recognise(value: Any, owner: str) -> Table | None:
    """A table of Arrow, as rows."""
    kind = type(value).__name__
    if kind == "RecordBatch":
        import pyarrow as pa  # pyright: ignore[reportMissingImports]

        value = pa.Table.from_batches([value])
    elif kind != "Table":
        return None
    return ArrowTable(value, owner, kind)
