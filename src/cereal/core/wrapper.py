"""Sources around sources: they hand through what they do not change."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar

from .execute import many_steps, run_many, run_next
from .ordering import Order
from .position import Remainder
from .positional import IndexedSource, Positional
from .rows import Rows
from .source import Mask, Source
from .spec import Spec

T_co = TypeVar("T_co", covariant=True)


class Wrapper(Source[T_co]):
    """A source around `source`, whose elements are as `spec` says."""

    source: Any
    spec: Spec

    @property
    def inner(self) -> Source[Any]:
        return self.source

    @property
    def lanes(self) -> tuple[int, ...]:
        return self.source.lanes

    @property
    def mask_shape(self) -> tuple[int, ...]:
        return self.source.mask_shape

    @property
    def callbacks(self) -> tuple[Any, ...]:
        return self.source.callbacks

    @property
    def light(self) -> bool:
        return self.source.light

    @property
    def placement(self) -> Any:
        return self.source.placement

    def element_spec(self) -> Any:
        return self.spec.tree

    def close(self) -> None:
        self.source.close()


class StreamWrapper(Wrapper[T_co]):
    """A wrapper of a stream: one that says what a step is, and is compiled in `next`."""

    @property
    def steps_per_epoch(self) -> int:  # type: ignore[override]
        return self.source.steps_per_epoch

    @abstractmethod
    def step(self, state: Any) -> tuple[T_co, Mask, Any]:
        """What a step of the stream below becomes; traced."""

    def step_many(self, state: Any, n: int) -> tuple[T_co, Mask, Any]:
        return many_steps(self, state, n)

    def next(self, state: Any) -> tuple[T_co, Mask, Any]:
        return run_next(self, state)

    def next_many(self, state: Any, n: int) -> tuple[T_co, Mask, Any]:
        return run_many(self, state, n)


class PositionalWrapper(Wrapper[T_co], Positional[T_co]):
    """A wrapper of an indexed pipeline, which walks the data in the same way."""

    @property
    def order(self) -> Order:
        return self.source.order

    @property
    def length(self) -> int:
        return self.source.length

    @property
    def remainder(self) -> Remainder:
        return self.source.remainder

    @property
    def walk(self) -> str:
        return self.source.walk

    @property
    def random_stages(self) -> int:
        return self.source.random_stages

    @property
    def masks(self) -> bool:
        return self.source.masks

    @property
    def varies(self) -> bool:
        return self.source.varies

    @property
    def random(self) -> bool:
        return self.source.random or self.random_stages > 0

    @property
    def host(self) -> bool:
        return self.source.host

    @property
    def quick(self) -> bool:
        return self.source.quick

    @property
    def ahead(self) -> int:
        return self.source.ahead

    @property
    def stream(self) -> Any:
        return self.source.stream

    @property
    def bookmark(self) -> Any:
        return self.source.bookmark

    @property
    def masks_on_host(self) -> bool:
        return self.source.masks_on_host

    def route(self, rows: Rows) -> Rows:
        return self.source.route(rows)

    def fetch(self, rows: Rows) -> Rows:
        return self.source.fetch(rows)


class StageWrapper(PositionalWrapper[T_co]):
    """A stage over an indexed pipeline, compiled or on the host."""

    stage: Any

    @property
    def label(self) -> str:
        return self.stage.label

    @property
    def random_stages(self) -> int:
        return self.source.random_stages + self.stage.random

    @property
    def masks(self) -> bool:
        return self.source.masks or self.stage.changes_mask


class IndexedWrapper(StageWrapper[T_co], IndexedSource[T_co]):
    """A stage before batching: an indexed source, with as many elements as the one below."""

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
