"""Stages that Python runs, on workers.

HostElementStage   before batching: the function sees one element, which may be anything
HostBatchStage     after batching: it sees the batch, as NumPy arrays

Host stages come first, compiled stages after; between them is the seam.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from typing import Any, ClassVar, TypeVar

import jax
import numpy as np

from .errors import CerealError, PipelineError
from .function import Function, takes_second
from .host import Fetched, HostIndexed, HostNode
from .host_data import HostFunction
from .pytree import pytree_dataclass, set_fields, static_field
from .reading import SKIPPED, reading
from .rows import Rows
from .source import Positional, Source
from .spec import Spec, format_spec
from .stage import Transform
from .taken import Taken, as_arrays, leaves_of, spec_of_element
from .wrapper import PositionalWrapper

T_co = TypeVar("T_co", covariant=True)
Words = Any  # the two words of a random key per lane, or None


class HostStage(Transform[Any, Any]):
    """A transform that Python runs."""

    random: ClassVar[bool] = False
    changes_mask: ClassVar[bool] = False

    fn: HostFunction

    @property
    def label(self) -> str:
        return f"{type(self).__name__}({self.fn.name})"

    @abstractmethod
    def on_elements(self, taken: Taken, rows: Rows, words: Words) -> Taken:
        """What it makes of elements; `words` are those of their random keys, if it is random."""

    def on_batch(self, values: Any, mask: Any, rows: Rows, words: Words, spec: Spec) -> Any:
        """What it makes of a batch, (values, mask): the same, element by element.

        `spec` is that of its result. A mask of None is all True.
        """
        lanes = rows.index.shape
        flat = rows.reshape(-1)
        taken = Taken(None, _reshaped(values, len(lanes), (flat.index.size,)), flat.index.size)
        taken.keep = None if mask is None else mask.reshape(-1)
        words = None if words is None else tuple(word.reshape(-1) for word in words)
        taken = self.on_elements(taken, flat, words)
        element = jax.tree.map(
            lambda s: jax.ShapeDtypeStruct(s.shape[len(lanes) :], s.dtype), spec.tree
        )
        taken = taken.stack(Spec(element), self.label, flat)
        keep = None if taken.keep is None else taken.keep.reshape(lanes)
        return _reshaped(taken.stacked, 1, lanes), keep

    def __call__(self, source: Source[Any]) -> Source[Any]:
        check_before(source, self.label)
        assert isinstance(source, Positional)
        rows = _one_row(source)
        words = rows.element_words(source.random_stages) if self.random else None
        try:
            sample = self._on_sample(source, rows, words)
        except CerealError:
            raise
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            raise PipelineError(
                f"{self.label} failed on {format_spec(source.element_spec())}: "
                f"{type(error).__name__}: {first}"
            ) from error
        if source.lanes:
            return HostBatchStage(source, self, Spec(spec_of_element(sample)))
        _refuse_nothing(sample, self.label)
        mine = self.fn if self.fn.sample is None else HostFunction(self.fn.fn)
        mine.sample = sample
        return HostElementStage(source, _with(self, mine), Spec(spec_of_element(sample)))

    def _on_sample(self, source: Any, rows: Rows, words: Words) -> Any:
        sample = source.sample()
        if not source.lanes:
            return self.on_elements(Taken([sample]), rows, words).elements()[0]
        return self.on_sample_batch(sample, rows, words)

    def on_sample_batch(self, sample: Any, rows: Rows, words: Words) -> Any:
        """A batch, to see what batches look like."""
        axes = rows.index.ndim
        element = jax.tree.map(lambda x: x[(0,) * axes], sample)
        flat = rows.reshape(-1)[:1]
        words = None if words is None else tuple(word.reshape(-1)[:1] for word in words)
        made = self.on_elements(Taken([element]), flat, words).elements()[0]
        arrays = leaves_of(made, spec := Spec(spec_of_element(made)))
        lanes = rows.index.shape
        stacked = [np.broadcast_to(x, (*lanes, *x.shape)) for x in arrays]
        return jax.tree.unflatten(spec.structure, stacked)


def as_host_function(fn: Any, owner: str, second: str) -> tuple[HostFunction, bool]:
    """Checks that `fn` can run on the host; and whether it takes a second argument of this name."""
    if not callable(fn):
        raise PipelineError(
            f"{owner}: `fn` must be callable, got {type(fn).__name__} ({fn!r:.80}); write "
            f"`{owner}(lambda element: ...)`."
        )
    return HostFunction(fn), takes_second(Function(None, fn), second)


def _with(stage: Any, function: HostFunction) -> Any:
    """The stage, with the function as one source sees it."""
    if stage.fn is function:
        return stage
    fields = {field.name: getattr(stage, field.name) for field in dataclasses.fields(stage)}
    copy = object.__new__(type(stage))
    set_fields(copy, **{**fields, "fn": function})
    return copy


def _one_row(source: Positional[Any]) -> Rows:
    """Rows as a step has them, of element 0, key 0 and epoch 0."""
    zeros = np.zeros(source.lanes or (1,), np.uint32)
    return Rows(np.zeros(2, np.uint32), zeros, zeros.astype(np.int64), None)


def _refuse_nothing(sample: Any, label: str) -> None:
    if sample is None:
        raise PipelineError(f"{label} returned None; did `fn` forget to `return` the element?")


def check_before(source: Any, label: str) -> None:
    """Whether a host stage may follow: all before it is run by Python."""
    if not isinstance(source, Source):
        raise PipelineError(
            f"{label} must be called with a source, got {type(source).__name__}; write "
            f"`{label.partition('(')[0]}(...)(source)`."
        )
    if isinstance(source, Positional) and source.produces:
        return
    if not isinstance(source, Positional):
        raise PipelineError(
            f"{label} runs in Python and cannot follow {source.label}, a stream of compiled code; "
            f"use HostCallbackTransform after it, or MapTransform with a JAX function."
        )
    if source.inner is None:
        raise PipelineError(
            f"{label} runs in Python, but {source.label} is read by compiled code; give the data "
            f"as a DatasetSource or an ArraySampleSource, or use MapTransform."
        )
    stage = _first_compiled(source)
    raise PipelineError(
        f"{label} runs in Python, on the host, but comes after {stage}, which is compiled: host "
        f"stages come first. Move it before {stage}, or write {stage} as a host stage too "
        f"(HostMapTransform), or {label} as a compiled one (MapTransform)."
    )


def _first_compiled(source: Any) -> str:
    found = source.label
    while source is not None and not (isinstance(source, Positional) and source.produces):
        found, source = source.label, source.inner
    return found


class _HostStaged(PositionalWrapper[T_co], HostNode[T_co]):
    """What both kinds share."""

    source: Any
    stage: Any

    @property
    def label(self) -> str:
        return self.stage.label

    @property
    def host(self) -> bool:
        return True

    @property
    def quick(self) -> bool:
        return False

    @property
    def random_stages(self) -> int:
        return self.source.random_stages + self.stage.random

    @property
    def masks(self) -> bool:
        return self.source.masks or self.stage.changes_mask

    @property
    def masks_on_host(self) -> bool:
        return self.source.masks_on_host or self.stage.changes_mask

    def _words(self, rows: Rows) -> Words:
        return rows.element_words(self.source.random_stages) if self.stage.random else None


@pytree_dataclass
class HostElementStage(_HostStaged[T_co], HostIndexed[T_co]):
    """A host stage before batching."""

    source: Any
    stage: Any
    spec: Spec = static_field()

    def __len__(self) -> int:
        return len(self.source)

    @property
    def keyed(self) -> bool:
        return self.source.keyed or self.stage.random

    @property
    def fixed(self) -> bool:
        return self.source.fixed

    @property
    def once(self) -> bool:
        return self.source.once

    @property
    def overlap(self) -> int:
        return self.source.overlap

    @property
    def roots(self) -> frozenset[int]:
        return self.source.roots

    def element_spec(self) -> Any:
        return self.spec.tree

    def sample(self) -> Any:
        return self.stage.fn.sample

    def fetch(self, rows: Rows) -> Rows:
        return HostIndexed.fetch(self, rows)

    def produce(self, rows: Rows) -> Taken:
        return self.stage.on_elements(self.source.produce(rows), rows, self._words(rows))


class HostBatchNode(PositionalWrapper[T_co], HostNode[T_co]):
    """Batches that Python makes, one at a time."""

    @property
    def host(self) -> bool:
        return True

    def fetch(self, rows: Rows) -> Rows:
        shape = rows.index.shape
        if isinstance(rows.index, jax.ShapeDtypeStruct):
            return rows.replaced(below=self._promised(shape, self.element_spec()))
        extra = shape[: len(shape) - len(self.lanes)]
        if not extra:
            values, keep = self.produce(rows)
            return rows.replaced(below=Fetched(values, self._mask(keep, shape)))
        found = reading().spread(list(np.ndindex(*extra)), lambda at: self.produce(rows[at]))
        values = jax.tree.map(lambda *parts: _stacked(parts, extra), *(value for value, _ in found))
        keep = None
        if any(mask is not None for _, mask in found):
            full = np.ones(self.lanes, np.bool_)
            keep = _stacked([full if mask is None else mask for _, mask in found], extra)
        return rows.replaced(below=Fetched(values, self._mask(keep, shape)))


@pytree_dataclass
class HostBatchStage(_HostStaged[T_co], HostBatchNode[T_co]):
    """A host stage after batching."""

    source: Any
    stage: Any
    spec: Spec = static_field()

    def sample(self) -> Any:
        rows = _one_row(self.source)
        made = self.stage.on_sample_batch(self.source.sample(), rows, self._words(rows))
        return as_arrays(made, self.spec)

    def produce(self, rows: Rows) -> tuple[Any, Any]:
        here = reading()
        values, mask = self.source.produce(rows)
        with here.at(self.label, rows):
            try:
                here.step_to(0)
                made, mask = self.stage.on_batch(values, mask, rows, self._words(rows), self.spec)
                return jax.tree.map(here.own, as_arrays(made, self.spec)), mask
            except Exception as error:
                made = here.failed(error)  # of a batch: what stands in is a batch
            if made is not SKIPPED:
                return as_arrays(made, self.spec), mask
        zeros = [np.zeros(s.shape, s.dtype) for s in self.spec.leaves]
        return jax.tree.unflatten(self.spec.structure, zeros), np.zeros(self.lanes, np.bool_)


def _reshaped(tree: Any, axes: int, shape: tuple[int, ...]) -> Any:
    return jax.tree.map(lambda x: x.reshape((*shape, *x.shape[axes:])), tree)


def _stacked(parts: Any, extra: tuple[int, ...]) -> np.ndarray:
    out = reading().empty((len(parts), *parts[0].shape), parts[0].dtype)
    np.stack(parts, out=out)
    return out.reshape((*extra, *parts[0].shape))
