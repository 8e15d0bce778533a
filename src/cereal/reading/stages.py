"""Stages that Python runs, as plain functions over elements.

before batching   the function gets one element, which may be any Python object
after batching    it gets the batch, as NumPy arrays; or one element of it after the other
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ..base.errors import PipelineError
from .element_batch import ElementBatch
from .form import Form, leaves_of, promised_leaves
from .generators import with_generator
from .leaves import protected
from .loop import Link
from .read_context import CAUGHT, SKIPPED, Pace, read_context
from .rows import Rows
from .structure import Structure

Leaves = list[np.ndarray]


class ElementStage(Protocol):
    """A stage over elements."""

    label: str

    def link(self, rows: Rows) -> Link:
        """The stage for these rows (one axis)."""
        ...


@dataclasses.dataclass
class MapStage:
    """`fn(element)`, or `fn(element, True)` if it takes a mask."""

    label: str
    fn: Callable[..., Any]
    with_mask: bool

    def link(self, rows: Rows) -> Link:
        fn = self.fn
        if self.with_mask:
            return Link(self.label, rows, lambda value, lane: fn(protected(value), True))
        run = lambda value, lane: fn(protected(value))  # noqa: E731
        return Link(self.label, rows, run, "{fn}(protected(value))", fn)


@dataclasses.dataclass
class RandomStage:
    """`fn(element, rng)`; it is random stage number `number` of its pipeline."""

    label: str
    fn: Callable[..., Any]
    number: int

    def link(self, rows: Rows) -> Link:
        fn = self.fn
        high, low = rows.element_words(self.number)
        keys = ((high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)).tolist()
        run = lambda value, lane: with_generator(fn, protected(value), keys[lane])  # noqa: E731
        code = "with_generator({fn}, protected(value), {many}[lane])"
        return Link(self.label, rows, run, code, fn, keys)


@dataclasses.dataclass
class FilterStage:
    """Leaves out the elements for which `fn(element)` is False."""

    label: str
    fn: Callable[..., Any]

    def link(self, rows: Rows) -> Link:
        fn, label = self.fn, self.label

        def run(value: Any, lane: int) -> Any:
            del lane
            decision = fn(protected(value))
            if decision is True or decision is False:
                return value if decision else SKIPPED
            kind = getattr(decision, "dtype", np.dtype(type(decision)))
            if kind != np.bool_ or getattr(decision, "shape", ()):
                raise PipelineError(
                    f"{label}: the function must return one True or False per element, returned "
                    f"{type(decision).__name__} ({decision!r:.40}); write a comparison."
                )
            return value if decision else SKIPPED

        return Link(label, rows, run)


class Filler:
    """An element to use where one was left out. It is made when it is needed, or pickled."""

    def __init__(self, make: Callable[[], Any] | None, value: Any = None) -> None:
        self._make, self._value = make, value

    def __call__(self) -> Any:
        return self._value if self._make is None else self._make()

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            return Filler, (None, self())
        except Exception:  # then an element of the batch is repeated
            return Filler, (None, None)


@dataclasses.dataclass
class BatchStage:
    """A stage after batching: `make` gives the batch, and what `form` says is checked."""

    label: str
    before: Structure  # of what it gets
    form: Form  # of what it makes
    lanes: tuple[int, ...]

    def make(self, leaves: Leaves, mask: Any, rows: Rows) -> tuple[Any, Any]:
        """The batch, a tree, and the mask after this stage."""
        raise TypeError(f"{type(self).__name__} makes no batches")

    def run(self, leaves: Leaves, mask: Any, rows: Rows) -> tuple[Leaves, Any]:
        """The leaves of the batch, and the mask (None: all real)."""
        return made_batch(
            self.label, self.form, self.lanes, rows, mask, lambda: self.make(leaves, mask, rows)
        )


@dataclasses.dataclass
class BatchMap(BatchStage):
    """`fn(batch)` or `fn(batch, mask)`."""

    fn: Callable[..., Any]
    with_mask: bool

    def make(self, leaves: Leaves, mask: Any, rows: Rows) -> tuple[Any, Any]:
        batch = protected(self.before.unflatten(leaves))
        if not self.with_mask:
            return self.fn(batch), mask
        return self.fn(batch, protected(seen_mask(mask, rows))), mask


def seen_mask(mask: Any, rows: Rows) -> np.ndarray:
    """The mask that a function of a batch gets: padding is masked, too."""
    seen = np.ones(rows.index.shape, np.bool_) if mask is None else mask
    return seen if rows.valid is None else seen & rows.valid


@dataclasses.dataclass
class BatchElements(BatchStage):
    """A stage over elements, run over those of a batch."""

    stage: ElementStage
    element: Form  # of one element that it makes
    filler: Filler

    def __post_init__(self) -> None:
        self.pace = Pace()

    def make(self, leaves: Leaves, mask: Any, rows: Rows) -> tuple[Any, Any]:
        lanes, flat = rows.index.shape, rows.reshape(-1)
        n = flat.index.size
        arrays = reshaped(leaves, len(lanes), (n,))
        keep = None if mask is None else mask.reshape(-1)
        taken = ElementBatch.of_arrays(n, arrays, self.before, keep).linked(self.stage.link(flat))
        taken = taken.stack(self.element, self.label, flat, self.filler, self.pace)
        keep = None if taken.keep is None else taken.keep.reshape(lanes)
        return self.form.structure.unflatten(reshaped(taken.leaves, 1, lanes)), keep


def made_batch(
    label: str,
    form: Form,
    lanes: tuple[int, ...],
    rows: Rows,
    mask: Any,
    make: Callable[[], tuple[Any, Any]],
    check: Callable[[Any], Leaves] | None = None,
) -> tuple[Leaves, Any]:
    """The batch and the mask that `make` returns, as arrays that nobody else writes into. If it
    raises, what `on_error` gives instead, with the old mask; or zeros and a mask that is all False.
    """
    here = read_context()
    with here.at(label, rows):
        try:
            if here.known_to_hang:
                here.check_known_to_hang()
            made, changed = make()
            if check is not None:
                found = check(made)
            else:
                found = promised_leaves(made, form, f"{label} returned", "when it was built")
            return [here.own(leaf) for leaf in found], changed
        except CAUGHT as error:
            failed = error
        made = here.failed(failed)
        if made is SKIPPED:
            return form.zeros(), np.zeros(lanes, np.bool_)
        return [here.own(leaf) for leaf in leaves_of(made, form)], mask


def reshaped(leaves: Leaves, axes: int, shape: tuple[int, ...]) -> Leaves:
    """The arrays with their first `axes` axes replaced by `shape`."""
    return [x.reshape((*shape, *x.shape[axes:])) for x in leaves]
