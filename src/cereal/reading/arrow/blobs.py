"""Text and bytes of Arrow, as Python objects."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...base.extras import needs

_FEW = 24  # rows of a piece, up to which slices are quicker than Arrow


class Blobs:
    """Row i is `data[offsets[i] : offsets[i + 1]]`, as bytes or as text; None where it is missing.

    A shuffled batch has one or two rows of each piece; for these it takes a third of the time of
    `array.take(rows).to_pylist()`. For many rows of one piece that is quicker, and is used.
    """

    def __init__(self, array: Any, *, text: bool) -> None:
        self._array = array
        _, offsets, data = array.buffers()
        wide = str(array.type).startswith("large")
        dtype = np.dtype(np.int64 if wide else np.int32)
        begin = array.offset * dtype.itemsize
        self._offsets = np.frombuffer(offsets, dtype, len(array) + 1, begin)
        self._data = memoryview(b"" if data is None else data)
        self._text = text
        self._missing = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None

    def take(self, rows: np.ndarray) -> list[Any]:
        if len(rows) > _FEW:
            return self._array.take(_as_arrow(rows)).to_pylist()
        data, text = self._data, self._text
        begins, ends = self._offsets[rows].tolist(), self._offsets[rows + 1].tolist()
        slices = [data[begin:end] for begin, end in zip(begins, ends, strict=True)]
        found = [str(each, "utf-8") if text else bytes(each) for each in slices]
        if self._missing is None:
            return found
        gone = self._missing[rows].tolist()
        return [None if no else value for value, no in zip(found, gone, strict=True)]


def _as_arrow(rows: np.ndarray) -> Any:
    return needs("pyarrow", "arrow", "an Arrow table").array(rows)


def blobs_of(array: Any, types: Any) -> Blobs | None:
    """The text or the bytes of an Arrow array; None if it has something else."""
    kind = array.type
    text = types.is_string(kind) or types.is_large_string(kind)
    if not text and not types.is_binary(kind) and not types.is_large_binary(kind):
        return None
    return Blobs(array, text=text) if len(array) else None
