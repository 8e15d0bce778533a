"""Rows on their way to a worker process, as bytes: to pickle small arrays takes longer."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...reading.rows import Rows


def packed_rows(rows: Any) -> Any:
    """Rows, or what lies below them, as plain values."""
    if type(rows) is np.ndarray:
        return rows.dtype.char, rows.shape, rows.tobytes()
    if rows is None:
        return None
    if isinstance(rows, Rows):
        fields = (rows.key, rows.epoch, rows.index, rows.valid, rows.draw, rows.below, rows.high)
        return "rows", tuple([None if each is None else packed_rows(each) for each in fields])
    if isinstance(rows, tuple):
        return "tuple", tuple(map(packed_rows, rows))
    return packed_rows(np.array(rows))


def unpacked_rows(sent: Any) -> Any:
    """The rows again."""
    if sent is None:
        return None
    if sent[0] == "rows":
        return Rows(*map(unpacked_rows, sent[1]))
    if sent[0] == "tuple":
        return tuple(map(unpacked_rows, sent[1]))
    dtype, shape, body = sent
    return np.frombuffer(body, dtype).reshape(shape)
