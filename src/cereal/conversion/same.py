"""Compares a few converted elements with those that the source gives now.

The digest of a source decides whether a folder is of it, and no digest of code sees everything. So
before a folder is used, or a conversion goes on, a few elements are read again. Only what Python
alone makes is compared: compiled programs round differently when they compute more at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..cache.elements import FEW, few_of
from ..reading.formats.array_folder import RaggedFile
from ..reading.packing.pack import Chunk
from .chunks import Reading

Leaf = Callable[[int], np.ndarray]  # the values of an element, by its row
_SHARE = 0.01  # by which floats and bytes may differ: another machine may decode or round so


def differing(reading: Reading, leaves: list[Leaf], count: int, position: int) -> str | None:
    """The name of an element that differs from what the source gives now; None if none does.

    `count` elements were kept of the first `position` elements of the source.
    """
    if not reading.by_python or not count:
        return None
    some = few_of(position, reading.source) if count == position else np.arange(min(FEW, position))
    chunk = reading.some(some)
    rows = some if chunk.count == len(some) else np.arange(chunk.count)
    for at, form in enumerate(reading.layout.columns):
        for row, now in zip(rows.tolist(), _values(chunk, at), strict=True):
            if not _close(leaves[at](row), now):
                return f"{form.name} of element {row}"
    return None


def leaves_of_folder(leaves: list[Any]) -> list[Leaf]:
    """The same for the arrays of a complete folder."""
    return [_ragged(x.values, x.offsets) if isinstance(x, RaggedFile) else _row(x) for x in leaves]


def _row(array: np.ndarray) -> Leaf:
    return lambda row: array[row]


def _ragged(values: np.ndarray, offsets: np.ndarray) -> Leaf:
    return lambda row: values[offsets[row] : offsets[row + 1]]


def _values(chunk: Chunk, at: int) -> list[np.ndarray]:
    """The values of a column, element by element."""
    found: list[np.ndarray] = []
    for part in chunk.parts:
        packed = part.columns[at]
        if packed.lengths is None:
            found += list(packed.values)
        else:
            lengths = np.broadcast_to(packed.lengths, part.count)
            found += np.split(packed.values, np.cumsum(lengths)[:-1])
    return found


def _close(kept: np.ndarray, now: np.ndarray) -> bool:
    if np.shape(kept) != np.shape(now):
        return False
    kept, now = np.asarray(kept), np.asarray(now)
    if kept.dtype.kind in "biu" and kept.dtype.itemsize > 1:
        return bool((kept == now).all())
    a, b = kept.astype(np.complex128), now.astype(np.complex128)
    real = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return False
    return bool(np.abs(a - b)[real].sum() <= _SHARE * np.abs(b)[real].sum() + 1e-6 * real.size)
