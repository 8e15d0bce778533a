"""Reads one column of numbers from a CSV table with a header."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from ...base.errors import DatasetError

_MOST = float(np.finfo(np.float32).max)


def read_column(path: Path, column: str) -> np.ndarray:
    """The numbers of a column, as float32; any cell that is not a finite number is an error."""
    import csv

    try:
        return _column(path, column, csv.reader)
    except csv.Error as error:
        raise DatasetError(f"{path} is no table ({error}); is it another file?") from error


def _column(path: Path, column: str, reader: Any) -> np.ndarray:
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        rows = reader(file)
        header = next(rows, [])
        if column not in header:
            raise DatasetError(
                f"{path} has no column {column!r}, but {header}; is it another file?"
            )
        at = header.index(column)
        values = [_number(row, at, path, rows.line_num, column) for row in rows if row]
    if not values:
        raise DatasetError(f"{path} has no rows below its header; fetch it again.")
    return np.array(values, np.float32)


def _number(row: list[str], at: int, path: Path, line: int, column: str) -> float:
    text = row[at] if at < len(row) else ""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not abs(value) <= _MOST:
        raise DatasetError(
            f"{path}, line {line}: {column!r} is {text!r}, which is no finite number. Mend or "
            f"remove the line; a model would learn NaN from it."
        )
    return value
