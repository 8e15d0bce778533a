"""The base of sources over tables: files, databases, frames and datasets of other libraries."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import jax
import numpy as np

from ..base.errors import OptionWarning
from ..base.fitting import canonical
from ..base.pytree import pytree_dataclass, set_fields, static_field
from ..base.spec import Spec
from ..functions.function import function_name
from ..host.element_spec import spec_of_element
from ..order.block_shuffle import BlockShuffle
from ..order.data_blocks import DataBlocks
from ..order.ordering import Order, Sequential, as_order
from ..pipeline.host_source import HostIndexed
from ..pipeline.traits import Traits
from ..reading.formats.arrays.stored import StoredTable
from ..reading.readers.reader import ChainReader, Reader
from ..reading.stages import MapStage
from ..reading.tables.pieces import PiecedTable
from ..reading.tables.table import Table, TableReader
from .by_element import ElementData, reader_of, sample_of
from .index_key import check_index_key
from .length import check_length


@pytree_dataclass
class TableSource(HostIndexed[Any]):
    """A source over a `Table`; a subclass opens its table in `__init__`, and calls `_open`."""

    data: Any
    _n: int = static_field()
    spec: Spec = static_field()
    index_key: str | None = static_field(default=None)
    _quick: bool = static_field(default=False)
    ordering: Order = Sequential()  # `_open` sets it

    def _open(self, table: Table, ordering: Any, index_key: str | None, decode: Any = None) -> None:
        """Sets the fields. `decode` is a user's function from a row to an element."""
        owner = type(self).__name__
        check_length(len(table), table.name or "it", owner)
        decode = table.decode if decode is None else decode
        order = as_order(ordering, len(table), owner, table.blocks)
        keep_pieces(table, order, owner)
        data = TableData(table, decode)
        set_fields(self, data=data, _n=len(table), index_key=None, ordering=order)
        if decode is None:
            spec = spec_of_table(table)
        else:
            spec, data.sample = Spec(spec_of_element(self._sample())), None
        check_index_key(spec.tree, index_key, owner)
        spec, quick = with_index_key(spec, index_key), table.quick and decode is None
        set_fields(self, spec=spec, index_key=index_key, _quick=quick)

    def __len__(self) -> int:
        return self._n

    @property
    def classes(self) -> Mapping[str, tuple[Any, ...]]:
        """For columns of categories, what each number stands for: `{"color": ("red", "blue")}`."""
        return self.data.classes

    def _describe(self) -> Traits:
        return self._describe_as(host=True, by_python=True, wide=True, quick=self._quick)

    def element_spec(self) -> Any:
        return self.spec.tree

    @cached_property
    def _reader(self) -> Reader:
        return reader_of(self)

    def _sample(self) -> Any:
        return sample_of(self)

    def _filler(self) -> Any:
        return self.data.sample  # None if no row was read yet: then one of the batch is repeated

    @property
    def _label(self) -> str:
        table = self.data.table
        carried = f", index_key={self.index_key!r}" if self.index_key else ""
        words = f"{table.name}, " if table.name else ""
        return f"{type(self).__name__}({words}ordering={self._order.name}{carried})"


def keep_pieces(table: Table, order: Order, owner: str) -> None:
    """Lets a table keep the pieces that this order reads at a time; warns if they are too large."""
    if not isinstance(table, PiecedTable | StoredTable) or table.sizes is None:
        return
    most, whole = table.most_bytes, sum(table.sizes)
    if isinstance(order, DataBlocks):
        # While the last batches of some blocks are read, the first ones of the next are read ahead.
        table.keep_at_least(min(2 * order.together, len(table.sizes)))
        needed = sum(sorted(table.sizes)[-table.at_least :])
        if needed > most:
            warnings.warn(
                f"{owner}: with ordering={order.name}, {table.at_least} {table.called} are kept, "
                f"which take about {_in_words(needed)}, more than `cache_bytes` "
                f"({_in_words(most)}); if that is too much, write the data with smaller "
                f"{table.called}.",
                OptionWarning,
                stacklevel=4,
            )
    elif order.random and whole > most and not _stays_near(order, table):
        warnings.warn(
            f"{owner}: ordering={order.name} reads rows all over the data, which has about "
            f"{_in_words(whole)}; only {_in_words(most)} of it are kept (`cache_bytes`), so its "
            f"{table.called} will be read again and again. Write `ordering=BlockShuffle()`, which "
            f"reads each once in an epoch, or write the data to fast files first: `convert(source, "
            f"folder)`.",
            OptionWarning,
            stacklevel=4,
        )


def _stays_near(order: Order, table: PiecedTable | StoredTable) -> bool:
    """Whether this is a `BlockShuffle(size)` whose open blocks cover pieces that are all kept."""
    if not isinstance(order, BlockShuffle) or table.sizes is None:
        return False
    longest, largest = max(table.lengths), max(table.sizes)
    pieces = 2 * order.together * (order.block_size // longest + 2)
    return order.block_size >= longest and pieces * largest <= table.most_bytes


def _in_words(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 5e7 else f"{size / 1e6:.1f} MB"


def spec_of_table(table: Table) -> Spec:
    """The spec of its rows, as JAX has them."""
    as_jax = lambda form: jax.ShapeDtypeStruct(form.shape, canonical(form.dtype))  # noqa: E731
    return Spec(jax.tree.map(as_jax, table.form))


def with_index_key(spec: Spec, index_key: str | None) -> Spec:
    """The spec of elements to which their index is added under this key."""
    if index_key is None:
        return spec
    return Spec({**spec.tree, index_key: jax.ShapeDtypeStruct((), canonical(np.int64))})


class TableData(ElementData):
    """A table, as the data of a source; `decode` makes an element of each row."""

    def __init__(self, table: Table, decode: Any = None) -> None:
        super().__init__()
        self.table, self.decode = table, decode

    @property
    def kind(self) -> str:
        return self.table.name

    @property
    def quick(self) -> bool:
        return self.table.quick

    @property
    def classes(self) -> Mapping[str, tuple[Any, ...]]:
        return self.table.classes

    def reader(self, label: str) -> Reader:
        reader = TableReader(label, self.table)
        if self.decode is None:
            return reader
        stage = MapStage(f"{label}, decode={function_name(self.decode)}", self.decode, False)
        return ChainReader(reader, (stage,))

    def digest_of(self) -> Any:
        return [type(self.table).__qualname__, self.table.digest(), self.decode]

    def __reduce__(self) -> tuple[Any, ...]:
        return TableData, (self.table, self.decode)
