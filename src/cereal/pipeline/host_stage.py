"""Stages that Python runs, on workers.

before batching   the function gets one element, which may be any Python object
after batching    it gets the batch, as NumPy arrays

Host stages come first, compiled stages after them.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import jax

from ..base.errors import CerealError, PipelineError, in_one_line
from ..base.pytree import set_copy
from ..base.spec import Spec, format_spec
from ..functions.function import takes_second
from ..host.element_spec import check_arrays, form_of, repeated, spec_of_element
from ..host.host_data import HostFunction
from ..order.rows import Rows
from ..reading.element_batch import ElementBatch
from ..reading.read_context import READ_ONLY, SKIPPED, is_read_only
from ..reading.stages import BatchElements, BatchStage, ElementStage, Filler
from ..reading.structure import Structure
from .check_stage import check_per_element
from .host_loop import HostPlace, one_row
from .pipeline import attach, parts_of
from .placed import CompiledStage
from .positional import Positional, read_by_numpy
from .source import Source, check_source
from .stage import Transform
from .traits import StageTraits


class HostStage(Transform[Any, Any]):
    """A transform that Python runs."""

    traits: ClassVar[StageTraits] = StageTraits()

    fn: HostFunction

    @property
    def _label(self) -> str:
        return f"{type(self).__name__}({self.fn.name})"

    @abstractmethod
    def over_elements(self, number: int) -> ElementStage:
        """The stage as a plain function of elements; it is random stage `number`, if it is one."""

    def over_batches(
        self, number: int, before: Structure, spec: Spec, lanes: tuple[int, ...]
    ) -> BatchStage:
        """The stage after batching. By default it works element by element.

        `before` is the structure of the batches that it gets, `spec` that of those that it makes.
        """
        element = jax.tree.map(
            lambda s: jax.ShapeDtypeStruct(s.shape[len(lanes) :], s.dtype), spec.tree
        )
        stage, filler = self.over_elements(number), Filler(lambda: self.fn.sample)
        form = form_of(Spec(element))
        return BatchElements(self._label, before, form_of(spec), lanes, stage, form, filler)

    def __call__(self, source: Source[Any]) -> Source[Any]:
        source = below_host_stage(source, self._label)
        assert isinstance(source, Positional)
        traits = source.traits
        rows = one_row(traits.lanes)
        try:
            element, sample = self.on_sample(source, rows)
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

    def on_sample(self, source: Any, rows: Rows) -> tuple[Any, Any]:
        """What it makes of one element, and of one step (after batching: a batch); for the spec."""
        sample, lanes = source._sample(), source.traits.lanes
        stage = self.over_elements(source.traits.random_stages)
        if not lanes:
            element = ElementBatch.of_list([sample]).linked(stage.link(rows)).element(0)
            return element, element
        check_per_element(sample, lanes, self._label)
        element = jax.tree.map(lambda x: x[(0,) * len(lanes)], sample)
        link = stage.link(rows.reshape(-1)[:1])
        made = ElementBatch.of_list([element]).linked(link).element(0)
        return made, sample if made is SKIPPED else repeated(made, lanes)

    def sample_batch(self, sample: Any, rows: Rows) -> Any:
        """An example of a batch after this stage; `sample` is an example of one before it."""
        del sample
        return repeated(self.fn.sample, rows.index.shape)


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
    """The source as a host stage reads it, or an error if no host stage may follow it."""
    _check_before(source, label)
    return read_by_numpy(source)


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
    if not stages and len(root.traits.mask_shape) > len(root.traits.lanes):
        raise PipelineError(
            f"{label} runs in Python, which has no masks inside of elements, but {source._label} "
            f"gives windows with padding; pass it `pad=False`, or use MapTransform."
        )
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
