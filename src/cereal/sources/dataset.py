"""Datasets: anything with a length and elements by index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from ..base.errors import PipelineError
from ..base.pytree import pytree_dataclass, set_fields, static_field
from ..base.spec import Spec, is_array_like
from ..host.element_spec import spec_of_element
from ..order.ordering import Order, Sequential, as_order
from ..pipeline.traits import Traits
from ..reading.bridges.grain import Epochs, epochs_of
from ..reading.bridges.recognise import recognised
from ..reading.readers.by_element import DatasetReader
from ..reading.tables.table import Stream, Table
from .array import ArraySampleSource
from .array_trees import (
    array_leaves,
    is_frame,
    leaves_of_tree,
    refuse_no_data,
    without_tensors,
)
from .by_element import ByElement, ElementData
from .files.memmap import MemmapSource
from .index_key import check_index_key
from .iterators.iterable import IterableSource
from .length import check_length
from .table import TableData, spec_of_table, with_index_key

_OWNER = "DatasetSource"


@pytree_dataclass
class DatasetSource(ByElement[Any]):
    """The elements of a dataset: an object with `__len__` and `__getitem__`.

        torch, Hugging Face, TFDS, Grain, a list      dataset[i]  ->  an element, anything
        a frame or table of pandas, Polars, Arrow     its rows, as dicts

    Of libraries that cereal knows, it reads whole batches, without making Python objects of their
    elements. If another dataset has `__getitems__(indices)`, one call reads a batch. Several
    threads call it. `index_key="i"` adds the index of each element to it, under that key.
    If you put a dataset first in a loader's list, the loader makes a DatasetSource of it, in the
    dataset's own order; `DatasetSource(dataset, ordering="shuffle")` shuffles it. A Grain dataset
    that shuffles or augments does so differently in every epoch, as in Grain: the loader reads
    `dataset[epoch * len + index]`.

    >>> import cereal
    >>> words = ["a", "bb", "ccc", "dddd"]
    >>> source = cereal.DatasetSource(words)
    >>> lengths = cereal.HostMapTransform(len)
    >>> loader = cereal.DataLoader([source, lengths, cereal.BatchTransform(2)])
    >>> [batch.tolist() for batch, mask in loader]
    [[1, 2], [3, 4]]
    """

    data: Any
    n: int = static_field()
    spec: Spec = static_field()
    _epochs: Epochs = static_field(default="same")
    index_key: str | None = static_field(default=None)
    _quick: bool = static_field(default=False)
    ordering: Order = Sequential()  # the constructor sets it

    def __init__(
        self, dataset: Any, ordering: Any = "sequential", *, index_key: str | None = None
    ) -> None:
        _refuse_class(dataset)
        table = recognised(dataset, _OWNER)
        if isinstance(table, Stream):
            raise PipelineError(
                f"{_OWNER}: a {type(dataset).__name__} can only be iterated, in its own order; put "
                f"it first in the loader's list as it is, or write `IterableSource(lambda: ...)`."
            )
        if not isinstance(table, Table | None):
            dataset, table = table, None
        n = _length(dataset) if table is None else len(table)
        check_length(n, "the dataset", _OWNER)
        blocks = None if table is None else table.blocks
        order, epochs = as_order(ordering, n, _OWNER, blocks), epochs_of(dataset)
        stride = n if epochs != "same" else 0
        data = _Dataset(dataset, stride) if table is None else TableData(table, table.decode)
        set_fields(self, data=data, n=n, ordering=order, _epochs=epochs, _quick=data.quick)
        if table is None or table.decode is not None:
            spec = Spec(spec_of_element(self._sample()))
        else:
            spec = spec_of_table(table)
        check_index_key(spec.tree, index_key, _OWNER)
        set_fields(self, spec=with_index_key(spec, index_key), index_key=index_key)
        if index_key is not None:
            data.sample = None  # the next one has the index

    @property
    def _by_epoch(self) -> bool:  # type: ignore[override]
        return self._epochs != "same"

    @property
    def classes(self) -> Mapping[str, tuple[Any, ...]]:
        """For columns of categories, what each number stands for: `{"color": ("red", "blue")}`."""
        return self.data.classes

    def _describe(self) -> Traits:
        return self._describe_by(fixed=self._epochs != "moved", quick=self._quick)

    def __len__(self) -> int:
        return self.n

    @property
    def _label(self) -> str:
        carried = f", index_key={self.index_key!r}" if self.index_key else ""
        return f"{_OWNER}({self.data.kind}[{self.n}], ordering={self._order.name}{carried})"


def _refuse_class(dataset: Any) -> None:
    if isinstance(dataset, type):
        raise PipelineError(
            f"{_OWNER}: `dataset` is the class {dataset.__name__}, not an instance; write "
            f"`{dataset.__name__}(...)`."
        )


def _length(dataset: Any) -> int:
    refuse_no_data(dataset, _OWNER, "dataset")
    hint = "; if it can only be iterated, write `IterableSource(lambda: iter(...))`"
    kind = type(dataset).__name__
    if not is_dataset(dataset):
        raise PipelineError(
            f"{_OWNER}: `dataset` must have `__len__` and `__getitem__`, got {kind}"
            f"{hint if hasattr(dataset, '__iter__') else ''}."
        )
    try:
        n = len(dataset)
    except Exception as error:
        raise PipelineError(
            f"{_OWNER}: the length of a {kind} is not known ({error}){hint}."
        ) from error
    return n


def is_dataset(value: Any) -> bool:
    """Whether this has a length and gives elements by index."""
    if isinstance(value, str | bytes | bytearray | Mapping | set | frozenset):
        return False
    return hasattr(value, "__len__") and hasattr(value, "__getitem__")


class _Dataset(ElementData):
    """A dataset. In a Grain dataset epochs begin `stride` elements apart; for others it is 0."""

    quick = False
    classes: Mapping[str, tuple[Any, ...]] = {}

    def __init__(self, dataset: Any, stride: int = 0) -> None:
        super().__init__()
        self.dataset, self._stride = dataset, stride

    @property
    def kind(self) -> str:
        return type(self.dataset).__name__

    def reader(self, label: str) -> DatasetReader:
        return DatasetReader(label, self.dataset, self._stride)

    def digest_of(self) -> Any:
        return self.dataset

    def __reduce__(self) -> tuple[Any, ...]:
        return _Dataset, (self.dataset, self._stride)


class InMemoryDataset(ABC):
    """A dataset made of arrays; first in a loader's list, it becomes an `ArraySampleSource`."""

    @abstractmethod
    def as_array_dict(self) -> dict[str, np.ndarray]:
        """All elements, as a dict of arrays."""


