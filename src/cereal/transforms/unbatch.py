"""From batches back to elements."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..base.errors import PipelineError
from ..base.pytree import pytree_dataclass, static_field
from ..base.spec import Spec
from ..order.ordering import Order
from ..order.rows import Rows
from ..pipeline.pipeline import Pipeline, before_last, root_of
from ..pipeline.placed import Batching
from ..pipeline.positional import IndexedSource, Positional
from ..pipeline.source import Mask, Source, check_source
from ..pipeline.stage import Transform
from ..pipeline.stream_stages import StreamWrapper
from ..pipeline.traits import Traits
from ..sources.combined.over_members import OverMembers
from ..sources.combined.routed import check_part

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@pytree_dataclass
class UnbatchTransform(Transform[Any, Any]):
    """Splits the first axis: batches become elements again, or an array becomes its rows.

        BatchTransform(4)   [0 1 2 3] [4 5 6 7]   ->   0 1 2 3 4 5 6 7
        elements [8, 28, 28] of a source          ->   elements [28, 28], 8 times as many

    Over an indexed source without batches, the result is indexed. After batching, it is a stream:
    the stages between have worked on whole batches, so the state carries the batch whose elements
    are being handed out. Each element keeps its mask, and an epoch consists of whole batches.

    >>> import cereal
    >>> pairs = cereal.BatchTransform(2)(cereal.RangeSource(6))
    >>> swapped = cereal.MapTransform(lambda pair: pair[::-1])(pairs)
    >>> [int(x) for x, mask in cereal.DataLoader([swapped, cereal.UnbatchTransform()]).iterate()]
    [1, 0, 3, 2, 5, 4]
    """

    def __call__(self, source: Source[T]) -> Source[T]:
        check_source(source, self._label)
        traits = source.traits
        if _just_batched(source):
            return before_last(source)  # nothing happened to the batches
        if traits.callbacks != root_of(source).traits.callbacks:
            raise PipelineError(
                "UnbatchTransform comes after a HostCallbackTransform, which runs once per batch "
                "that is handed out; put the callback at the end."
            )
        if isinstance(traits.placement, jax.sharding.Sharding):
            raise PipelineError(
                "UnbatchTransform comes after a DevicePutTransform with a sharding, which lays out "
                "batches; put the DevicePutTransform at the end."
            )
        leaves = jax.tree.leaves(source.element_spec())
        sizes = {leaf.shape[0] if leaf.shape else None for leaf in leaves}
        if len(sizes) != 1 or None in sizes or 0 in sizes:
            raise PipelineError(
                f"UnbatchTransform needs values with one first axis, got "
                f"{Spec(source.element_spec())}; take the others out with a MapTransform first."
            )
        inside = Spec(
            jax.tree.map(
                lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), source.element_spec()
            )
        )
        if isinstance(source, IndexedSource):
            check_part(source, "UnbatchTransform", "the source")
            n = len(source) * leaves[0].shape[0]
            return Unstacked(source, source._order.over(n, "UnbatchTransform"), inside)
        if traits.lanes and leaves[0].shape[0] != traits.lanes[0]:
            raise PipelineError(
                f"UnbatchTransform: a batch has {traits.lanes[0]} elements, but a stage made "
                f"{leaves[0].shape[0]} of them; masks and positions would not belong to values."
            )
        if not traits.lanes:
            raise PipelineError(
                "UnbatchTransform over a stream of elements: batch it first, or take elements "
                "apart with a MapTransform."
            )
        return UnbatchedStream(source, inside)


def _just_batched(source: Any) -> bool:
    """Whether the last stage is a plain batching that wraps at the end of an epoch."""
    if not isinstance(source, Pipeline) or source.traits.remainder != "wrap":
        return False
    return type(source.stages[-1]) is Batching


@pytree_dataclass
class Unstacked(OverMembers[T_co]):
    """A source whose elements are the rows of another source's elements."""

    source: Any
    ordering: Order
    spec: Spec = static_field(default=None)

    @property
    def size(self) -> int:
        return jax.tree.leaves(self.source.element_spec())[0].shape[0]

    def __len__(self) -> int:
        return len(self.source) * self.size

    def element_spec(self) -> Any:
        return self.spec.tree

    @property
    def _upstream(self) -> Source[Any]:
        return self.source

    @property
    def _label(self) -> str:
        return "UnbatchTransform"

    @property
    def _members(self) -> tuple[Any, ...]:
        return (self.source,)

    def _describe(self) -> Traits:
        known = {**self._merged(), "light": False, "by_python": False, "windows": False}
        known["mask_shape"] = known["mask_shape"][1:]
        return self._describe_as(path=("unstacked {}", self.source.traits.path), **known)

    def _route(self, rows: Rows) -> Rows:
        outer = rows.replaced(index=rows.index // rows.index.dtype.type(self.size))
        return rows.replaced(below=self.source._route(outer).without_key)

    def _fetch(self, rows: Rows) -> Rows:
        below = self.source._fetch(rows.below.replaced(key=rows.key))
        return rows.replaced(below=below.without_key)

    def _read(self, rows: Rows) -> tuple[T_co, Any]:
        if rows.index.ndim == 0:
            values, mask = self._read(rows.reshape(1))
            return jax.tree.map(lambda x: x[0], values), None if mask is None else mask[0]
        rows = self._route(rows) if rows.below is None else rows
        values, mask = self.source._read(rows.below.replaced(key=rows.key))
        which = rows.index % np.int32(self.size)
        if self.source.traits.mask_shape:  # one of its own for each row of an element
            values = (values, mask)
        found = jax.vmap(lambda value, k: jax.tree.map(lambda x: x[k], value))(values, which)
        return found if self.source.traits.mask_shape else (found, mask)


@pytree_dataclass
class UnbatchedState:
    """The state of an un-batched stream: the batch being handed out, and the next lane of it."""

    source: Any
    values: Any
    mask: Any
    lane: jax.Array


@pytree_dataclass
class UnbatchedStream(StreamWrapper[T_co]):
    """Batches handed out element by element."""

    source: Any
    spec: Spec = static_field()

    @property
    def _label(self) -> str:
        return "UnbatchTransform"

    def _describe(self) -> Traits:
        below = self.source.traits
        shuffled = isinstance(self.source, Positional) and self.source._order.random
        return Traits(
            lanes=below.lanes[1:],
            mask_shape=below.mask_shape[1:],
            callbacks=below.callbacks,
            light=below.light,
            placement=below.placement,
            # (All of a buffer's batch is masked at first. Batched again, a part of it may be.)
            masks=below.masks or below.remainder == "pad" or below.in_place,
            envs=below.envs,
            drawn=below.drawn or shuffled,
            in_place=below.in_place,
            pinned=below.pinned,
            random=below.random,
            random_stages=below.random_stages,
            windows=below.windows,
        )

    @property
    def steps_per_epoch(self) -> int:  # type: ignore[override]
        return self.source.steps_per_epoch * self.source.traits.lanes[0]

    def init_state(self, key: Any) -> UnbatchedState:
        def empty(spec: Any) -> Any:
            return jnp.zeros(spec.shape, spec.dtype)

        values = jax.tree.map(empty, self.source.element_spec())
        mask = jnp.zeros(self.source.traits.mask_shape, jnp.bool_)
        return UnbatchedState(self.source.init_state(key), values, mask, jnp.int32(0))

    def _step(self, state: UnbatchedState) -> tuple[T_co, Mask, UnbatchedState]:
        def another(state: UnbatchedState) -> UnbatchedState:
            values, mask, inner = self.source._step(state.source)
            return UnbatchedState(inner, values, mask, state.lane)

        state = jax.lax.cond(state.lane == 0, another, lambda state: state, state)
        at = state.lane
        value = jax.tree.map(lambda x: x[at], state.values)
        lane = (at + 1) % jnp.int32(self.source.traits.lanes[0])
        return value, state.mask[at], UnbatchedState(state.source, state.values, state.mask, lane)
