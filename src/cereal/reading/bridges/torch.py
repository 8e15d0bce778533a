"""torch's datasets, tensors, loaders and samplers.

Tensor, TensorDataset          their memory, as NumPy arrays, without a copy
Subset, ConcatDataset,
StackDataset of these          the same, by other indices
IterableDataset                a stream
DataLoader, Sampler            refused: the error has the line to write
any other dataset              read by `__getitems__` or `__getitem__`
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from ...base.errors import PipelineError
from ..tables.table import Stream, Table
from .tensors import as_numpy, is_tensor, of_torch
from .torch_loaders import line_for_loader, line_for_sampler
from .torch_tables import ArraysTable, ChosenTable, JoinedTable, NestedTable

_READS = ("__getitem__", "__getitems__", "__len__")


def recognise(value: Any, owner: str) -> Table | Stream | None:
    """How to read an object of torch; None: by `__getitem__`, like any dataset."""
    names = {cls.__name__ for cls in type(value).__mro__ if of_torch(cls)}
    kind = type(value).__name__
    if "DataLoader" in names:
        raise PipelineError(
            f"{owner}: a {kind} of torch makes batches itself; cereal reads its dataset: write "
            f"`{line_for_loader(value)}`."
        )
    if "Sampler" in names:
        raise PipelineError(
            f"{owner}: a {kind} of torch says in which order data is read, and cereal has orders "
            f"of its own; write `{line_for_sampler(value)}`."
        )
    if "IterableDataset" in names:
        begin = _Epochs if hasattr(value, "set_epoch") else _Iterations
        return Stream(begin(value), _length(value))
    if is_tensor(value):
        return ArraysTable(_rows(value, f"{owner}: the tensor"), kind)
    return _table(value, owner)


def _table(value: Any, owner: str) -> Table | None:
    """A dataset of torch over tensors, as a table; None for others."""
    cls = next((each for each in type(value).__mro__ if of_torch(each)), None)
    make = None if cls is None else _MAKE.get(cls.__name__)
    if make is None or any(_method(type(value), each) is not _method(cls, each) for each in _READS):
        return None  # a subclass that reads in its own way
    return make(value, owner, type(value).__name__)


def _method(cls: Any, name: str) -> Any:
    return getattr(cls, name, None)


def _tensors(value: Any, owner: str, name: str) -> Table | None:
    if not value.tensors:
        raise PipelineError(f"{owner}: the {name} holds no tensors; give it one.")
    arrays = [
        _rows(tensor, f"{owner}: tensor {number} of the {name}")
        for number, tensor in enumerate(value.tensors)
    ]
    return ArraysTable(tuple(arrays), name)


def _rows(tensor: Any, what: str) -> Any:
    """The rows of a tensor, in its own memory."""
    if not tensor.dim():
        raise PipelineError(f"{what} has no axis to take elements from; give it a leading axis.")
    return as_numpy(tensor, what)


def _subset(value: Any, owner: str, name: str) -> Table | None:
    below = _table(value.dataset, owner)
    indices = value.indices
    if hasattr(indices, "detach"):
        indices = as_numpy(indices, f"{owner}: `indices` of the {name}")
    return None if below is None else ChosenTable(below, indices, owner, name)


def _joined(value: Any, owner: str, name: str) -> Table | None:
    found = [_table(each, owner) for each in value.datasets]
    tables = [table for table in found if table is not None]
    alike = len(tables) == len(found) and all(each.form == tables[0].form for each in tables)
    return JoinedTable(tables, name) if alike else None


def _nested(value: Any, owner: str, name: str) -> Table | None:
    datasets = value.datasets
    if isinstance(datasets, dict):
        found = {key: _table(each, owner) for key, each in datasets.items()}
        tables = {key: table for key, table in found.items() if table is not None}
        return NestedTable(tables, name) if len(tables) == len(found) else None
    several = [_table(each, owner) for each in datasets]
    present = tuple(table for table in several if table is not None)
    return NestedTable(present, name) if len(present) == len(several) else None


_MAKE = {
    "TensorDataset": _tensors,
    "Subset": _subset,
    "ConcatDataset": _joined,
    "StackDataset": _nested,
}


class _Iterations:
    """Begins an iterable dataset anew; called in drawings by the name of its class."""

    def __init__(self, dataset: Any) -> None:
        self._dataset, self.__name__ = dataset, type(dataset).__name__

    def __call__(self) -> Iterator[Any]:
        return iter(self._dataset)


class _Epochs(_Iterations):
    """The same for a dataset that wants to be told the epoch."""

    def __call__(self, epoch: int) -> Iterator[Any]:  # type: ignore[override]
        dataset = copy.copy(self._dataset)  # an epoch may begin before the last one has ended
        dataset.set_epoch(epoch)
        return iter(dataset)


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None
