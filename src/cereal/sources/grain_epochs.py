"""Grain's datasets by index, whose epochs go on where the last one ended.

    dataset[0] ... dataset[n - 1]     epoch 0
    dataset[n] ... dataset[2n - 1]    epoch 1: shuffled and augmented differently

They are recognised by the names of their classes, so that Grain need not be installed.
"""

from __future__ import annotations

from typing import Any, Literal

# Classes of Grain under which an index gives the same element in every epoch, and those that only
# change the element. All others, and classes of users, may give another element at an index.
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
    """How the elements of a dataset at one index differ between epochs, if Grain made it."""
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
