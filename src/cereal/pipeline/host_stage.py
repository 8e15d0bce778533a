"""Stages that Python runs, on workers.

before batching   the function gets one element, which may be any Python object
after batching    it gets the batch, as NumPy arrays

Host stages come first, compiled stages after them.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import jax
import numpy as np

from ..base.errors import CerealError, PipelineError, in_one_line
from ..base.pytree import set_copy
from ..base.spec import Spec, format_spec
from ..functions.function import takes_second
from ..host.element_batch import ElementBatch, check_arrays, leaves_of, spec_of_element
from ..host.host_data import HostFunction
from ..host.read_context import READ_ONLY, SKIPPED, is_read_only
from ..order.rows import Rows
from .check_stage import check_per_element
from .host_loop import HostPlace, one_row, reshaped
from .pipeline import attach, parts_of
from .placed import CompiledStage
from .positional import IndexedSource, Positional
from .source import Source, check_source
from .stage import Transform
from .traits import StageTraits

Words = Any  # the two words of a random key per lane, or None


class HostStage(Transform[Any, Any]):
    """A transform that Python runs."""

    traits: ClassVar[StageTraits] = StageTraits()

    fn: HostFunction

    @property
    def _label(self) -> str:
        return f"{type(self).__name__}({self.fn.name})"

    @abstractmethod
    def on_elements(self, taken: ElementBatch, rows: Rows, words: Words) -> ElementBatch:
        """The elements after this stage; a random stage gets the `words` of their random keys."""

    def on_batch(self, values: Any, mask: Any, rows: Rows, words: Words, spec: Spec) -> Any:
        """The batch after this stage, (values, mask). By default it works element by element.

        `spec` is the spec of the result. A mask of None is all True.
        """
        lanes = rows.index.shape
        flat = rows.reshape(-1)
        n = flat.index.size
        keep = None if mask is None else mask.reshape(-1)
        taken = ElementBatch(n, stacked=reshaped(values, len(lanes), (n,)), keep=keep)
        words = None if words is None else tuple(word.reshape(-1) for word in words)
        taken = self.on_elements(taken, flat, words)
        element = jax.tree.map(
            lambda s: jax.ShapeDtypeStruct(s.shape[len(lanes) :], s.dtype), spec.tree
        )
        taken = taken.stack(Spec(element), self._label, flat, lambda: self.fn.sample)
        keep = None if taken.keep is None else taken.keep.reshape(lanes)
        return reshaped(taken.stacked, 1, lanes), keep

    def __call__(self, source: Source[Any]) -> Source[Any]:
        source = below_host_stage(source, self._label)
        assert isinstance(source, Positional)
        traits = source.traits
        rows = one_row(traits.lanes)
        words = rows.element_words(traits.random_stages) if self.traits.random else None
        try:
            element, sample = self.on_sample(source, rows, words)
        except CerealError:
            raise
        except Exception as error:
            raise PipelineError(
                f"{self._label} failed on {format_spec(source.element_spec())}: {in_short(error)}"
            ) from error
        if sample is None:
            raise PipelineError(
                f"{self._label} returned None; did `fn` forget to `return` what it made?"
            )
        mine = self.fn if self.fn.sample is None else HostFunction(self.fn.fn, called=self.fn.name)
        mine.sample = element
        stage, spec = _with(self, mine), spec_of_element(sample)
        if traits.lanes:
            check_arrays(spec, self._label, "return arrays and numbers from a function of batches")
        return attach(source, HostPlace(stage, Spec(spec), traits.lanes, traits.random_stages))

    def on_sample(self, source: Any, rows: Rows, words: Words) -> tuple[Any, Any]:
        """What it makes of one element, and of one step (after batching: a batch); for the spec."""
        sample, lanes = source._sample(), source.traits.lanes
        if not lanes:
            element = self.on_elements(ElementBatch(1, one=lambda _: sample), rows, words).element(
                0
            )
            return element, element
        check_per_element(sample, lanes, self._label)
        element = jax.tree.map(lambda x: x[(0,) * len(lanes)], sample)
        flat = rows.reshape(-1)[:1]
        words = None if words is None else tuple(word.reshape(-1)[:1] for word in words)
        made = self.on_elements(ElementBatch(1, one=lambda _: element), flat, words).element(0)
        return made, sample if made is SKIPPED else repeated(made, lanes)

    def sample_batch(self, sample: Any, rows: Rows) -> Any:
        """An example of a batch after this stage; `sample` is an example of one before it."""
        del sample
        return repeated(self.fn.sample, rows.index.shape)


def repeated(element: Any, lanes: tuple[int, ...]) -> Any:
    """A batch in which all elements are this one."""
    spec = Spec(spec_of_element(element))
    check_arrays(spec.tree, "a stage after batching", "return arrays and numbers")
    stacked = [np.broadcast_to(x, (*lanes, *x.shape)) for x in leaves_of(element, spec)]
    return jax.tree.unflatten(spec.structure, stacked)


def in_short(error: BaseException) -> str:
    """The first line of an error, and what to do if something wrote into a read-only array."""
    return in_one_line(error) + (READ_ONLY if is_read_only(error) else "")


def as_host_function(
    fn: Any, owner: str, second: str, name: str = "fn"
) -> tuple[HostFunction, bool]:
    """`fn` as a host function, and whether it takes a second argument of the name `second`."""
    if not callable(fn):
        raise PipelineError(
            f"{owner}: `{name}` must be callable, got {type(fn).__name__} ({fn!r:.80}); write a "
            f"function."
        )
    plain = fn.fn if isinstance(fn, HostFunction) else fn
    function = fn if isinstance(fn, HostFunction) else HostFunction(fn)
    return function, takes_second(plain, second)


def _with(stage: Any, function: HostFunction) -> Any:
    """The stage with this function, which holds the sample for one source."""
    return stage if stage.fn is function else set_copy(stage, fn=function)


def below_host_stage(source: Any, label: str) -> Any:
    """The source as a host stage reads it, or an error if no host stage may follow it.

    Data on a device is copied to the host, and is not a leaf of the pytree any more.
    """
    _check_before(source, label)
    return jax.tree.map(
        lambda x: x._as_host() if isinstance(x, IndexedSource) else x, source, is_leaf=_in_memory
    )


def _in_memory(node: Any) -> bool:
    if not isinstance(node, IndexedSource) or node._members:
        return False
    return node.traits.by_python and not node.traits.host


def _check_before(source: Any, label: str) -> None:
    check_source(source, label)
    if isinstance(source, Positional) and source.traits.by_python:
        return
    if not isinstance(source, Positional):
        raise PipelineError(
            f"{label} runs in Python and cannot follow {source._label}, a stream of compiled code; "
            f"use HostCallbackTransform after it, or MapTransform with a JAX function."
        )
    root, stages = parts_of(source)
    if not stages and root._upstream is None:
        raise PipelineError(
            f"{label} runs in Python, but {source._label} is read by compiled code; give the data "
            f"as a DatasetSource or an ArraySampleSource, or use MapTransform."
        )
    compiled = [placed._label for placed in stages if isinstance(placed, CompiledStage)]
    stage = root._label if not root.traits.by_python else compiled[0]
    raise PipelineError(
        f"{label} runs in Python, on the host, but comes after {stage}, which is compiled: host "
        f"stages come first. Move it before {stage}, or write {stage} as a host stage too "
        f"(HostMapTransform), or {label} as a compiled one (MapTransform)."
    )
