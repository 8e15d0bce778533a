"""The sources that stages make.

ElementStage   before batching: the stage sees one element, and is vmapped over the lanes
BatchStage     after batching: the stage sees the batch
StreamStage    over a source that is no function of its position
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp

from .errors import UsageError
from .execute import many_steps
from .promise import as_built
from .pytree import pytree_dataclass, static_field
from .rows import Rows, rows_at
from .source import Mask
from .spec import Spec
from .state import key_words
from .threefry import STAGE, threefry
from .wrapper import IndexedWrapper, StageWrapper, StreamWrapper, Wrapper

if TYPE_CHECKING:
    from .stage import Stage

T_co = TypeVar("T_co", covariant=True)


class _Staged(Wrapper[T_co]):
    """A wrapper that adds what its stage adds."""

    stage: Stage[Any, Any]

    @property
    def label(self) -> str:
        return self.stage.label

    @property
    def mask_shape(self) -> tuple[int, ...]:
        return self.stage.mask_shape(self.source)

    @property
    def callbacks(self) -> tuple[Any, ...]:
        return self.source.callbacks + self.stage.callbacks

    @property
    def light(self) -> bool:
        return self.source.light and self.stage.light

    @property
    def placement(self) -> Any:
        return self.stage.placement or self.source.placement


class _StagedRows(_Staged[T_co], StageWrapper[T_co]):
    """A stage over an indexed pipeline."""

    def _keys(self, rows: Rows) -> Any:
        return rows.element_keys(self.source.random_stages) if self.stage.random else None


@pytree_dataclass
class BatchStage(_StagedRows[T_co]):
    """A stage after batching."""

    source: Any
    stage: Stage[Any, Any]
    spec: Spec = static_field()

    def passes(self, rows: Rows) -> Any:
        return self.source.passes(rows) if self.stage.hands_through else None

    def read(self, rows: Rows) -> tuple[T_co, Any]:
        values, mask = self.source.read(rows)
        seen = jnp.ones(self.lanes, jnp.bool_) if mask is None else mask
        values, changed = self.stage.apply(values, seen, self._keys(rows), self.lanes)
        return as_built(self.stage, values, self.spec, 0), changed if self.masks else mask


@pytree_dataclass
class ElementStage(_StagedRows[T_co], IndexedWrapper[T_co]):
    """A stage before batching: an indexed source of changed elements."""

    source: Any
    stage: Stage[Any, Any]
    spec: Spec = static_field()

    def take(self, indices: jax.Array) -> T_co:
        if self.random_stages:
            raise UsageError(
                f"{self.label} is random: its elements depend on a key and an epoch; read them "
                f"with `next(state)`, or take from the source below it."
            )
        return self.read(rows_at(indices))[0]

    def read(self, rows: Rows) -> tuple[T_co, Any]:
        values, mask = self.source.read(rows)
        seen = jnp.ones(rows.index.shape, jnp.bool_) if mask is None else mask

        def apply(values: Any, mask: Any, keys: Any) -> tuple[Any, Any]:
            return self.stage.apply(values, mask, keys, ())

        axes = rows.index.ndim
        for _ in range(axes):
            apply = jax.vmap(apply, in_axes=(0, 0, 0 if self.stage.random else None))
        values, changed = apply(values, seen, self._keys(rows))
        return as_built(self.stage, values, self.spec, axes), changed if self.masks else mask


@pytree_dataclass
class StreamState:
    """The state of a random stage over a stream: a key, and how many keys it has used."""

    source: Any
    key: jax.Array
    count: jax.Array


@pytree_dataclass
class StreamStage(_Staged[T_co], StreamWrapper[T_co]):
    """A stage over a source that carries a state of its own."""

    source: Any
    stage: Stage[Any, Any]
    spec: Spec = static_field()

    def init_state(self, key: Any) -> Any:
        inner = self.source.init_state(key)
        if not self.stage.random:
            return inner
        words = jnp.asarray(key_words(key))
        own = jnp.stack(threefry((words[0], words[1]), (jnp.uint32(self._depth()), STAGE)))
        return StreamState(inner, own, jnp.zeros(2, jnp.uint32))

    def step(self, state: Any) -> tuple[T_co, Mask, Any]:
        values, mask, inner = self.source.step(self._below(state))
        keys, after = self._drawn(state, inner, self.lanes)
        values, mask = self.stage.apply(values, mask, keys, self.lanes)
        return as_built(self.stage, values, self.spec, 0), mask, after

    def step_many(self, state: Any, n: int) -> tuple[T_co, Mask, Any]:
        if self.stage.callbacks:  # once per step, in order
            return many_steps(self, state, n)
        values, mask, inner = self.source.step_many(self._below(state), n)
        keys, after = self._drawn(state, inner, (n, *self.lanes))

        def apply(values: Any, mask: Any, keys: Any) -> tuple[Any, Any]:
            return self.stage.apply(values, mask, keys, self.lanes)

        values, mask = jax.vmap(apply)(values, mask, keys)
        return as_built(self.stage, values, self.spec, 1), mask, after

    def _below(self, state: Any) -> Any:
        return state.source if self.stage.random else state

    def _drawn(self, state: Any, inner: Any, lanes: tuple[int, ...]) -> tuple[Any, Any]:
        """A key per lane if the stage is random, and the state after all."""
        if not self.stage.random:
            return None, inner
        keys, count = _draw(state, lanes)
        return keys, StreamState(inner, state.key, count)

    def _depth(self) -> int:
        """Random stages below this one."""
        depth, source = 0, self.source
        while source is not None:
            depth += isinstance(source, StreamStage) and source.stage.random
            source = source.inner
        return depth


def _draw(state: StreamState, lanes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """A key per lane, and the counter after them."""
    size = math.prod(lanes)
    low = state.count[1] + jnp.arange(size, dtype=jnp.uint32)
    high = state.count[0] + (low < state.count[1]).astype(jnp.uint32)
    words = jnp.stack(threefry((state.key[0], state.key[1]), (high, low)), axis=-1)
    keys = jax.random.wrap_key_data(words.reshape(*lanes, 2), impl="threefry2x32")
    after = state.count[1] + jnp.uint32(size)
    carried = state.count[0] + (after < state.count[1]).astype(jnp.uint32)
    return keys, jnp.stack([carried, after])
