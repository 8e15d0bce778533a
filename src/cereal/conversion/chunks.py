"""Reads all elements of a source in index order, in chunks, by the workers of a loader.

made by Python           rows --workers: stages, pack--> chunks          of any shape
made by compiled code    rows --workers--> arrays --program--> chunks    of one shape
"""

from __future__ import annotations

import base64
import dataclasses
import time
from collections.abc import Generator
from typing import Any, ClassVar

import jax
import numpy as np

from ..base.errors import PipelineError
from ..base.pytree import pytree_dataclass, static_field
from ..base.spec import Spec
from ..cache.elements import read_fetched_elements
from ..host.track import InlineTrack
from ..order.position import Remainder
from ..order.rows import Rows, routed_at
from ..pipeline.host_source import first_element
from ..pipeline.pipeline import attach
from ..pipeline.placed import Batching
from ..pipeline.traits import Traits
from ..reading.packing.column import Packed
from ..reading.packing.pack import SUMMARY, Chunk, Handover, Layout, Packs, Part, layout_of
from ..reading.read_context import ReadContext, use_read_context
from ..workers.options import Options
from ..workers.read_service import ReadService, without_service

_MOST_BYTES, _MOST_ELEMENTS = 4 * 2**20, 1 << 14
_FIRST = 16  # elements of the first chunks, while nothing is known about them
_SECONDS = 0.1  # that a chunk should take: little is lost by a kill, and settings are soon measured


