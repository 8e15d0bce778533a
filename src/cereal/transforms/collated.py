"""Batches that a Python function makes of lists of elements."""

from __future__ import annotations

from typing import Any, TypeVar

from ..core.errors import PipelineError
from ..core.host_stage import HostBatchNode
from ..core.position import Remainder
from ..core.pytree import pytree_dataclass, static_field
from ..core.reading import SKIPPED
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
    def mask_shape(self) -> tuple[int, ...]:
        return self.lanes

    @property
    def remainder(self) -> Remainder:
        return self.batch.remainder

    def sample(self) -> Any:
        elements = [self.source.sample()] * self.batch.batch_size
        return collate_as_arrays(self.batch, elements, self.spec)

    def produce(self, rows: Rows) -> tuple[Any, Any]:
        taken = self.source.produce(rows).listed(rows)
        keep = taken.keep
        elements = [taken.element(lane) for lane in range(taken.n)]
        if keep is not None and not keep.all():
            filler = self.source.filler()
            if filler is None:
                filler = next((e for e in elements if e is not SKIPPED), None)
            if filler is None:
                return self.spec.zeros(), keep
            elements = [filler if e is SKIPPED else e for e in elements]
        make = lambda: (collate_as_arrays(self.batch, elements, self.spec), keep)  # noqa: E731
        return self._made(rows, keep, make)


def collate_as_arrays(batch: Any, elements: list[Any], promised: Spec | None) -> Any:
    """What `collate` makes of elements, as arrays in the types of JAX."""
    made = batch.collate([protected(element) for element in elements])
    if made is None:
        raise PipelineError(f"{batch.label}: `collate` returned None; did it forget to `return`?")
    spec = Spec(spec_of_element(made)) if promised is None else promised
    check_arrays(spec.tree, batch.label, "return arrays and numbers from `collate`")
    return as_arrays(made, spec)
