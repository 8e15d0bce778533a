"""Polars' frames: their memory is Arrow's."""

from __future__ import annotations

from typing import Any

from ...base.errors import PipelineError, first_line
from ...base.extras import needs
from ..arrow.arrow_columns import ArrowTable
from ..tables.table import Table


def recognise(value: Any, owner: str) -> Table | None:
    """A frame, as rows. Columns of Categorical and Enum become integers, with `classes`."""
    kind = type(value).__name__
    if kind == "LazyFrame":
        raise PipelineError(
            f"{owner}: a LazyFrame of Polars is a query, which has not been run; write "
            f"`frame.collect()`. If the result is too large for memory, write it to files "
            f"(`frame.sink_parquet(path)`), and read these: `ParquetSource(path)`."
        )
    if kind != "DataFrame" or not hasattr(value, "to_arrow"):
        return None
    needs("pyarrow", "polars", "a frame of Polars")
    for name, dtype in value.schema.items():
        if str(dtype) == "Object":
            first = next((each for each in value[name] if each is not None), None)
            raise PipelineError(
                f"{owner}: the column {name!r} holds Python objects, the first a "
                f"{type(first).__name__} ({first!r:.40}), which Polars cannot hand over; make them "
                f"numbers or text, or leave the column out: `frame.drop({name!r})`."
            )
    try:
        table = value.to_arrow()
    except Exception as error:  # Polars raises errors of its own, also of Rust
        raise PipelineError(
            f"{owner}: Polars cannot hand this frame over to Arrow: {first_line(error)}; cast its "
            f"columns to other types, or leave some out."
        ) from error
    return ArrowTable(table, owner, kind)
