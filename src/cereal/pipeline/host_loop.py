"""The part of a pipeline that Python runs: it reads elements, runs host stages, makes arrays.

    rows  --source-->  elements  --stages-->  elements  --stack or collate-->  a batch  --stages-->
          arrays of a fixed shape

This runs in the caller's thread, in a loader's workers, or in a callback of a program. The
functions here do not know which; they ask `read_context()` for memory, help, and what to do about
errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import numpy as np

from ..base.errors import PipelineError
from ..base.pytree import pytree_dataclass, static_field
from ..base.spec import Spec
from ..host.element_batch import ElementBatch, as_arrays, spec_of_element
from ..host.read_context import SKIPPED, read_context
from ..order.rows import Rows
from .placed import Batching, Placed
from .traits import Traits


@pytree_dataclass
class Fetched:
    """What Python read for some rows; stored in `Rows.below`."""

    values: Any
    mask: Any  # None: all real

    def read(self, rows: Rows) -> tuple[Any, Any]:
        """The values and the mask (None: all real) of these rows."""
        if self.mask is None:
            return self.values, rows.valid
        return self.values, self.mask if rows.valid is None else rows.valid & self.mask


@pytree_dataclass
class HostPlace(Placed):
    """A host stage at its place in a pipeline."""

    on_host: ClassVar[bool] = True

    stage: Any
    spec: Spec = static_field()
    lanes: tuple[int, ...] = static_field()
    number: int = static_field()

    def over(self, traits: Traits) -> Traits:
        return traits.over_host(self.stage.traits)

    def _words(self, rows: Rows) -> Any:
        return rows.element_words(self.number) if self.stage.traits.random else None

    def on_elements(self, taken: ElementBatch, rows: Rows) -> ElementBatch:
        """Before batching: the elements after this stage."""
        return self.stage.on_elements(taken, rows, self._words(rows))

    def on_batch(self, values: Any, mask: Any, rows: Rows) -> tuple[Any, Any]:
        """After batching: the batch and the mask after this stage."""
        words = self._words(rows)
        make = lambda: self.stage.on_batch(values, mask, rows, words, self.spec)  # noqa: E731
        return made_batch(self, rows, mask, make)

    def sample(self, before: Any) -> Any:
        if not self.lanes:
            return self.stage.fn.sample
        return as_arrays(self.stage.sample_batch(before._sample(), one_row(self.lanes)), self.spec)


def fetch_by(source: Any, stages: tuple[Any, ...], rows: Rows, masks: bool) -> Rows:
    """The rows of any number of steps, with what Python reads for them and these stages make of it.

    `masks`: elements may be left out. If the rows are specs without values, so is the result.
    """
    shape, lanes = rows.index.shape, stages[-1].lanes_after if stages else ()
    masked = masks or read_context().masked
    if isinstance(rows.index, jax.ShapeDtypeStruct):
        extra = shape[: len(shape) - len(lanes)]  # all axes, if a step is one element
        spec = stages[-1].spec.tree if stages else source.element_spec()
        values = jax.tree.map(lambda s: jax.ShapeDtypeStruct((*extra, *s.shape), s.dtype), spec)
        mask = jax.ShapeDtypeStruct(shape, np.bool_) if masked else None
        return rows.replaced(below=Fetched(values, mask))
    make = _batches if lanes else _elements
    values, keep = make(source, stages, rows)
    mask = None
    if masked:
        mask = np.ones(shape, np.bool_) if keep is None else keep.reshape(shape)
    return rows.replaced(below=Fetched(values, mask))


def _elements(source: Any, stages: tuple[Any, ...], rows: Rows) -> tuple[Any, Any]:
    shape = rows.index.shape
    flat = rows if len(shape) == 1 else rows.reshape(-1)
    taken = elements_by(source, stages, flat)
    if not taken.is_stacked or taken.keep is not None:
        spec, filler = _alike(source, stages)
        taken = taken.stack(spec(), (stages or (source,))[-1]._label, flat, filler)
    return (taken.stacked if len(shape) == 1 else reshaped(taken.stacked, 1, shape)), taken.keep


def _batches(source: Any, stages: tuple[Any, ...], rows: Rows) -> tuple[Any, Any]:
    lanes = stages[-1].lanes_after
    extra = rows.index.shape[: rows.index.ndim - len(lanes)]
    if not extra:
        return batch_by(source, stages, rows)
    found = read_context().spread(
        list(np.ndindex(*extra)), lambda at: batch_by(source, stages, rows[at])
    )
    values, keep = stack_batches(found, lanes)
    return reshaped(values, 1, extra), keep


def _alike(source: Any, stages: tuple[Any, ...]) -> tuple[Callable[[], Spec], Callable[[], Any]]:
    """The spec of elements after these stages, and an element to use where one was left out."""
    if not stages:
        return lambda: Spec(source.element_spec()), source._filler
    return lambda: stages[-1].spec, lambda: stages[-1].sample(None)


def elements_by(source: Any, stages: tuple[Any, ...], rows: Rows) -> ElementBatch:
    """The elements of rows of one axis, after the stages before batching."""
    taken = source._produce(rows)
    for placed in stages:
        taken = placed.on_elements(taken, rows)
    return taken


def batch_by(source: Any, stages: tuple[Any, ...], rows: Rows) -> tuple[Any, Any]:
    """The values and the mask (None: all real) of the rows of one batch."""
    at = max(number for number, placed in enumerate(stages) if isinstance(placed, Batching))
    batching, before = stages[at], stages[:at]
    if batching.lanes:
        found = [batch_by(source, before, rows[k]) for k in range(batching.stage.batch_size)]
        values, mask = stack_batches(found, batching.lanes)
    else:
        taken = elements_by(source, before, rows)
        values, mask = batching.collect(taken, rows, *_alike(source, before))
    for placed in stages[at + 1 :]:
        values, mask = placed.on_batch(values, mask, rows)
    return values, mask


def made_batch(
    placed: Any, rows: Rows, mask: Any, make: Callable[[], tuple[Any, Any]]
) -> tuple[Any, Any]:
    """The batch and the mask that `make` returns, as arrays that nobody else writes into. If it
    raises, what `on_error` gives instead, with the old mask; or zeros and a mask that is all False.
    """
    here = read_context()
    with here.at(placed._label, rows):
        try:
            if here.known_to_hang:
                here.check_known_to_hang()
            made, mask = make()
            made = as_promised(made, placed.spec, f"{placed._label} returned", "when it was built")
            return jax.tree.map(here.own, made), mask
        except Exception as error:
            made = here.failed(error)
        if made is SKIPPED:
            return placed.spec.zeros(), np.zeros(placed.lanes_after, np.bool_)
        return jax.tree.map(here.own, as_arrays(made, placed.spec)), mask


def as_promised(made: Any, spec: Spec, who: str, known: str, fix: str = "") -> Any:
    """A function's batch as arrays of this spec, or an error that names both specs."""
    try:
        return as_arrays(made, spec)
    except PipelineError as error:
        found = Spec(spec_of_element(made))
        if found == spec:  # a number that does not fit
            raise
        raise PipelineError(
            f"{who} {found}, but {spec} {known}; all batches must have one shape and dtype. "
            f"{fix or 'Pad what it returns to a fixed length.'}"
        ) from error


def one_row(lanes: tuple[int, ...]) -> Rows:
    """Rows of a step in which all lanes are element 0, with key 0 and epoch 0."""
    zeros = np.zeros(lanes or (1,), np.uint32)
    return Rows(np.zeros(2, np.uint32), zeros, zeros.astype(np.int64), None)


def reshaped(tree: Any, axes: int, shape: tuple[int, ...]) -> Any:
    """The arrays with their first `axes` axes replaced by `shape`."""
    return jax.tree.map(lambda x: x.reshape((*shape, *x.shape[axes:])), tree)


def stack_batches(found: list[tuple[Any, Any]], lanes: tuple[int, ...]) -> tuple[Any, Any]:
    """Several batches and masks as one, with one more axis."""
    values = jax.tree.map(lambda *parts: _stacked(parts), *(value for value, _ in found))
    if all(mask is None for _, mask in found):
        return values, None
    full = np.ones(lanes, np.bool_)
    return values, _stacked([full if mask is None else mask for _, mask in found])


def _stacked(parts: Any) -> np.ndarray:
    out = read_context().empty((len(parts), *parts[0].shape), parts[0].dtype)
    return np.stack(parts, out=out)
