"""Python functions over elements or batches, run by workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...base.pytree import pytree_dataclass, set_fields, static_field
from ...base.spec import Spec
from ...host.element_spec import form_of
from ...host.host_data import HostFunction
from ...order.rows import Rows
from ...pipeline.host_stage import HostStage, as_host_function
from ...reading.leaves import protected
from ...reading.stages import BatchMap, MapStage, seen_mask
from ...reading.structure import Structure


@pytree_dataclass
class HostMapTransform(HostStage):
    """Applies a Python function to each element, or after batching to each batch.

        "cat.jpg"  --fn-->  {"image": uint8[224,224,3], "label": 3}     on the loader's workers

    Before batching, `fn(element)` gets and returns any Python object; the next compiled stage, or
    the end of the pipeline, needs arrays and numbers of a fixed shape. After batching, `fn(batch)`
    or `fn(batch, mask)` gets NumPy arrays. Arrays are read-only: copy before you write.

    >>> import cereal
    >>> words = ["a", "bb", "ccc", "dddd"]
    >>> loader = cereal.DataLoader([words, cereal.HostMapTransform(len), cereal.BatchTransform(2)])
    >>> [batch.tolist() for batch, mask in loader]
    [[1, 2], [3, 4]]
    """

    fn: HostFunction
    with_mask: bool = static_field()

    def __init__(self, fn: Callable[..., Any]) -> None:
        function, second = as_host_function(fn, "HostMapTransform", "mask")
        set_fields(self, fn=function, with_mask=second)

    def over_elements(self, number: int) -> MapStage:
        del number
        return MapStage(self._label, self.fn.fn, self.with_mask)

    def over_batches(
        self, number: int, before: Structure, spec: Spec, lanes: tuple[int, ...]
    ) -> BatchMap:
        del number
        form = form_of(spec)
        return BatchMap(self._label, before, form, lanes, self.fn.fn, self.with_mask)

    def on_sample(self, source: Any, rows: Rows) -> tuple[Any, Any]:
        if not source.traits.lanes:
            return super().on_sample(source, rows)
        return None, self.sample_batch(source._sample(), rows)

    def sample_batch(self, sample: Any, rows: Rows) -> Any:
        if not self.with_mask:
            return self.fn(protected(sample))
        return self.fn(protected(sample), protected(seen_mask(None, rows)))
