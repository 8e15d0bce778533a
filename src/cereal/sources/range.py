"""A range of integers, computed."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from ..base.errors import PipelineError
from ..base.numbers import as_whole
from ..base.pytree import pytree_dataclass, set_fields, static_field
from ..order.ordering import Order, Sequential, as_order
from ..order.permutation import MAX_TRACED
from ..order.rows import narrow
from ..pipeline.host_source import first_element
from ..pipeline.positional import IndexedSource
from ..pipeline.traits import Traits
from ..reading.readers.arrays import RangeReader
from ..reading.structure import structure_of
from .index_key import check_index_key, with_index


@pytree_dataclass
class RangeSource(IndexedSource[jax.Array]):
    """The integers from `start` up to, but without, `stop`, as int32; they take no memory.

    Write `RangeSource(stop)` or `RangeSource(start, stop)`. `ordering` is "sequential", "shuffle"
    or an array of indices. A shuffle of 10^9 integers starts at once.

    >>> import cereal
    >>> loader = cereal.DataLoader([cereal.RangeSource(2, 8), cereal.BatchTransform(3)])
    >>> [batch.tolist() for batch, mask in loader]
    [[2, 3, 4], [5, 6, 7]]
    """

    start: int = static_field()
    stop: int = static_field()
    index_key: str | None = static_field()
    ordering: Order = Sequential()  # the constructor sets it

    def __init__(
        self,
        start: int,
        stop: int | None = None,
        *,
        ordering: Any = "sequential",
        index_key: str | None = None,
    ) -> None:
        start, stop = (0, start) if stop is None else (start, stop)
        first, last = as_whole(start), as_whole(stop)
        if first is None or last is None:
            raise PipelineError(
                f"RangeSource: `start` and `stop` must be integers, got {start!r} and {stop!r}."
            )
        start, stop = first, last
        if stop <= start:
            raise PipelineError(
                f"RangeSource: `stop` must be greater than `start`, got start={start}, "
                f"stop={stop}; an empty range has nothing to load."
            )
        if stop > MAX_TRACED + 1 or start < -MAX_TRACED or stop - start > MAX_TRACED:
            raise PipelineError(
                f"RangeSource: the range {start} to {stop} does not fit int32, in which compiled "
                f"code counts; split it, and add the high part in a MapTransform."
            )
        check_index_key({"value": None}, index_key, "RangeSource")
        order = as_order(ordering, stop - start, "RangeSource")
        set_fields(self, start=start, stop=stop, index_key=index_key, ordering=order)

    def __len__(self) -> int:
        return self.stop - self.start

    def _describe(self) -> Traits:
        return self._describe_as(light=True, by_python=True)

    @property
    def _label(self) -> str:
        return f"RangeSource({self.start}, {self.stop}, ordering={self._order.name})"

    @cached_property
    def _reader(self) -> RangeReader:
        structure = structure_of(0 if self.index_key is None else {"value": 0, self.index_key: 0})
        first = self.index_key is not None and self.index_key < "value"
        return RangeReader(self._label, self.start, structure, first)

    def _sample(self) -> Any:
        return first_element(self)

    def element_spec(self) -> Any:
        spec = jax.ShapeDtypeStruct((), jnp.int32)
        return spec if self.index_key is None else {"value": spec, self.index_key: spec}

    def take(self, indices: jax.Array) -> Any:
        indices = narrow(indices)
        values = indices + jnp.int32(self.start)
        return (
            values
            if self.index_key is None
            else with_index({"value": values}, indices, self.index_key)
        )
