"""Batches that a Python function makes of lists of elements."""

from __future__ import annotations

import contextlib
from typing import Any, TypeVar

import jax
import numpy as np

from ..core.errors import PipelineError
from ..core.host_data import HostFunction
from ..core.host_stage import HostBatchNode, as_promised, in_short
from ..core.position import Remainder
from ..core.pytree import pytree_dataclass, set_copy, static_field
from ..core.reading import SKIPPED
from ..core.rows import Rows, host_rows_at
from ..core.spec import Spec, format_spec
from ..core.taken import check_arrays, protected, spec_of_element

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
        function = self.batch.collate
        if function.sample is None:  # the spec was given
            elements = first_batch(self.source, self.batch.batch_size)
            function.sample = collate_as_arrays(self.batch, elements, self.spec)
        return function.sample

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


def collate_with(batch: Any, source: Any) -> CollatedBatches[Any]:
    """The batches that a BatchTransform with `collate=` makes of a source.

    Unless they were stated, shapes are those of a real batch: a function that pads to the longest
    element, say, tells nothing by copies of one.
    """
    known, size = batch.collate, batch.batch_size
    mine = known if known.sample is None else HostFunction(known.fn, called=known.name)
    batch = set_copy(batch, collate=mine)
    if batch.spec is not None:
        return CollatedBatches(source, batch, batch.spec)
    try:
        sample = collate_as_arrays(batch, first_batch(source, size), None)
    except PipelineError:
        raise
    except Exception as error:
        raise PipelineError(
            f"{batch.label} failed on {format_spec(source.element_spec())}: {in_short(error)}"
        ) from error
    spec = Spec(spec_of_element(sample))
    given = f"{batch.label}: `collate` was given {size} elements and returned"
    check_batch(spec, size, given, "")
    mine.sample = sample
    return CollatedBatches(source, batch, spec)


def check_batch(spec: Spec, size: int, who: str, hint: str) -> None:
    """Every array of a batch begins with the batch's axis."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(spec.tree)[0]:
        if leaf.shape[:1] != (size,):
            raise PipelineError(
                f"{who} `batch{jax.tree_util.keystr(path)}` of shape {leaf.shape}; {hint} the "
                f"first axis of every array must be {size}.".replace(";  ", "; ")
            )


def first_batch(source: Any, size: int) -> list[Any]:
    """The first elements by their index, as many as a batch has; again from the first one if
    there are fewer. Where one cannot be read, or is left out, the first that can stands."""
    sample, found = source.sample(), []
    peeked = contextlib.nullcontext() if source.stream is None else source.stream.peeked()
    with peeked, contextlib.suppress(Exception):
        taken = source.produce(source.route(host_rows_at(np.arange(min(size, len(source))))))
        for lane in range(taken.n):
            element = SKIPPED
            with contextlib.suppress(Exception):
                element = taken.element(lane)
            found.append(sample if element is SKIPPED else element)
    found = found or [sample]
    return [found[lane % len(found)] for lane in range(size)]


def collate_as_arrays(batch: Any, elements: list[Any], promised: Spec | None) -> Any:
    """What `collate` makes of elements, as arrays in the types of JAX."""
    made = batch.collate([protected(element) for element in elements])
    if made is None:
        raise PipelineError(f"{batch.label}: `collate` returned None; did it forget to `return`?")
    spec = Spec(spec_of_element(made)) if promised is None else promised
    check_arrays(spec.tree, batch.label, "return arrays and numbers from `collate`")
    known = "for the first batch" if batch.spec is None else "by `spec=`"
    fix = (
        f"Pad to a fixed length, by `collate=pad_collate(max_length=...)` or in your function, and "
        f"state what it returns: `BatchTransform({batch.batch_size}, collate=fn, spec=...)`, a "
        f"tree of `jax.ShapeDtypeStruct(shape, dtype)`."
    )
    return as_promised(made, spec, f"{batch.label}: `collate` returned", known, fix)
