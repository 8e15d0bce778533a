"""Grain: map datasets, datasets that are iterated, and sources of ArrayRecord files.

    MapDataset              read by index; an index beyond its length belongs to a later epoch
    IterDataset             a stream, which resumes by its own state
    ArrayRecordDataSource   its files, a batch in one call; also under `.source(...).map(fn)`
    any other data source   an object with `__len__` and `__getitem__`, read as such

Cereal recognises them by the names of their classes, so that Grain need not be installed.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any, Literal

from ...base.errors import PipelineError
from ..records.array_record import ArrayRecordFiles
from ..records.record_table import RecordTable
from ..tables.table import Stream, Table

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


def recognise(value: Any, owner: str) -> Table | Stream | None:
    """A dataset or source of Grain; None: it is read by index, as any dataset."""
    kind = type(value).__name__
    if _is_grain(value, "IterDataset"):
        return Stream(Iterations(value))
    if _is_grain(value, "MapDataset"):
        return _mapped_records(value, owner)
    if kind == "ArrayRecordDataSource":
        return records_of(value, owner)
    if _is_grain(value, "DataLoader"):
        raise _refused_loader(value, owner)
    if kind in ("SequentialSampler", "IndexSampler"):
        raise PipelineError(
            f"{owner}: a {kind} is an order and holds no data; put the data there, and state its "
            f'order: `DatasetSource(data_source, ordering="shuffle")`, or "sequential".'
        )
    return None


def _is_grain(value: Any, name: str) -> bool:
    """Whether a class of this name, of Grain, is among those of the value."""
    return any(c.__name__ == name and _from_grain(c) for c in type(value).__mro__)


def _from_grain(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "grain"


# Epochs of a map dataset:
#     dataset[0] ... dataset[n - 1]     epoch 0
#     dataset[n] ... dataset[2n - 1]    epoch 1: shuffled and augmented differently


def epochs_of(dataset: Any) -> Epochs:
    """How the element at one index differs between epochs; "same" if Grain did not make it."""
    if not _is_grain(dataset, "MapDataset"):
        return "same"
    name = type(dataset).__name__ if _from_grain(type(dataset)) else ""
    if name not in _SAME | _CHANGED:
        return "moved"
    found = [epochs_of(parent) for parent in getattr(dataset, "parents", ())]
    if "moved" in found:
        return "moved"
    return "changed" if name in _CHANGED or "changed" in found else "same"


@dataclasses.dataclass
class Iterations:
    """Makes a new iterator over a dataset."""

    dataset: Any

    @property
    def __name__(self) -> str:  # in drawings and errors
        return type(self.dataset).__name__

    def __call__(self) -> Any:
        return iter(self.dataset)


def records_of(
    value: Any, owner: str, decode: Callable[[bytes], Any] | None = None
) -> RecordTable | None:
    """The files of an `ArrayRecordDataSource`; None if they cannot be told.

    The bet: it holds the files and the parts of them that it reads as `_read_instructions`. If it
    does not, it is asked for elements by its own `__getitems__`, which is slower. The test of this
    bet is `test_a_source_of_array_records_is_read_from_its_files` in
    `tests/bridges/test_grain.py`.
    """
    library = type(value).__module__.partition(".")[0] in ("grain", "array_record")
    parts = getattr(value, "_read_instructions", None)
    if not library or not parts:
        return None
    try:
        files = [os.fspath(part.filename) for part in parts]
        ranges = [(int(part.start), int(part.end)) for part in parts]
    except (AttributeError, TypeError):
        return None
    if not all(map(os.path.exists, files)):  # in a store that only the library can open
        return None
    options = getattr(value, "_reader_options_string", "")
    records = ArrayRecordFiles(files, owner, ranges, options)
    return RecordTable(records, decode, owner)


def _mapped_records(dataset: Any, owner: str) -> Table | None:
    """The records below `.source(...).map(fn)`, read in batches; None for any other dataset."""
    functions: list[Any] = []
    while type(dataset).__name__ in ("MapMapDataset", "_WithSeedMapDataset"):
        if type(dataset).__name__ == "MapMapDataset":
            functions.insert(0, getattr(dataset, "_map_fn", None))
        (dataset,) = dataset.parents
    source = getattr(dataset, "_source", None)
    if type(dataset).__name__ != "SourceMapDataset" or not all(map(callable, functions)):
        return None
    if type(source).__name__ != "ArrayRecordDataSource":
        return None
    return records_of(source, owner, Functions(functions) if functions else None)


@dataclasses.dataclass
class Functions:
    """One function after the other."""

    functions: list[Callable[[Any], Any]]

    def __call__(self, value: Any) -> Any:
        for function in self.functions:
            if value is not None:  # as in Grain: an element that was left out
                value = function(value)
        return value


def _refused_loader(loader: Any, owner: str) -> PipelineError:
    """What to write in place of Grain's own loader."""
    source = type(getattr(loader, "_data_source", None)).__name__
    operations = [type(each).__name__ for each in getattr(loader, "_operations", ())]
    stages = "".join(f", {each}(...)" for each in operations if each != "Batch")
    return PipelineError(
        f"{owner}: Grain's DataLoader reads, shuffles and batches by itself; give its parts to "
        f'cereal\'s: `DataLoader([DatasetSource({source}(...), ordering="shuffle"){stages}, '
        f"BatchTransform(n)])`. (To read what it gives, in its own order: "
        f"`IterableSource(lambda: iter(loader))`.)"
    )
