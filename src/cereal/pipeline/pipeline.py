"""An indexed source and a list of stages: what a loader runs.

    source   [host stages]           [compiled stages]
    _route   _fetch: one loop        _read: one loop
             over them (`host_loop`) over them

Drawings, names of caches, fingerprints of states and workers all use this list. A source that
combines others has their pipelines below it.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, TypeVar

import jax
import numpy as np

from ..base.errors import UsageError
from ..base.pytree import pytree_dataclass, set_copy, static_field
from ..base.spec import Spec, spec_of
from ..device.placement import is_spread
from ..device.share import Share, inner_parts
from ..host.host_program import fetched_in_program
from ..order.ordering import Order
from ..order.rows import Rows, rows_at
from ..reading.program import Program
from ..reading.readers.reader import Reader
from .host_loop import Fetched, fetch_by, lower, reader_of
from .placed import Batching, Placed
from .positional import IndexedSource, Positional
from .source import Source
from .stream_stages import StreamWrapper
from .traits import Traits

T_co = TypeVar("T_co", covariant=True)


@pytree_dataclass
class Pipeline(Positional[T_co]):
    """A pipeline of batches: a source and stages, one of which makes batches."""

    source: Any  # an indexed source
    stages: tuple[Placed, ...]
    service: Any = None  # what reads the host part for a loader; None without a loader
    skips: bool = static_field(default=False)  # whether it leaves out elements that fail

    def element_spec(self) -> Any:
        return self._spec.tree

    def close(self) -> None:
        self.source.close()

    @property
    def _label(self) -> str:
        return self.stages[-1]._label if self.stages else self.source._label

    @cached_property
    def _spec(self) -> Spec:
        return self.stages[-1].spec if self.stages else Spec(self.source.element_spec())

    def _describe(self) -> Traits:
        traits = self.source.traits
        for placed in self.stages:
            traits = placed.over(traits)
        return traits.but(masks=True) if self.skips else traits

    @cached_property
    def _order(self) -> Order:
        return self.source._order

    @property
    def _iterators(self) -> Any:
        return self.source._iterators

    @property
    def _service_number(self) -> int | None:
        return None if self.service is None else self.service.number

    @cached_property
    def _without_service(self) -> Any:
        """The same pipeline as it was before a loader took it."""
        return set_copy(self, service=None, skips=False)

    @cached_property
    def _host_stages(self) -> tuple[Placed, ...]:
        """The stages that Python runs: up to the last host stage, with batchings before it."""
        numbers = [number for number, placed in enumerate(self.stages) if placed.on_host]
        return self.stages[: numbers[-1] + 1] if numbers else ()

    @cached_property
    def _share(self) -> Any:
        placement = self.traits.placement
        if not is_spread(placement) or not self.traits.host:
            return None
        unit = len(self._host_stages[-1].lanes_after) if self._host_stages else 0
        found = self._untouched(self._promised)
        return Share(placement, None if found is None else Spec(found.values), unit)

    @property
    def _promised(self) -> Rows:
        """The specs of what Python reads for a whole step."""
        rows, _ = self._plan.rows_for(np.zeros(5, np.uint32), 1)
        return self._fetch_from(self.source, jax.tree.map(spec_of, self._route(rows)[0]))

    @cached_property
    def _narrowed(self) -> Any:
        """The source that reads only the inner axes that this process needs, and which it reads;
        None if it reads whole elements.

        If elements that fail are left out, they are read whole: an element may fail in a part that
        another process does not read, and both must leave it out.
        """
        placement = self.traits.placement
        if self._share is None or self._share.touched or self._host_stages or placement.skips:
            return None
        parts = inner_parts(placement)
        source = None if not any(parts) else self.source._narrow(parts)
        return None if source is None else (source, parts)

    @property
    def _kept(self) -> Any:
        return None if self._narrowed is None else self._narrowed[1]

    @cached_property
    def _program(self) -> Program:
        """The host stages and what is below them, as plain functions."""
        return lower(self.source, self._host_stages)

    def _route(self, rows: Rows) -> Rows:
        return self.source._route(rows)

    def _next_rows(self, words: Any) -> tuple[Rows, Any]:
        if self.service is None or not self.service.threads:
            return super()._next_rows(words)
        return self.service.next_rows(self, words)

    def _fetch(self, rows: Rows) -> Rows:
        if self.service is None or isinstance(rows.index, jax.ShapeDtypeStruct):
            return self._fetch_here(rows)
        return self.service.fetch_now(self, rows, in_program=False)

    def _fetch_here(self, rows: Rows) -> Rows:
        """`_fetch` in this thread, with its own read context, which a worker has set."""
        if self._share is not None and not rows.index.size:  # no device of this process has a part
            specs = self._fetch_from(self.source, jax.tree.map(spec_of, rows))
            return jax.tree.map(lambda spec: np.zeros(spec.shape, spec.dtype), specs)
        narrowed = self._narrowed if self._share is not None else None
        return self._fetch_from(self.source if narrowed is None else narrowed[0], rows)

    def _fetch_from(self, source: Any, rows: Rows) -> Rows:
        if not self._host_stages:
            return source._fetch(rows)
        spec = self._host_stages[-1].spec
        return fetch_by(self._program, spec, rows, self.traits.masks_on_host)

    def _read(self, rows: Rows) -> tuple[T_co, Any]:
        if not self._host_stages:
            values, mask = _read_rows(self.source, rows)
        else:
            if not isinstance(rows.below, Fetched):
                rows = fetched_in_program(self, rows)
            values, mask = rows.below.read(rows)
        for placed in self.stages[len(self._host_stages) :]:
            values, mask = placed.read(values, mask, rows)
        return values, mask

    def _produce(self, rows: Rows) -> Any:
        """The values and the mask of one batch, if Python runs all stages."""
        program = self._program
        if len(self._host_stages) < len(self.stages):  # the last stage is a BatchTransform
            program = lower(self.source, self.stages)
        leaves, mask = program.read(rows)
        return jax.tree.unflatten(self._spec.structure, leaves), mask

    def _sample(self) -> Any:
        """One batch, as Python makes it."""
        return self.stages[-1].sample(before_last(self))

    def _untouched(self, rows: Rows) -> Any:
        for placed in self.stages[len(self._host_stages) :]:
            if not isinstance(placed, Batching) and not placed.stage.traits.hands_through:
                return None
        return rows.below if self._host_stages else self.source._untouched(rows)


@pytree_dataclass
class IndexedPipeline(Pipeline[T_co], IndexedSource[T_co]):
    """A pipeline of elements: no stage makes batches. It is itself an indexed source."""

    def __len__(self) -> int:
        return len(self.source)

    def take(self, indices: Any) -> T_co:
        if self.traits.random_stages:
            raise UsageError(
                f"{self._label} is random: its elements depend on a key and an epoch; read them "
                f"with `next(state)`, or take from the source below it."
            )
        return self._read(self._route(rows_at(indices)))[0]

    @property
    def _roots(self) -> frozenset[int]:
        return self.source._roots

    @cached_property
    def _reader(self) -> Reader:
        return reader_of(self.source, self.stages)

    def _produce(self, rows: Rows) -> Any:
        return self._reader.read(rows)

    def _filler(self) -> Any:
        return self._sample() if self.stages else self.source._filler()


def attach(source: Positional[Any], placed: Placed) -> Any:
    """The pipeline with one more stage."""
    root, stages = parts_of(source)
    made = make_pipeline(root, (*stages, placed))
    _ = made.traits  # computed now, so that its errors are raised here
    return made


def parts_of(source: Positional[Any]) -> tuple[Any, tuple[Placed, ...]]:
    """The source of a pipeline, and its stages."""
    return (source.source, source.stages) if isinstance(source, Pipeline) else (source, ())


def host_stages_of(source: Positional[Any]) -> tuple[Placed, ...]:
    """The stages of a pipeline that Python runs."""
    return source._host_stages if isinstance(source, Pipeline) else ()


def root_of(source: Source[Any]) -> Source[Any]:
    """The source below all stages, of a pipeline or a stream."""
    if isinstance(source, Pipeline):
        return source.source
    return root_of(source.source) if isinstance(source, StreamWrapper) else source


def make_pipeline(root: Any, stages: tuple[Placed, ...]) -> Any:
    """A pipeline of these stages; an `IndexedPipeline` if none of them makes batches."""
    if not stages:
        return root
    batched = any(isinstance(placed, Batching) for placed in stages)
    return (Pipeline if batched else IndexedPipeline)(root, stages)


def before_last(source: Any) -> Any:
    """The pipeline without its last stage."""
    return make_pipeline(source.source, source.stages[:-1])


def elements_of(source: Positional[Any]) -> Any:
    """The part of the pipeline before its first batching."""
    root, stages = parts_of(source)
    batched = [isinstance(placed, Batching) for placed in stages]
    return make_pipeline(root, stages[: batched.index(True)]) if any(batched) else source


def run_by(source: Positional[Any], service: Any, skips: bool = False) -> Any:
    """The pipeline as a loader runs it: the loader's `service` reads its host part."""
    if isinstance(source, Pipeline):
        return set_copy(source, service=service, skips=skips)
    return IndexedPipeline(source, (), service, skips)


def as_built(source: Any) -> Any:
    """The pipeline without the service of a loader, as the user built it."""
    if not isinstance(source, Pipeline) or source.service is None:
        return source
    return source._without_service if source.stages else source.source


def _read_rows(source: Any, rows: Rows) -> tuple[Any, Any]:
    """Reads rows of any number of axes from an indexed source, which itself reads one axis."""
    if rows.index.ndim <= 1:
        return source._read(rows)

    def read(lanes: Rows) -> tuple[Any, Any]:
        return _read_rows(source, lanes.replaced(key=rows.key))

    return jax.vmap(read)(rows.without_key)
