"""Masks elements, by a Python function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import numpy as np

from ...base.pytree import pytree_dataclass, set_fields
from ...host.element_spec import repeated
from ...host.host_data import HostFunction
from ...order.rows import Rows, routed_at
from ...pipeline.host_source import first_element
from ...pipeline.host_stage import HostStage, as_host_function
from ...pipeline.traits import StageTraits
from ...reading.leaves import protected
from ...reading.read_context import SKIPPED
from ...reading.stages import FilterStage


@pytree_dataclass
class HostFilterTransform(HostStage):
    """Masks the elements for which the Python function `fn(element)` is False.

        element   "a"   "bcd"  "ef"   "ghij"
        mask      False True   False  True       fn = lambda text: len(text) > 2

    The element keeps its place in the batch, with a mask of False: so a batch is still a function
    of its position. Later host stages do not get the element; in its place the batch holds a copy
    of the first element that passes.

    >>> import cereal
    >>> long = cereal.HostFilterTransform(lambda text: len(text) > 2)
    >>> stages = [["a", "bcd", "ef", "ghij"], long, cereal.HostMapTransform(len)]
    >>> for batch, mask in cereal.DataLoader([*stages, cereal.BatchTransform(4)]):
    ...     print(batch.tolist(), mask.tolist())
    [3, 3, 3, 4] [False, True, False, True]
    """

    traits: ClassVar[StageTraits] = StageTraits(changes_mask=True)

    fn: HostFunction

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        set_fields(self, fn=as_host_function(fn, "HostFilterTransform", "")[0])

    def over_elements(self, number: int) -> FilterStage:
        del number
        return FilterStage(self._label, self.fn.fn)

    def on_sample(self, source: Any, rows: Rows) -> tuple[Any, Any]:
        """An element that passes, if there is one near the start: later stages get only such."""
        element, sample = super().on_sample(source, rows)
        if element is not SKIPPED:
            return element, sample
        if not source.traits.lanes:
            element = first_element(source, self._passes, source._sample())
            return element, element
        batch = source._sample()
        element = first_of_batch(source, self._passes)
        if element is None:
            element = jax.tree.map(lambda x: x[(0,) * len(source.traits.lanes)], batch)
        return element, repeated(element, source.traits.lanes)

    def _passes(self, element: Any) -> bool:
        return bool(self.fn(protected(element)))


def first_of_batch(source: Any, wanted: Callable[[Any], bool]) -> Any:
    """The first element of the first batch that is wanted; None if there is none."""
    lanes = source.traits.lanes
    index = (np.arange(math.prod(lanes)) % source.traits.length).reshape(lanes)
    values, mask = source._produce(routed_at(source, index))
    for at in np.ndindex(*lanes):
        element = jax.tree.map(lambda x, at=at: x[at], values)
        if (mask is None or mask[at]) and wanted(element):
            return element
    return None