def as_source(value: Any) -> Any:
    """The source for this data (arrays, arrays in files, a dataset); None if it is not data."""
    known = None if isinstance(value, type) else recognised(value, "stage 0")
    if isinstance(known, Stream):
        return IterableSource(known.make_iterator, length=known.length)
    if known is not None:
        return DatasetSource(value)
    refuse_no_data(value, "stage 0", "data")
    if hasattr(value, "__next__"):
        return None
    if isinstance(value, type) or (callable(value) and not is_dataset(value)):
        return None
    if isinstance(value, InMemoryDataset):
        return ArraySampleSource(value.as_array_dict(), ordering="sequential")
    value = without_tensors(value, "stage 0", "data")
    # A list holds elements, and may be long: its items are not looked at.
    named = [] if isinstance(value, list) else leaves_of_tree(value, "stage 0", "data")
    leaves = [leaf for _, leaf in named]
    if leaves and all(isinstance(x, np.ndarray | jax.Array) and is_array_like(x) for x in leaves):
        in_files = any(isinstance(x, np.memmap) for x in leaves)
        return (MemmapSource if in_files else ArraySampleSource)(value, ordering="sequential")
    if isinstance(value, Mapping) and any(isinstance(x, np.ndarray) or is_frame(x) for x in leaves):
        array_leaves(value, "stage 0", "data")  # raises, and says which is not an array of numbers
    return DatasetSource(value) if is_dataset(value) else None
