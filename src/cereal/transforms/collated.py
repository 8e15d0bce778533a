"""Batches that a Python function makes of lists of elements."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import numpy as np

from ..core.host_stage import HostBatchNode
from ..core.position import Remainder
from ..core.pytree import pytree_dataclass, static_field
from ..core.reading import SKIPPED, reading
from ..core.rows import Rows
from ..core.spec import Spec
from ..core.taken import as_arrays, check_arrays, protected, spec_of_element

T_co = TypeVar("T_co", covariant=True)


@pytree_dataclass
class CollatedBatches(HostBatchNode[T_co]):
    """Batches that a Python function makes of lists of elements."""

    source: Any
    batch: Any
    spec: Spec = static_field()

    @property
    def label(self) -> str:
        return self.batch.label

    @property
    def quick(self) -> bool:
        return False

    @property
    def lanes(self) -> tuple[int, ...]:
        return (self.batch.batch_size,)

    @property
    def remainder(self) -> Remainder:
        return self.batch.remainder

    def sample(self) -> Any:
        elements = [self.source.sample()] * self.batch.batch_size
        return collate_as_arrays(self.batch, elements, self.spec)

    def produce(self, rows: Rows) -> tuple[Any, Any]:
        taken = self.source.produce(rows)
        elements, keep = taken.elements(), taken.keep
        here = reading()
        if keep is not None and not keep.all():  # another one stands where one was left out
            kept = np.flatnonzero(keep)
            if not kept.size:
                return self._zeros(), keep
            elements = [e if k else elements[kept[0]] for e, k in zip(elements, keep, strict=True)]
        with here.at(self.label, rows):
            try:
                here.step_to(0)
                made = collate_as_arrays(self.batch, elements, self.spec)
                return jax.tree.map(here.own, made), keep
            except Exception as error:
                made = here.failed(error)
            if made is SKIPPED:
                return self._zeros(), np.zeros(self.lanes, np.bool_)
            return as_arrays(made, self.spec), keep

    def _zeros(self) -> Any:
        zeros = [np.zeros(s.shape, s.dtype) for s in self.spec.leaves]
        return jax.tree.unflatten(self.spec.structure, zeros)


def collate_as_arrays(batch: Any, elements: list[Any], promised: Spec | None) -> Any:
    """What `collate` makes of elements, as arrays in the types of JAX."""
    made = batch.collate([protected(element) for element in elements])
    spec = Spec(spec_of_element(made)) if promised is None else promised
    check_arrays(spec.tree, batch.label, "return arrays and numbers from `collate`")
    return as_arrays(made, spec)
