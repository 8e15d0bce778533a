"""Python functions over elements or batches, run by workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...base.pytree import pytree_dataclass, set_fields, static_field
from ...base.spec import Spec
from ...host.element_batch import ElementBatch, protected
from ...host.host_data import HostFunction
from ...order.rows import Rows
from ...pipeline.host_stage import HostStage, as_host_function


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

    def on_elements(self, taken: ElementBatch, rows: Rows, words: Any) -> ElementBatch:
        del words
        fn, with_mask = self.fn.fn, self.with_mask

        def run(value: Any, lane: int) -> Any:
            del lane
            return fn(protected(value), True) if with_mask else fn(protected(value))

        return taken.mapped(self._label, rows, run)

    def on_batch(self, values: Any, mask: Any, rows: Rows, words: Any, spec: Spec) -> Any:
        del words, spec
        if not self.with_mask:
            return self.fn(protected(values)), mask
        seen = np.ones(rows.index.shape, np.bool_) if mask is None else mask
        seen = seen if rows.valid is None else seen & rows.valid
        return self.fn(protected(values), protected(seen)), mask

    def on_sample(self, source: Any, rows: Rows, words: Any) -> tuple[Any, Any]:
        if not source.traits.lanes:
            return super().on_sample(source, rows, words)
        return None, self.sample_batch(source._sample(), rows)

    def sample_batch(self, sample: Any, rows: Rows) -> Any:
        made, _ = self.on_batch(sample, None, rows, None, Spec(()))
        return made