class Sizes:
    """How many elements a chunk has: a few megabytes, or a tenth of a second of work."""

    def __init__(self, nbytes: int, *, quick: bool) -> None:
        self.most = _largest(nbytes)
        self.now = self.most if quick else min(_FIRST, self.most)

    def learn(self, read: int, chunk: Chunk) -> None:
        """A chunk of so many elements has been read."""
        if chunk.count:
            self.most = _largest(-(-chunk.nbytes // chunk.count))
        wanted = int(read * _SECONDS / max(chunk.seconds, 1e-6))
        wanted = 1 << max(0, min(wanted, 8 * self.now).bit_length() - 1)
        self.now = max(1, min(wanted, self.most))


def _largest(nbytes: int) -> int:
    return 1 << max(0, min(_MOST_ELEMENTS, _MOST_BYTES // max(1, nbytes)).bit_length() - 1)


class Plan:
    """The rows of each step: which elements it reads. None after the last one."""

    def __init__(self, source: Any, begin: int, end: int, sizes: Sizes) -> None:
        self._source, self._next, self._end, self._sizes = source, begin, end, sizes
        self._spans: dict[int, tuple[int, int]] = {}

    def span(self, step: int) -> tuple[int, int]:
        """The elements of a step: the first one, and the one after the last one."""
        if step not in self._spans:
            end = min(self._next + self._sizes.now, self._end)
            self._spans[step], self._next = (self._next, end), end
            self._spans.pop(step - 1024, None)
        return self._spans[step]

    def __call__(self, step: int) -> Rows | None:
        begin, end = self.span(step)
        if begin >= end:
            return None
        numbers = np.arange(begin, end)
        return routed_at(self._source, numbers).replaced(draw=numbers)


@dataclasses.dataclass(eq=False)
class _Stage:
    """Stands in a pipeline where a BatchTransform would."""

    batch_size: int
    packs: Packs

    @property
    def _label(self) -> str:
        return self.packs.label


@pytree_dataclass
class _Packing(Batching):
    """Elements become chunks; what a step gives is the summary of its chunk."""

    on_host: ClassVar[bool] = True

    stage: Any = static_field()
    spec: Spec = static_field()
    lanes: tuple[int, ...] = static_field()
    remainder: Remainder = static_field()

    def over(self, traits: Traits) -> Traits:
        return super().over(traits).but(host=True)

    def collect(self, spec: Spec, filler: Any) -> Any:
        del spec, filler
        return self.stage.packs


class Reading:
    """What is read, and by whom; `chunks` reads it."""

    def __init__(self, source: Any, options: Options, owner: str) -> None:
        self.source, self._options, self._owner = source, options, owner
        self.by_python = source.traits.by_python
        self.length = None if source.traits.unknown_length else len(source)
        self.skipped = 0
        self.layout = self._layout()
        if not self.layout.columns:
            raise PipelineError(f"{owner}: elements have no values; there is nothing to write.")

    def _layout(self) -> Layout:
        source = self.source
        if not self.by_python:
            zeros = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), source.element_spec())
            return layout_of(zeros)
        try:
            layout = layout_of(source._sample())
        except PipelineError as error:
            raise PipelineError(f"{self._owner}: {error}") from None
        columns, structure = list(layout.columns), layout.structure
        for at, form in enumerate(columns):
            if form.kind == "array" and form.shape[:1] == (0,):  # an empty list has no dtype
                wanted = lambda e, at=at: np.size(structure.flatten_up_to(e)[at]) > 0  # noqa: E731
                found = first_element(source, wanted)
                columns[at] = form if found is None else layout_of(found).columns[at]
        return Layout(structure, tuple(columns), layout.nbytes)

    # The state of an iterator, which the manifest keeps

    def bookmark(self, position: int) -> str | None:
        """The state of the iterator at or before a position, as text; None if it has none."""
        iterators = self.source._iterators
        found = None if iterators is None else iterators.bookmark_at((0, 0), 0, position)
        return None if found is None else base64.b64encode(np.asarray(found).tobytes()).decode()

    def adopt(self, bookmark: str | None) -> None:
        """Goes on from a saved state, if it is one."""
        if bookmark is not None and self.source._iterators is not None:
            found = np.frombuffer(base64.b64decode(bookmark), np.uint8)
            self.source._iterators.adopt(found)

    # Reading

    def chunks(self, begin: int, folder: str) -> Generator[tuple[int, Chunk]]:
        """The elements from number `begin` on: each chunk, and the number after its last element.

        Worker processes write chunks to the folder.
        """
        sizes = Sizes(self.layout.nbytes, quick=self.source.traits.quick or not self.by_python)
        read = self._packed if self.by_python else self._computed
        yield from read(begin, folder, sizes)

    def _steps(self, plan: Plan, source: Any, service: Any) -> Generator[tuple[int, int, Any]]:
        """Each step: its first element, the one after its last, and its fetched rows."""
        end = len(self.source)
        if service is None:
            track: Any = InlineTrack(lambda rows: rows, plan, ReadContext())
        else:
            track = service.track_of(without_service(source), plan)
        try:
            track.start()
            step = 0
            while plan.span(step)[0] < end:
                first, last = plan.span(step)
                yield first, last, track.take(step)
                step += 1
        finally:
            track.close()
            if service is not None:
                self.skipped = service.skipped
                service.close()

    def _packing(self, folder: str, size: int) -> tuple[Any, Handover]:
        """The pipeline that gives chunks, and where they arrive."""
        handover = Handover(folder)
        stage = _Stage(size, Packs(self._owner, self.layout, handover))
        spec = Spec(jax.ShapeDtypeStruct((SUMMARY,), np.uint32))
        return attach(self.source, _Packing(stage, spec, (), "pad")), handover

    def some(self, numbers: np.ndarray) -> Chunk:
        """A few elements, read by this thread; only what Python makes."""
        source, handover = self._packing("", len(numbers))
        policy = self._options.policy(lambda error: None)
        with use_read_context(ReadContext(policy)):
            source._fetch(routed_at(source, numbers).replaced(draw=numbers))
        return handover.take(int(numbers[0]))

    def _packed(self, begin: int, folder: str, sizes: Sizes) -> Generator[tuple[int, Chunk]]:
        source, handover = self._packing(folder, sizes.most)
        plan = Plan(source, begin, len(self.source), sizes)
        iterators = self.source._iterators
        for first, last, _ in self._steps(plan, source, ReadService(source, self._options)):
            chunk = handover.take(first)
            sizes.learn(last - first, chunk)
            ended = iterators and iterators.end_of((0, 0), 0)
            yield last if ended is None else min(last, ended), chunk
            if ended is not None and last >= ended:
                return

    def _computed(self, begin: int, folder: str, sizes: Sizes) -> Generator[tuple[int, Chunk]]:
        del folder
        source, known = self.source, set[int]()
        plan = Plan(source, begin, len(source), sizes)
        service = ReadService(source, self._options) if source.traits.host else None
        for first, last, rows in self._steps(plan, source, service):
            began = time.perf_counter()
            rows = rows.replaced(draw=None)
            values, mask = read_fetched_elements(source, rows, known)
            columns = self._columns(values, None if mask is None else np.asarray(mask))
            count = last - first if mask is None else int(np.count_nonzero(mask))
            chunk = Chunk([Part(count, columns)], time.perf_counter() - began)
            sizes.learn(last - first, chunk)
            yield last, chunk

    def _columns(self, values: Any, mask: Any) -> list[Packed]:
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(values)]
        leaves = leaves if mask is None else [leaf[mask] for leaf in leaves]
        found = []
        for leaf, form in zip(leaves, self.layout.columns, strict=True):
            whole = leaf.reshape(-1, *form.row) if leaf.size else leaf[:0]
            found.append(Packed(leaf, None) if form.fixed else Packed(whole, form.shape[0]))
        return found
