"""The part of a pipeline that Python runs: it reads elements, runs host stages, makes arrays.

    source, stages  --lower-->  Program: plain functions, without JAX      (`reading/program.py`)
    rows  --program.read-->  leaves and a mask  -->  Fetched, in the rows

The program runs in the caller's thread, in a loader's workers, or in a callback of a program.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import numpy as np

from ..base.pytree import pytree_dataclass, static_field
from ..base.spec import Spec
from ..host.element_spec import as_arrays, form_of
from ..order.rows import Rows
from ..reading.program import Level, Program, Stacked
from ..reading.read_context import read_context
from ..reading.readers.reader import ChainReader, Reader
from ..reading.stages import BatchStage, ElementStage, Filler
from ..reading.structure import Structure
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

    def over_elements(self) -> ElementStage:
        """The stage before batching, as a plain function."""
        return self.stage.over_elements(self.number)

    def over_batches(self, before: Structure) -> BatchStage:
        """The stage after batching; `before` is the structure of the batches that it gets."""
        return self.stage.over_batches(self.number, before, self.spec, self.lanes)

    def sample(self, before: Any) -> Any:
        if not self.lanes:
            return self.stage.fn.sample
        return as_arrays(self.stage.sample_batch(before._sample(), one_row(self.lanes)), self.spec)


def fetch_by(program: Program, spec: Spec, rows: Rows, masks: bool) -> Rows:
    """The rows of any number of steps, with what Python reads for them.

    `spec` is that of one step; `masks`: elements may be left out. If the rows are specs without
    values, so is the result.
    """
    shape = rows.index.shape
    masked = masks or read_context().masked
    if isinstance(rows.index, jax.ShapeDtypeStruct):
        extra = shape[: len(shape) - len(program.lanes)]  # all axes, if a step is one element
        values = jax.tree.map(
            lambda s: jax.ShapeDtypeStruct((*extra, *s.shape), s.dtype), spec.tree
        )
        mask = jax.ShapeDtypeStruct(shape, np.bool_) if masked else None
        return rows.replaced(below=Fetched(values, mask))
    remote = read_context().remote
    leaves, keep = program.read(rows) if remote is None else remote.read(program, rows)
    mask = None
    if masked:
        mask = np.ones(shape, np.bool_) if keep is None else keep.reshape(shape)
    return rows.replaced(below=Fetched(jax.tree.unflatten(spec.structure, leaves), mask))


def lower(source: Any, stages: tuple[Any, ...], filler: Any = None) -> Program:
    """The program of a source and the stages over it that Python runs.

    `filler` gives an element to use where one was left out; by default, the last stage does.
    """
    batched = [isinstance(placed, Batching) for placed in stages]
    before = stages[: batched.index(True)] if any(batched) else stages
    reader = reader_of(source, before)
    filler = Filler(_filler(source, before) if filler is None else filler)
    spec = before[-1].spec if before else Spec(source.element_spec())
    if not any(batched):
        label = (stages or (source,))[-1]._label
        return Program(reader, Stacked(label, form_of(spec), filler), (), form_of(spec))
    levels: list[Level] = []
    structure = form_of(stages[len(before)].spec).structure
    for placed in stages[len(before) :]:
        if isinstance(placed, Batching):
            collect = None if placed.lanes else placed.collect(spec, filler)
            levels.append(Level(placed.stage.batch_size, placed.lanes_after, collect, ()))
        else:
            levels[-1].stages += (placed.over_batches(structure),)
        structure = form_of(placed.spec).structure
    return Program(reader, None, tuple(levels), form_of(stages[-1].spec))


def reader_of(source: Any, stages: tuple[Any, ...]) -> Reader:
    """What reads the elements of a source, after these stages before batching."""
    lowered = tuple(placed.over_elements() for placed in stages)
    return ChainReader(source._reader, lowered) if stages else source._reader


def _filler(source: Any, stages: tuple[Any, ...]) -> Callable[[], Any]:
    """A function that gives an element to use where one was left out after these stages."""
    return (lambda: stages[-1].sample(None)) if stages else source._filler


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same method, which does not keep its object alive; afterwards it returns None."""
    found = weakref.WeakMethod(method)

    def call(*args: Any) -> Any:
        alive = found()
        return None if alive is None else alive(*args)

    return call


def one_row(lanes: tuple[int, ...]) -> Rows:
    """Rows of a step in which all lanes are element 0, with key 0 and epoch 0."""
    zeros = np.zeros(lanes or (1,), np.uint32)
    return Rows(np.zeros(2, np.uint32), zeros, zeros.astype(np.int64), None)
