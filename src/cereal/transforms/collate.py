"""Batches of elements with different lengths, which cannot simply be stacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..base.numbers import as_count
from ..reading.collate import PadCollate


def pad_collate(
    max_length: int, *, value: Any = 0, truncate: bool = True
) -> Callable[[Sequence[Any]], Any]:
    """A `collate=` function for elements of different lengths: pads them to `max_length`.

        [5, 7], [1, 2, 3]   --max_length=4-->   {"values": [[5, 7, 0, 0], [1, 2, 3, 0]],
                                                 "lengths": [2, 3]}

    If elements are dicts, the batch has the same keys, and `lengths`. If several entries have
    different lengths, `lengths` is a dict with an array for each of them. Numbers are stacked.
    Longer elements are cut off at `max_length`; with `truncate=False` they are an error. `value`
    fills the padding.

    >>> import cereal
    >>> texts = [[5, 7], [1, 2, 3]]
    >>> batches = cereal.BatchTransform(2, collate=cereal.pad_collate(max_length=4))
    >>> batch, mask = next(iter(cereal.DataLoader([texts, batches])))
    >>> batch["values"].tolist(), batch["lengths"].tolist()
    ([[5, 7, 0, 0], [1, 2, 3, 0]], [2, 3])
    """
    return PadCollate(as_count(max_length, "max_length", "pad_collate"), value, truncate)
