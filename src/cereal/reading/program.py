"""A program: the part of a pipeline that Python runs, and nothing else of it. Plain, without JAX.

    rows --reader--> elements --stages--> elements --stack or collate--> a batch --stages--> leaves

It can be pickled (with cloudpickle, if the user's functions are in `__main__`) and run in a process
that has no JAX. It does not know who runs it: it asks `read_context()` for memory, help, and what
to do about errors.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from .collate import Collated
from .element_batch import ElementBatch
from .form import Form
from .read_context import Failed, Pace, read_context
from .readers.reader import Reader
from .rows import Rows
from .stages import BatchStage, Filler, Leaves, reshaped


@dataclasses.dataclass
class Stacked:
    """Elements become arrays, one after another in memory."""

    label: str
    form: Form  # of one element
    filler: Filler

    def __post_init__(self) -> None:
        self.pace = Pace()

    def collect(self, taken: ElementBatch, rows: Rows) -> tuple[Leaves, Any]:
        """The leaves of the batch, and which lanes are real (None: all)."""
        if not taken.is_stacked or taken.keep is not None:
            taken = taken.stack(self.form, self.label, rows, self.filler, self.pace)
        return taken.leaves, taken.keep


@dataclasses.dataclass
class Level:
    """A batching, with the stages after it: of elements (`collect`), or of batches (None)."""

    size: int
    lanes: tuple[int, ...]  # of the batches that it makes
    collect: Stacked | Collated | None
    stages: tuple[BatchStage, ...]


@dataclasses.dataclass
class Program:
    """The part of a pipeline that Python runs.

    `levels`: its batchings, the innermost first. Without any, elements are stacked by `stacked`.
    """

    reader: Reader
    stacked: Stacked | None
    levels: tuple[Level, ...]
    form: Form  # of one step: an element, or a batch

    def __post_init__(self) -> None:
        labels = [*self.reader.labels]
        labels += [] if self.stacked is None else [self.stacked.label]
        for level in self.levels:
            labels += [] if level.collect is None else [level.collect.label]
            labels += [stage.label for stage in level.stages]
        self.lanes = self.levels[-1].lanes if self.levels else ()  # of one step
        self.labels = tuple(dict.fromkeys(labels))  # by number
        self._numbers = {label: number for number, label in enumerate(self.labels)}

    @property
    def can_move(self) -> bool:
        """Whether another process can run it: not if it reads iterators, or a cache in memory."""
        return self.reader.can_move

    def read(self, rows: Rows) -> tuple[Leaves, np.ndarray | None]:
        """The leaves of what these rows read, in the order of `jax.tree.leaves`; and which lanes
        are real (None: all). Rows of any number of steps, routed, as NumPy arrays."""
        with read_context().step(rows, self._numbers):
            return self._elements(rows) if self.stacked is not None else self._batches(rows)

    def place(self, rows: Rows, lane: int, number: int) -> Failed | None:
        """The element that is read for a lane of these rows, by a stage of this number."""
        label, flat = self.labels[number], rows.reshape(-1)
        found = self.reader.find(flat, lane, label) or (flat, lane)
        key = np.asarray(rows.key).reshape(-1)[:2]
        at = [int(x[k]) for x, k in ((found[0].index, found[1]), (found[0].epoch, found[1]))]
        top = int(flat.index[lane]), int(flat.epoch[lane])
        return Failed(label, at[0], at[1], (int(key[0]), int(key[1])), *top)

    def _taken(self, rows: Rows) -> ElementBatch:
        """What the reader reads. A reader that reads a batch at once knows only its own rows."""
        here = read_context()
        top, here.top = here.top, None
        try:
            return self.reader.read(rows)
        finally:
            here.top = top

    def _elements(self, rows: Rows) -> tuple[Leaves, Any]:
        assert self.stacked is not None
        shape = rows.index.shape
        flat = rows if len(shape) == 1 else rows.reshape(-1)
        leaves, keep = self.stacked.collect(self._taken(flat), flat)
        return leaves if len(shape) == 1 else reshaped(leaves, 1, shape), keep

    def _batches(self, rows: Rows) -> tuple[Leaves, Any]:
        lanes, shape = self.levels[-1].lanes, rows.index.shape
        extra = shape[: len(shape) - len(lanes)]
        if not extra:
            return self._batch(rows, len(self.levels) - 1, 0)
        size = int(np.prod(lanes))

        def one(step: tuple[int, tuple[int, ...]]) -> tuple[Leaves, Any]:
            number, at = step
            with read_context().step(rows, self._numbers):
                return self._batch(rows[at], len(self.levels) - 1, number * size)

        steps = list(enumerate(np.ndindex(*extra)))
        leaves, keep = _stack_batches(read_context().spread(steps, one), lanes)
        return reshaped(leaves, 1, extra), keep

    def _batch(self, rows: Rows, number: int, first: int) -> tuple[Leaves, Any]:
        """The batch of these rows; `first` is its first lane among those of the whole step."""
        level, here = self.levels[number], read_context()
        if level.collect is None:
            inner = int(np.prod(level.lanes[1:]))
            found = [self._batch(rows[k], number - 1, first + k * inner) for k in range(level.size)]
            leaves, mask = _stack_batches(found, level.lanes[1:])
        else:
            here.first_lane = first
            leaves, mask = level.collect.collect(self._taken(rows), rows)
        here.first_lane = first
        for stage in level.stages:
            leaves, mask = stage.run(leaves, mask, rows)
        return leaves, mask


def _stack_batches(found: list[tuple[Leaves, Any]], lanes: tuple[int, ...]) -> tuple[Leaves, Any]:
    """Several batches and masks as one, with one more axis."""
    leaves = [_stack(parts) for parts in zip(*(each for each, _ in found), strict=True)]
    if all(mask is None for _, mask in found):
        return leaves, None
    full = np.ones(lanes, np.bool_)
    return leaves, _stack([full if mask is None else mask for _, mask in found])


def _stack(parts: Any) -> np.ndarray:
    out = read_context().empty((len(parts), *parts[0].shape), parts[0].dtype)
    return np.stack(parts, out=out)
