"""Arrays in memory, for host stages: NumPy reads them, and they never go to a device."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import jax

from ..base.pytree import pytree_dataclass, static_field
from ..base.spec import Spec
from ..host.element_spec import form_of
from ..host.host_data import HostData
from ..order.ordering import Order, Sequential
from ..pipeline.host_source import HostIndexed
from ..reading.readers.arrays import Arrays, ArraysReader


@pytree_dataclass
class ArraysOnHost(HostIndexed[Any]):
    """What an ArraySampleSource becomes when a host stage follows it."""

    data: Any
    n: int = static_field()
    spec: Spec = static_field()
    index_key: str | None = static_field(default=None)
    ordering: Order = Sequential()

    def __len__(self) -> int:
        return self.n

    def element_spec(self) -> Any:
        return self.spec.tree

    @property
    def _label(self) -> str:
        carried = f", index_key={self.index_key!r}" if self.index_key else ""
        return f"ArraySampleSource(ordering={self._order.name}{carried})"

    @property
    def _roots(self) -> frozenset[int]:
        return frozenset() if self.data is None else frozenset([self.data.number])

    @cached_property
    def _reader(self) -> ArraysReader:
        arrays, structure = self.data.arrays, form_of(self.spec).structure
        places = structure.unflatten(range(structure.num_leaves))
        index_at = None if self.index_key is None else places[self.index_key]
        names = [""] * len(arrays.leaves)
        return ArraysReader(self._label, arrays, names, structure, index_at)


class InMemory(HostData):
    """A tree of NumPy arrays."""

    def __init__(self, tree: Any) -> None:
        super().__init__()
        leaves, self._structure = jax.tree.flatten(tree)
        self.arrays = Arrays(leaves)

    def digest_of(self) -> Any:
        return self.arrays.leaves

    def __reduce__(self) -> tuple[Any, ...]:
        return InMemory, (jax.tree.unflatten(self._structure, self.arrays.leaves),)
