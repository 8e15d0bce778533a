"""Arrays in memory, for host stages: NumPy reads them, and they never go to a device."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..base.pytree import pytree_dataclass, static_field
from ..base.spec import Spec
from ..host.host_data import HostData
from ..host.read_context import read_context
from ..order.ordering import Order, Sequential
from ..pipeline.host_source import HostIndexed
from .index_key import with_index


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

    def _take_host(self, indices: np.ndarray) -> Any:
        return with_index(self.data.rows(indices), indices.astype(np.int32), self.index_key)


class InMemory(HostData):
    """A tree of NumPy arrays."""

    def __init__(self, tree: Any) -> None:
        super().__init__()
        self._leaves, self._structure = jax.tree.flatten(tree)

    def rows(self, indices: np.ndarray) -> Any:
        """The rows at these indices, stacked."""
        taken = [take_rows_on_host(leaf, indices) for leaf in self._leaves]
        return jax.tree.unflatten(self._structure, taken)

    def digest_of(self) -> Any:
        return self._leaves

    def __reduce__(self) -> tuple[Any, ...]:
        return InMemory, (jax.tree.unflatten(self._structure, self._leaves),)


def take_rows_on_host(array: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """The rows of a contiguous array, in memory that JAX can use without a copy."""
    out = read_context().empty((len(indices), *array.shape[1:]), array.dtype)
    # With `mode="raise"` NumPy would read into a buffer of its own first, and then copy.
    return np.take(array, indices, axis=0, out=out, mode="clip")
