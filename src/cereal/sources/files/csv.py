"""CSV files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ...base.errors import PipelineError
from ...base.numbers import as_count
from ...base.pytree import pytree_dataclass
from ...reading.formats.csv import csv_table
from ...reading.formats.csv_blocks import CSVFormat, as_types
from ..table import TableSource
from .parquet import Columns, Paths

_OWNER = "CSVSource"


@pytree_dataclass
class CSVSource(TableSource):
    """The rows of CSV files, as dicts of their columns.

        age,height,name               {"age": 31, "height": 1.75, "name": "Ann"}
        31,1.75,Ann            ->     {"age": 40, "height": 1.62, "name": "Bob"}
        40,1.62,Bob

        source = CSVSource("people.csv", columns={"x": ["age", "height"]})
        source = CSVSource("people/*.csv", types={"name": "category"}, cache_dir="~/.cache/people")

    The files are decoded when the source is built, into memory: at most `cache_bytes`. With
    `cache_dir`, they are decoded into an Arrow file in that folder, block by block. It is mapped,
    so it may be larger than memory, and it is used again as long as the CSV files do not change.

    The types of columns are found in the first block of the first file (16 MB): integers, floats,
    booleans, times, text. If integers become floats later, all are read as floats. Any other value
    that does not fit is an error that names the file, the row and the column. `types={"x":
    "float32"}` states a type: one of NumPy, `str`, or "category", which becomes integers with
    `source.classes`. An empty value is missing, unless the column is text; `fill={"x": 0}` replaces
    it. `names=[...]` are the names of columns if there is no header, and `delimiter=` is the sign
    between values. `paths` and `columns` are those of `ParquetSource`; `.csv.gz` is read too. It
    needs pyarrow: `pip install 'cereal-jax[arrow]'`.
    """

    def __init__(
        self,
        paths: Paths,
        columns: Columns = None,
        ordering: Any = "shuffle",
        *,
        types: Mapping[str, Any] | None = None,
        names: Sequence[str] | None = None,
        delimiter: str = ",",
        fill: Mapping[str, Any] | None = None,
        index_key: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int = 1 << 30,
    ) -> None:
        most = as_count(cache_bytes, "cache_bytes", _OWNER, least=0)
        if not isinstance(delimiter, str) or len(delimiter) != 1:
            raise PipelineError(
                f"{_OWNER}: `delimiter` must be one letter, such as ';', got {delimiter!r:.40}."
            )
        if names is not None and (
            isinstance(names, str) or not all(isinstance(name, str) for name in names) or not names
        ):
            raise PipelineError(
                f"{_OWNER}: `names` must be a list of the names of all columns, got {names!r:.60}."
            )
        form = CSVFormat(columns, delimiter, names, as_types(types, _OWNER), _OWNER)
        table = csv_table(paths, form, fill=fill, most_bytes=most, cache_dir=cache_dir)
        self._open(table, ordering, index_key)
