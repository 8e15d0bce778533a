"""Grain's map datasets: an index beyond the length belongs to a later epoch.

    dataset[0] ... dataset[n - 1]     epoch 0
    dataset[n] ... dataset[2n - 1]    epoch 1: shuffled and augmented differently

Cereal recognises them by the names of their classes, so that Grain need not be installed.
"""

from __future__ import annotations

from typing import Any, Literal

# `_SAME`: an index gives the same element in every epoch. `_CHANGED`: the same element, changed.
# Any other class, of Grain or of a user, may give a different element at an index in each epoch.
_SAME = {
    "SourceMapDataset",
    "RangeMapDataset",
    "MapMapDataset",
    "SliceMapDataset",
    "RepeatMapDataset",
    "BatchMapDataset",
    "ZipMapDataset",
    "FilterMapDataset",
    "FlatMapMapDataset",
    "ConcatenateMapDataset",
    "_WithSeedMapDataset",
}
_CHANGED = {"RandomMapMapDataset", "MapWithIndexMapDataset"}

Epochs = Literal["same", "changed", "moved"]


def epochs_of(dataset: Any) -> Epochs:
    """How the element at one index differs between epochs; "same" if Grain did not make it."""
    if not _is_grain(dataset):
        return "same"
    name = type(dataset).__name__ if _from_grain(type(dataset)) else ""
    if name not in _SAME | _CHANGED:
        return "moved"
    found = [epochs_of(parent) for parent in getattr(dataset, "parents", ())]
    if "moved" in found:
        return "moved"
    return "changed" if name in _CHANGED or "changed" in found else "same"


def _is_grain(dataset: Any) -> bool:
    return any(c.__name__ == "MapDataset" and _from_grain(c) for c in type(dataset).__mro__)


def _from_grain(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "grain"
