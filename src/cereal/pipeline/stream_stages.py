"""Stages over streams: each stage is a source around another source.

Streams have no list of stages. Each source calls the one below as often as it needs: batching many
times, un-batching sometimes not at all. Each may put the state of the one below into its own state.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import cached_property
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from ..base.pytree import pytree_dataclass, static_field
from ..base.spec import Spec
from ..order.threefry import STAGE, threefry
from ..order.words64 import plus
from .check_stage import as_built
from .execute import many_steps, run, run_many
from .source import Mask, Source
from .state import key_words
from .traits import Traits

T_co = TypeVar("T_co", covariant=True)


class CompiledStream(Source[T_co]):
    """A stream that defines `_step`; `next` compiles it."""

    @abstractmethod
    def _step(self, state: Any) -> tuple[T_co, Mask, Any]: ...

    def _step_many(self, state: Any, n: int) -> tuple[T_co, Mask, Any]:
        return many_steps(self, state, n)

    def next(self, state: Any) -> tuple[T_co, Mask, Any]:
        return run(self, state)

    def next_many(self, state: Any, n: int) -> tuple[T_co, Mask, Any]:
        return run_many(self, state, n)


class StreamWrapper(CompiledStream[T_co]):
    """A stream around the stream `source`. `spec` is the spec of its own elements."""

    source: Any
    spec: Spec

    def element_spec(self) -> Any:
        return self.spec.tree

    def close(self) -> None:
        self.source.close()

    @property
    def steps_per_epoch(self) -> int:  # type: ignore[override]
        return self.source.steps_per_epoch

    def _describe(self) -> Traits:
        return self.source.traits

    @cached_property
    def _spec(self) -> Spec:
        return self.spec

    @property
    def _upstream(self) -> Source[Any]:
        return self.source


@pytree_dataclass
class StreamState:
    """The state of a random stage over a stream: a key, and how many keys it has used."""

    source: Any
    key: jax.Array
    count: jax.Array


@pytree_dataclass
class StreamStage(StreamWrapper[T_co]):
    """A stage over a stream."""

    source: Any
    stage: Any
    spec: Spec = static_field()

    @property
    def _label(self) -> str:
        return self.stage._label

    def _describe(self) -> Traits:
        before = self.source.traits
        mask_shape = self.stage.mask_shape(before.mask_shape, self.spec)
        return before.over(self.stage.traits).but(mask_shape=mask_shape)

    def init_state(self, key: Any) -> Any:
        inner = self.source.init_state(key)
        if not self.stage.traits.random:
            return inner
        words = jnp.asarray(key_words(key))
        depth = jnp.uint32(self.source.traits.random_stages)
        own = jnp.stack(threefry((words[0], words[1]), (depth, STAGE)))
        return StreamState(inner, own, jnp.zeros(2, jnp.uint32))

    def _step(self, state: Any) -> tuple[T_co, Mask, Any]:
        lanes = self.traits.lanes
        values, mask, inner = self.source._step(self._below(state))
        keys, after = self._drawn(state, inner, lanes)
        values, mask = self.stage.apply(values, mask, keys, lanes)
        return as_built(self.stage, values, self.spec, 0), mask, after

    def _step_many(self, state: Any, n: int) -> tuple[T_co, Mask, Any]:
        if self.stage.traits.callbacks:  # once per step, in order
            return many_steps(self, state, n)
        lanes = self.traits.lanes
        values, mask, inner = self.source._step_many(self._below(state), n)
        keys, after = self._drawn(state, inner, (n, *lanes))

        def apply(values: Any, mask: Any, keys: Any) -> tuple[Any, Any]:
            return self.stage.apply(values, mask, keys, lanes)

        values, mask = jax.vmap(apply)(values, mask, keys)
        return as_built(self.stage, values, self.spec, 1), mask, after

    def _below(self, state: Any) -> Any:
        return state.source if self.stage.traits.random else state

    def _drawn(self, state: Any, inner: Any, lanes: tuple[int, ...]) -> tuple[Any, Any]:
        """A key per lane (None if the stage is not random), and the state after the step."""
        if not self.stage.traits.random:
            return None, inner
        keys, count = _draw(state, lanes)
        return keys, StreamState(inner, state.key, count)


def _draw(state: StreamState, lanes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """A key per lane, and the counter after them."""
    size = math.prod(lanes)
    high, low = plus(state.count[0], state.count[1], jnp.arange(size, dtype=jnp.uint32))
    words = jnp.stack(threefry((state.key[0], state.key[1]), (high, low)), axis=-1)
    keys = jax.random.wrap_key_data(words.reshape(*lanes, 2), impl="threefry2x32")
    return keys, jnp.stack(plus(state.count[0], state.count[1], jnp.uint32(size)))
