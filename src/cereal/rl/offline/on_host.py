"""Recorded episodes for host stages: NumPy reads them, and they never go to a device."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np

from ...base.pytree import pytree_dataclass, static_field
from ...base.spec import Spec
from ...device.words import WordRows
from ...host.element_spec import form_of
from ...order.ordering import Order, Sequential
from ...pipeline.host_source import HostIndexed
from ...pipeline.traits import Traits
from ...reading.readers.episodes import EpisodesReader, Rowed
from ...sources.arrays_on_host import InMemory


@pytree_dataclass
class EpisodesOnHost(HostIndexed[Any]):
    """What a source of episodes becomes when a host stage follows it."""

    data: Any
    _n: int = static_field()
    spec: Spec = static_field()
    _rowed: tuple[Rowed, ...] = static_field()
    _window: int | None = static_field()
    _overlap: int = static_field()
    _name: str = static_field()
    ordering: Order = Sequential()

    def __len__(self) -> int:
        return self._n

    def element_spec(self) -> Any:
        return self.spec.tree

    def _describe(self) -> Traits:
        known = {"windows": self._window is not None, "episodes": True, "overlap": self._overlap}
        return self._describe_as(host=True, by_python=True, wide=True, **known)

    @property
    def _label(self) -> str:
        return self._name

    @property
    def _roots(self) -> frozenset[int]:
        return frozenset() if self.data is None else frozenset([self.data.number])

    @cached_property
    def _reader(self) -> EpisodesReader:
        structure = form_of(self.spec).structure
        return EpisodesReader(self._name, self.data.arrays, structure, self._rowed, self._window)


class Column(NamedTuple):
    """An array, and which of its rows a leaf of an element has."""

    rowed: Rowed
    array: Any


def on_host(source: Any, columns: dict[str, Any], ahead: np.ndarray) -> EpisodesOnHost:
    """The same elements, read by NumPy; `columns` is like an element, with columns as leaves."""
    leaves = jax.tree.leaves(columns, is_leaf=lambda x: isinstance(x, Column))
    arrays = [as_rows(leaf.array) for leaf in leaves if leaf.rowed != "index"]
    data = InMemory((np.asarray(source._places), ahead, *arrays))
    rowed = tuple(leaf.rowed for leaf in leaves)
    return EpisodesOnHost(
        data,
        len(source),
        source.spec,
        rowed,
        source._window,
        source.traits.overlap,
        source._label,
        source._order,
    )


def as_rows(leaf: Any) -> np.ndarray:
    """The array in NumPy; on the CPU nothing is copied."""
    if isinstance(leaf, WordRows):
        return np.asarray(leaf.words).view(leaf.dtype).reshape(leaf.shape)
    return np.asarray(leaf)
