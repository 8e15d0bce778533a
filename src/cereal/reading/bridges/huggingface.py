"""Hugging Face's datasets: their Arrow tables, read in batches; and their streams.

Dataset                       its table, without Python objects; where only the library can
                              say what an element is (audio, a transform), its elements
Column                        the same, one column
IterableDataset               a stream, which resumes by its own state
DatasetDict                   an error that names the splits
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from ...base.errors import PipelineError
from ..tables.table import Stream
from .huggingface_table import table_of

_MODULES = {"datasets.arrow_dataset", "datasets.iterable_dataset", "datasets.dataset_dict"}
_STATES_LOSE = (
    "BufferShuffledExamplesIterable"  # its state does not have the elements in its buffer
)


def recognise(value: Any, owner: str) -> Any:
    """A table or a stream; another dataset to be read instead; None: an ordinary dataset."""
    kind: Any = next((c for c in type(value).__mro__ if c.__module__ in _MODULES), None)
    name = getattr(kind, "__name__", "")
    if name in ("DatasetDict", "IterableDatasetDict"):
        names = ", ".join(map(repr, value))
        first = next(iter(value), "train")
        raise PipelineError(
            f"{owner}: a {name} has several datasets, one for each split; choose one of {names}: "
            f"write `dataset[{first!r}]`."
        )
    if name == "IterableDataset":
        return _stream(value, ())
    if name == "IterableColumn":
        dataset, path = _root_of(value)
        return _stream(dataset, path)
    if name == "Column":
        dataset, path = _root_of(value)
        return table_of(dataset, owner, value, path)
    if name != "Dataset" or type(value).__getitem__ is not kind.__getitem__:
        return None
    return table_of(value, owner)


def _root_of(column: Any) -> tuple[Any, tuple[str, ...]]:
    """The dataset of a column, and the names that lead to the column."""
    path: tuple[str, ...] = ()
    while hasattr(column, "column_name"):
        column, path = column.source, (column.column_name, *path)
    return column, path


# Streams


def _stream(dataset: Any, path: tuple[str, ...]) -> Stream:
    names = {type(node).__name__ for node in _nodes(dataset)}
    shuffled = getattr(dataset, "_shuffling", None) is not None or _STATES_LOSE in names
    shuffled = shuffled or any(name.startswith("RandomlyCycling") for name in names)
    return Stream((EveryEpoch if shuffled else Same)(dataset, path, resumes_exactly(dataset)))


def resumes_exactly(value: Any) -> bool:
    """Whether the state of a stream has all that it needs to go on."""
    nodes = list(_nodes(value))
    return not any(type(node).__name__ == _STATES_LOSE or _skips(node) for node in nodes)


def _nodes(stream: Any) -> Iterator[Any]:
    """The steps of a stream, from the last to the first."""
    for each in vars(stream).values():
        for node in each if isinstance(each, list) else [each]:
            if hasattr(node, "_init_state_dict"):
                yield node
                yield from _nodes(node)


def _skips(node: Any) -> bool:
    """Whether its state may be a batch too late, as the library says of its `state_dict`."""
    return bool(getattr(node, "batched", False)) and getattr(node, "formatting", None) is not None


class Same:
    """Makes the stream for an epoch: all are the same."""

    __name__ = "IterableDataset"

    def __init__(self, dataset: Any, path: tuple[str, ...], exact: bool) -> None:
        self._dataset, self._path, self._exact = dataset, path, exact

    def __call__(self) -> Any:
        return _begun(self._dataset, self._path, self._exact, 0)


class EveryEpoch:
    """Makes the stream for an epoch of a shuffled dataset: an epoch of ours is one of theirs."""

    __name__ = "IterableDataset"

    def __init__(self, dataset: Any, path: tuple[str, ...], exact: bool) -> None:
        self._dataset, self._path, self._exact = dataset, path, exact

    def __call__(self, epoch: int) -> Any:
        return _begun(self._dataset, self._path, self._exact, epoch)


def _begun(dataset: Any, path: tuple[str, ...], exact: bool, epoch: int) -> Any:
    fresh = object.__new__(type(dataset))  # `copy.copy` would give both the same fields
    vars(fresh).update(vars(dataset), _ex_iterable=_fresh(dataset._ex_iterable))
    fresh._epoch = int(dataset.epoch)  # a number of its own: the library shares it between copies
    if epoch:
        fresh.set_epoch(fresh._epoch + epoch)
    return (Resumable if exact else Elements)(fresh, path)


def _fresh(node: Any) -> Any:
    """The steps again, with places of their own in the data, and the same data."""
    made = copy.copy(node)
    for name, each in vars(node).items():
        if hasattr(each, "_init_state_dict"):
            setattr(made, name, _fresh(each))
        elif isinstance(each, list) and any(hasattr(x, "_init_state_dict") for x in each):
            setattr(made, name, [_fresh(x) for x in each])
    return made


class Elements:
    """The elements of a stream, or one column of them. To reach a position, it must skip."""

    def __init__(self, dataset: Any, path: tuple[str, ...]) -> None:
        self._dataset, self._path = dataset, path

    def __iter__(self) -> Iterator[Any]:
        return _picked(self._dataset, self._path)


class Resumable:
    """The same; it goes on from its own state."""

    def __init__(self, dataset: Any, path: tuple[str, ...]) -> None:
        self._dataset, self._path = dataset, path

    def __iter__(self) -> Iterator[Any]:
        return _picked(self._dataset, self._path)

    def state_dict(self) -> Any:
        return self._dataset.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self._dataset.load_state_dict(state)


def _picked(dataset: Any, path: tuple[str, ...]) -> Iterator[Any]:
    return (_at(element, path) for element in dataset) if path else iter(dataset)


def _at(element: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        element = element[name]
    return element
