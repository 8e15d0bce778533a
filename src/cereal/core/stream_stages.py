"""Stages over streams: sources around a source that carries a state of its own.

These are a tower of sources and not a list: each calls the one below as often as it needs (batching
many times, un-batching sometimes not at all), and each may wrap its state in one of its own.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import cached_property
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from .execute import many_steps, run, run_many
from .promise import as_built
from .pytree import pytree_dataclass, static_field
from .source import Mask, Source
from .spec import Spec
from .state import key_words
from .threefry import STAGE, threefry
from .traits import Traits
from .wide import plus

T_co = TypeVar("T_co", covariant=True)


class CompiledStream(Source[T_co]):
    """A stream that says what a step is as it is traced, and is compiled in `next`."""

    @abstractmethod
    def _step(self, state: Any) -> tuple[T_co, Mask, Any]: ...

    def _step_many(self, state: Any, n: int) -> tuple[T_co, Mask, Any]:
        return many_steps(self, state, n)

    def next(self, state: Any) -> tuple[T_co, Mask, Any]:
        return run(self, state)

    def next_many(self, state: Any, n: int) -> tuple[T_co, Mask, Any]:
        return run_many(self, state, n)


class StreamWrapper(CompiledStream[T_co]):
    """A stream around the stream `source`, whose elements are as `spec` says."""

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
    """A stage over a source that carries a state of its own."""

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
        """A key per lane if the stage is random, and the state after all."""
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
