"""Arrow's tables and record batches."""

from __future__ import annotations

from typing import Any

from ...base.errors import PipelineError
from ..arrow.arrow_columns import ArrowTable
from ..tables.table import Table

_ON_DISK = {"FileSystemDataset": "dataset.files", "ParquetDataset": "paths", "ParquetFile": "path"}


def recognise(value: Any, owner: str) -> Table | None:
    """A table of Arrow, as rows."""
    kind = type(value).__name__
    if kind == "RecordBatch":
        import pyarrow as pa  # pyright: ignore[reportMissingImports]

        value = pa.Table.from_batches([value])
    elif kind in _ON_DISK:
        raise PipelineError(
            f"{owner}: a {kind} of pyarrow is not in memory; write "
            f"`ParquetSource({_ON_DISK[kind]})`, which reads its files."
        )
    elif kind != "Table":
        return None
    return ArrowTable(value, owner, kind)
