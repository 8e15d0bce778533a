"""Stages that Python runs, on workers.

HostElementStage   before batching: the function sees one element, which may be anything
HostBatchStage     after batching: it sees the batch, as NumPy arrays

Host stages come first, compiled stages after; between them is the seam.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import jax
import numpy as np

from .errors import CerealError, PipelineError
from .function import takes_second
from .host import Fetched, HostIndexed, HostNode
from .host_data import HostFunction
from .positional import IndexedSource, Positional
from .promise import check_per_element
from .pytree import pytree_dataclass, set_copy, static_field
from .reading import READ_ONLY, SKIPPED, is_read_only, reading
from .rows import Rows
from .source import Source
from .spec import Spec, format_spec
from .stage import Transform
from .taken import Taken, as_arrays, check_arrays, leaves_of, spec_of_element
from .wrapper import IndexedWrapper, PositionalWrapper, StageWrapper

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
        n = flat.index.size
        keep = None if mask is None else mask.reshape(-1)
        taken = Taken(n, stacked=_reshaped(values, len(lanes), (n,)), keep=keep)
        words = None if words is None else tuple(word.reshape(-1) for word in words)
        taken = self.on_elements(taken, flat, words)
        element = jax.tree.map(
            lambda s: jax.ShapeDtypeStruct(s.shape[len(lanes) :], s.dtype), spec.tree
        )
        taken = taken.stack(Spec(element), self.label, flat, lambda: self.fn.sample)
        keep = None if taken.keep is None else taken.keep.reshape(lanes)
        return _reshaped(taken.stacked, 1, lanes), keep

    def __call__(self, source: Source[Any]) -> Source[Any]:
        source = below_host_stage(source, self.label)
        assert isinstance(source, Positional)
        rows = _one_row(source)
        words = rows.element_words(source.random_stages) if self.random else None
        try:
            element, sample = self.on_sample(source, rows, words)
        except CerealError:
            raise
        except Exception as error:
            raise PipelineError(
                f"{self.label} failed on {format_spec(source.element_spec())}: {in_short(error)}"
            ) from error
        if sample is None:
            raise PipelineError(
                f"{self.label} returned None; did `fn` forget to `return` what it made?"
            )
        mine = self.fn if self.fn.sample is None else HostFunction(self.fn.fn, called=self.fn.name)
        mine.sample = element
        stage, spec = _with(self, mine), spec_of_element(sample)
        if not source.lanes:
            return HostElementStage(source, stage, Spec(spec))
        check_arrays(spec, self.label, "return arrays and numbers from a function of batches")
        return HostBatchStage(source, stage, Spec(spec))

    def on_sample(self, source: Any, rows: Rows, words: Words) -> tuple[Any, Any]:
        """What it makes of an element, and after batching of a batch, to see how they look."""
        sample = source.sample()
        if not source.lanes:
            element = self.on_elements(Taken(1, one=lambda _: sample), rows, words).element(0)
            return element, element
        check_per_element(sample, source.lanes, self.label)
        element = jax.tree.map(lambda x: x[(0,) * len(source.lanes)], sample)
        flat = rows.reshape(-1)[:1]
        words = None if words is None else tuple(word.reshape(-1)[:1] for word in words)
        made = self.on_elements(Taken(1, one=lambda _: element), flat, words).element(0)
        return made, sample if made is SKIPPED else repeated(made, source.lanes)

    def sample_batch(self, sample: Any, rows: Rows) -> Any:
        """What a batch looks like after it; `sample` is one before it."""
        del sample
        return repeated(self.fn.sample, rows.index.shape)


def repeated(element: Any, lanes: tuple[int, ...]) -> Any:
    """A batch of one element."""
    spec = Spec(spec_of_element(element))
    check_arrays(spec.tree, "a stage after batching", "return arrays and numbers")
    stacked = [np.broadcast_to(x, (*lanes, *x.shape)) for x in leaves_of(element, spec)]
    return jax.tree.unflatten(spec.structure, stacked)


def in_short(error: BaseException) -> str:
    """The first line of an error, and what is known about it."""
    first = str(error).strip().partition("\n")[0]
    hint = READ_ONLY if is_read_only(error) else ""
    return f"{type(error).__name__}: {first}{hint}"


def as_host_function(
    fn: Any, owner: str, second: str, name: str = "fn"
) -> tuple[HostFunction, bool]:
    """Checks that `fn` can run on the host; and whether it takes a second argument of this name."""
    if not callable(fn):
        raise PipelineError(
            f"{owner}: `{name}` must be callable, got {type(fn).__name__} ({fn!r:.80}); write a "
            f"function."
        )
    plain = fn.fn if isinstance(fn, HostFunction) else fn
    function = fn if isinstance(fn, HostFunction) else HostFunction(fn)
    return function, takes_second(plain, second)


def _with(stage: Any, function: HostFunction) -> Any:
    """The stage, with the function as one source sees it."""
    return stage if stage.fn is function else set_copy(stage, fn=function)


def _one_row(source: Positional[Any]) -> Rows:
    """Rows as a step has them, of element 0, key 0 and epoch 0."""
    zeros = np.zeros(source.lanes or (1,), np.uint32)
    return Rows(np.zeros(2, np.uint32), zeros, zeros.astype(np.int64), None)


def below_host_stage(source: Any, label: str) -> Any:
    """The source as a host stage reads it, if one may follow: all before it is run by Python.

    Data on a device comes to the host, and is no leaf of the pytree any more.
    """
    _check_before(source, label)
    return jax.tree.map(
        lambda x: x.on_host() if isinstance(x, IndexedSource) else x, source, is_leaf=_in_memory
    )


def _in_memory(node: Any) -> bool:
    return isinstance(node, IndexedSource) and node.produces and not node.host and not node.members


def _check_before(source: Any, label: str) -> None:
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


class _HostStaged(StageWrapper[T_co], HostNode[T_co]):
    """What both kinds share."""

    @property
    def host(self) -> bool:
        return True

    @property
    def quick(self) -> bool:
        return False

    @property
    def masks_on_host(self) -> bool:
        return self.source.masks_on_host or self.stage.changes_mask

    def _words(self, rows: Rows) -> Words:
        return rows.element_words(self.source.random_stages) if self.stage.random else None


@pytree_dataclass
class HostElementStage(_HostStaged[T_co], IndexedWrapper[T_co], HostIndexed[T_co]):
    """A host stage before batching."""

    source: Any
    stage: Any
    spec: Spec = static_field()

    def element_spec(self) -> Any:
        return self.spec.tree

    def sample(self) -> Any:
        return self.stage.fn.sample

    def filler(self) -> Any:
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
        values, keep = stack_batches(found, self.lanes)
        values = _reshaped(values, 1, extra)
        return rows.replaced(below=Fetched(values, self._mask(keep, shape)))

    def _made(self, rows: Rows, mask: Any, make: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
        """The batch and mask that `make` gives, as arrays of our own; if it raises, what stands
        in for the batch (with the mask as it was), or zeros without a real element."""
        here = reading()
        with here.at(self.label, rows):
            try:
                if here.doomed:
                    here.check_doomed()
                made, mask = make()
                made = as_promised(made, self.spec, f"{self.label} returned", "when it was built")
                return jax.tree.map(here.own, made), mask
            except Exception as error:
                made = here.failed(error)
            if made is SKIPPED:
                return self.spec.zeros(), np.zeros(self.lanes, np.bool_)
            return jax.tree.map(here.own, as_arrays(made, self.spec)), mask


def as_promised(made: Any, spec: Spec, who: str, known: str, fix: str = "") -> Any:
    """What a function made of a batch as arrays of this spec, or an error that names both."""
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


@pytree_dataclass
class HostBatchStage(_HostStaged[T_co], HostBatchNode[T_co]):
    """A host stage after batching."""

    source: Any
    stage: Any
    spec: Spec = static_field()

    def sample(self) -> Any:
        made = self.stage.sample_batch(self.source.sample(), _one_row(self.source))
        return as_arrays(made, self.spec)

    def produce(self, rows: Rows) -> tuple[Any, Any]:
        values, mask = self.source.produce(rows)
        words = self._words(rows)
        make = lambda: self.stage.on_batch(values, mask, rows, words, self.spec)  # noqa: E731
        return self._made(rows, mask, make)


def _reshaped(tree: Any, axes: int, shape: tuple[int, ...]) -> Any:
    return jax.tree.map(lambda x: x.reshape((*shape, *x.shape[axes:])), tree)


def stack_batches(found: list[tuple[Any, Any]], lanes: tuple[int, ...]) -> tuple[Any, Any]:
    """Several batches and masks as one, with one more axis."""
    values = jax.tree.map(lambda *parts: _stacked(parts), *(value for value, _ in found))
    if all(mask is None for _, mask in found):
        return values, None
    full = np.ones(lanes, np.bool_)
    return values, _stacked([full if mask is None else mask for _, mask in found])


def _stacked(parts: Any) -> np.ndarray:
    out = reading().empty((len(parts), *parts[0].shape), parts[0].dtype)
    return np.stack(parts, out=out)
