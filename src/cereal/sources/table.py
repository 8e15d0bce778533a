"""The base of sources over tables: files, databases, frames and datasets of other libraries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from ..base.fitting import canonical
from ..base.pytree import pytree_dataclass, set_fields, static_field
from ..base.spec import Spec
from ..functions.function import function_name
from ..host.element_spec import spec_of_element
from ..order.ordering import Order, Sequential, as_order
from ..pipeline.traits import Traits
from ..reading.readers.reader import ChainReader, Reader
from ..reading.stages import MapStage
from ..reading.tables.table import Table, TableReader
from .by_element import ByElement, ElementData
from .index_key import check_index_key
from .length import check_length


@pytree_dataclass
class TableSource(ByElement[Any]):
    """A source over a `Table`; a subclass opens its table in `__init__`, and calls `_open`."""

    by_epoch = False

    data: Any
    n: int = static_field()
    spec: Spec = static_field()
    index_key: str | None = static_field(default=None)
    _quick: bool = static_field(default=False)
    ordering: Order = Sequential()  # `_open` sets it

    def _open(self, table: Table, ordering: Any, index_key: str | None, decode: Any = None) -> None:
        """Sets the fields. `decode` is a user's function from a row to an element."""
        owner = type(self).__name__
        check_length(len(table), table.name or "it", owner)
        decode = table.decode if decode is None else decode
        order, data = as_order(ordering, len(table), owner), TableData(table, decode)
        set_fields(self, data=data, n=len(table), index_key=None, ordering=order)
        if decode is None:
            spec = spec_of_table(table)
        else:
            spec, data.sample = Spec(spec_of_element(self._sample())), None
        check_index_key(spec.tree, index_key, owner)
        spec, quick = with_index_key(spec, index_key), table.quick and decode is None
        set_fields(self, spec=spec, index_key=index_key, _quick=quick)

    def __len__(self) -> int:
        return self.n

    @property
    def classes(self) -> Mapping[str, tuple[Any, ...]]:
        """For columns of categories, what each number stands for: `{"color": ("red", "blue")}`."""
        return self.data.classes

    def _describe(self) -> Traits:
        return self._describe_by(quick=self._quick)

    @property
    def _label(self) -> str:
        table = self.data.table
        carried = f", index_key={self.index_key!r}" if self.index_key else ""
        words = f"{table.name}, " if table.name else ""
        return f"{type(self).__name__}({words}ordering={self._order.name}{carried})"


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
