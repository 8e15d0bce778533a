"""Batches that a Python function makes of lists of elements."""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar

import jax
import numpy as np

from ..base.errors import PipelineError
from ..base.pytree import pytree_dataclass, set_copy, static_field
from ..base.spec import Spec, format_spec
from ..host.element_spec import check_arrays, form_of, spec_of_element
from ..host.host_data import HostFunction
from ..order.position import Remainder
from ..order.rows import host_rows_at
from ..pipeline.host_stage import in_short
from ..pipeline.placed import Batching
from ..pipeline.traits import Traits
from ..reading.collate import Collated, collated, collated_leaves
from ..reading.read_context import SKIPPED
from ..reading.stages import Filler


@pytree_dataclass
class Collating(Batching):
    """Batches that a Python function makes of lists of elements."""

    on_host: ClassVar[bool] = True

    stage: Any
    spec: Spec = static_field()
    lanes: tuple[int, ...] = static_field()
    remainder: Remainder = static_field()

    def over(self, traits: Traits) -> Traits:
        return super().over(traits).but(host=True, quick=False)

    def sample(self, before: Any) -> Any:
        function = self.stage.collate
        if function.sample is None:  # the spec was given
            elements = first_batch(before, self.stage.batch_size)
            function.sample = collate_as_arrays(self.stage, elements, self.spec)
        return function.sample

    def collect(self, spec: Spec, filler: Filler) -> Collated:
        del spec
        stage = self.stage
        size, stated = stage.batch_size, stage.spec is not None
        form = form_of(self.spec)
        return Collated(stage._label, stage.collate.fn, form, filler, size, stated)


def collate_with(batch: Any, source: Any) -> Collating:
    """The placed stage of a BatchTransform with `collate=` over a source.

    If `spec=` does not state the shapes, they are those of a real batch. Copies of one element are
    not enough: a function may pad to the longest element, for example.
    """
    known, size = batch.collate, batch.batch_size
    mine = known if known.sample is None else HostFunction(known.fn, called=known.name)
    batch = set_copy(batch, collate=mine)
    if batch.spec is not None:
        return Collating(batch, batch.spec, (), batch.remainder)
    try:
        sample = collate_as_arrays(batch, first_batch(source, size), None)
    except PipelineError:
        raise
    except Exception as error:
        raise PipelineError(
            f"{batch._label} failed on {format_spec(source.element_spec())}: {in_short(error)}"
        ) from error
    spec = Spec(spec_of_element(sample))
    given = f"{batch._label}: `collate` was given {size} elements and returned"
    check_batch(spec, size, given, "")
    mine.sample = sample
    return Collating(batch, spec, (), batch.remainder)


def check_batch(spec: Spec, size: int, who: str, hint: str) -> None:
    """Refuses a batch with an array whose first axis is not the batch."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(spec.tree)[0]:
        if leaf.shape[:1] != (size,):
            raise PipelineError(
                f"{who} `batch{jax.tree_util.keystr(path)}` of shape {leaf.shape}; {hint} the "
                f"first axis of every array must be {size}.".replace(";  ", "; ")
            )


def first_batch(source: Any, size: int) -> list[Any]:
    """The first elements by index, as many as a batch has; if there are fewer, they repeat.

    If one cannot be read, or was left out, the source's sample takes its place.
    """
    sample, found, iterators = source._sample(), [], source._iterators
    peeked = contextlib.nullcontext() if iterators is None else iterators.peeked()
    with peeked, contextlib.suppress(Exception):
        taken = source._produce(source._route(host_rows_at(np.arange(min(size, len(source))))))
        for lane in range(taken.n):
            element = SKIPPED
            with contextlib.suppress(Exception):
                element = taken.element(lane)
            found.append(sample if element is SKIPPED else element)
    found = found or [sample]
    return [found[lane % len(found)] for lane in range(size)]


def collate_as_arrays(batch: Any, elements: list[Any], promised: Spec | None) -> Any:
    """Calls `collate` with the elements; the batch as arrays, with dtypes that JAX has."""
    made = collated(batch.collate, elements, batch._label)
    spec = Spec(spec_of_element(made)) if promised is None else promised
    stated, size = batch.spec is not None, batch.batch_size
    check_arrays(spec.tree, batch._label, "return arrays and numbers from `collate`")
    leaves = collated_leaves(made, form_of(spec), batch._label, size, stated)
    return jax.tree.unflatten(spec.structure, leaves)
