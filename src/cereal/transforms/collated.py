"""Batches that a Python function makes of lists of elements."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import numpy as np

from ..core.errors import PipelineError
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
        taken = self.source.produce(rows).listed(rows)
        keep, here = taken.keep, reading()
        elements = [taken.element(lane) for lane in range(taken.n)]
        if keep is not None and not keep.all():
            filler = self.source.filler()
            if filler is None:
                filler = next((e for e in elements if e is not SKIPPED), None)
            if filler is None:
                return self._zeros(), keep
            elements = [filler if e is SKIPPED else e for e in elements]
        with here.at(self.label, rows):
            try:
                if here.doomed:
                    here.check_doomed()
                made = collate_as_arrays(self.batch, elements, self.spec)
                return jax.tree.map(here.own, made), keep
            except Exception as error:
                made = here.failed(error)
            if made is SKIPPED:
                return self._zeros(), np.zeros(self.lanes, np.bool_)
            return jax.tree.map(here.own, as_arrays(made, self.spec)), keep

    def _zeros(self) -> Any:
        zeros = [np.zeros(s.shape, s.dtype) for s in self.spec.leaves]
        return jax.tree.unflatten(self.spec.structure, zeros)


def collate_as_arrays(batch: Any, elements: list[Any], promised: Spec | None) -> Any:
    """What `collate` makes of elements, as arrays in the types of JAX."""
    made = batch.collate([protected(element) for element in elements])
    if made is None:
        raise PipelineError(f"{batch.label}: `collate` returned None; did it forget to `return`?")
    spec = Spec(spec_of_element(made)) if promised is None else promised
    check_arrays(spec.tree, batch.label, "return arrays and numbers from `collate`")
    return as_arrays(made, spec)
