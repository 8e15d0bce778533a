"""Iterators over batches, in Python loops.

PositionalIterator   reads ahead; its state is arithmetic on how many batches were handed out
StreamIterator       one step at a time, in order; its state is the one that step returned
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..core.execute import place, run_next
from ..core.position import starts, steps_left
from ..core.positional import Positional
from ..core.source import Mask, Source
from ..core.state import PipelineState, check_state, host_words, make_words
from ..core.unseen import raise_unseen
from ..monitor.progress import progress_bar
from .read_ahead import LEAST_CALLS, batches_per_call, read_many

T = TypeVar("T")

# A batch that takes longer than this is not made faster by asking for many in one call.
_WORTH_READING_AHEAD = 1e-3


class BatchIterator(Iterator[tuple[T, Mask]], Generic[T]):
    """Gives `(batch, mask)`; its `state` is exact after every batch and can be set.

    >>> import cereal
    >>> loader = cereal.DataLoader([cereal.RangeSource(10), cereal.BatchTransform(4)])
    >>> batches = loader.iterate(loader.init_state(0))
    >>> batch, mask = next(batches)
    >>> batches.state
    PipelineState(key=(0, 0), epoch=0, offset=4)
    """

    _left: int | None  # batches to hand out; None: no end
    _bar: Any

    def __iter__(self) -> BatchIterator[T]:
        return self

    @abstractmethod
    def __next__(self) -> tuple[T, Mask]: ...

    def _end_if_done(self) -> None:
        """Before a batch is made: ends the iteration if there is none left."""
        raise_unseen()
        if self._left is not None and self._left <= 0:
            self._bar.close()
            self.close()
            raise StopIteration

    def _count_one(self) -> None:
        """A batch is handed out; one whose callback raised is not."""
        if self._left is not None:
            self._left -= 1
        self._bar.update()

    def close(self) -> None:
        """Ends reading ahead; leaving the iterator alone does the same."""

    def __enter__(self) -> BatchIterator[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __length_hint__(self) -> int:
        return 0 if self._left is None else self._left

    @property
    @abstractmethod
    def state(self) -> Any:
        """The state after the last batch handed out; a copy, so that it may be donated."""

    @state.setter
    @abstractmethod
    def state(self, state: Any) -> None: ...


class PositionalIterator(BatchIterator[T]):
    """Iterates an indexed pipeline, reading ahead."""

    def __init__(
        self,
        source: Positional[T],
        state: PipelineState,
        steps: int | None,
        epochs: int | None,
        progress: bool | str,
    ) -> None:
        self._source, self._steps, self._epochs = source, steps, epochs
        self._arithmetic = source.plan.arithmetic
        self._full_mask = _full_mask(source.lanes, source.placement)
        self._start(state)
        self._left = steps if steps is not None else self._to_the_end()
        self._plan_calls()
        self._bar = progress_bar(progress, self._left)

    def _start(self, state: PipelineState) -> None:
        check_state(state, self._source.fingerprint)
        key0, key1, epoch, offset = host_words(state)
        self._key, self._origin = (key0, key1), (epoch, offset)
        # Of the next batch to be asked for; our own copy, so that the state may be donated.
        self._words = jnp.asarray(make_words(self._key, epoch, offset))
        self._handed = self._issued = 0
        self._ready: deque[tuple[Any, Any]] = deque()

    def _plan_calls(self) -> None:
        """Decides how many batches a call makes: many if there are many to come.

        With user functions it is one, until a batch was seen to be cheap.
        """
        self._many = batches_per_call(self._source)
        if self._left is not None and self._left < LEAST_CALLS * self._many:
            self._many = 1
        self._count = self._many if self._source.light else 1

    def _to_the_end(self) -> int | None:
        if self._epochs is None:
            return None
        return steps_left(self._origin[1], self._epochs, **self._arithmetic)

    def __next__(self) -> tuple[T, Mask]:
        self._end_if_done()
        ready = self._ready
        if not ready:
            self._issue()
        pair = ready.popleft()
        self._count_one()
        self._handed += 1
        if len(ready) <= self._count >> 1:
            self._issue()
        return self._with_living_mask(pair)

    def _with_living_mask(self, pair: tuple[T, Mask]) -> tuple[T, Mask]:
        if pair[1].is_deleted():  # full batches share their mask, and it was donated
            self._full_mask = _full_mask(self._source.lanes, self._source.placement)
            return pair[0], self._full_mask
        return pair

    def _issue(self) -> None:
        """Starts making the next batches; JAX returns before they are made."""
        if self._left is None:
            count = self._count
        else:
            left = self._left - len(self._ready)
            if left <= 0:
                return
            # Batches past the end are made in vain: better than many single calls, up to a half.
            count = self._count if left * 2 > self._count else 1
        begin = time.perf_counter()
        pairs, self._words = read_many(self._source, self._words, count)
        if self._issued == 1 and self._count < self._many:  # the first call may have compiled
            jax.block_until_ready(pairs)
            cheap = time.perf_counter() - begin < _WORTH_READING_AHEAD
            self._count = self._many if cheap else 1
        if not self._source.masks:
            masks = [self._mask_of(step) for step in range(self._issued, self._issued + count)]
            pairs = [(pair[0], mask) for pair, mask in zip(pairs, masks, strict=True)]
        self._ready.extend(pairs)
        self._issued += count

    def _position(self, step: int) -> tuple[int, int]:
        epoch, offset = starts(np, *self._origin, step, **self._arithmetic)
        return int(epoch), int(offset)

    def _mask_of(self, step: int) -> Mask:
        if self._arithmetic["remainder"] != "pad":
            return self._full_mask
        real = self._source.length - self._position(step)[1]
        if real >= self._source.plan.batch:
            return self._full_mask
        lanes = np.arange(self._source.plan.batch) < real
        return _put(lanes.reshape(self._source.lanes), self._source.placement)

    @property
    def state(self) -> PipelineState:
        words = make_words(self._key, *self._position(self._handed))
        return PipelineState(jnp.asarray(words), self._source.fingerprint)

    @state.setter
    def state(self, state: PipelineState) -> None:
        self._start(state)
        if self._steps is None:
            self._left = self._to_the_end()
        self._plan_calls()


class StreamIterator(BatchIterator[T]):
    """Iterates a pipeline that must run once per batch, in order."""

    def __init__(
        self,
        source: Source[T],
        state: Any,
        steps: int | None,
        epochs: int | None,
        progress: bool | str,
    ) -> None:
        self._source, self._steps, self._epochs = source, steps, epochs
        self._state = jax.tree.map(jnp.copy, state)
        self._left = steps if steps is not None else self._to_the_end()
        self._bar = progress_bar(progress, self._left)

    def _to_the_end(self) -> int | None:
        if self._epochs is None:
            return None
        if isinstance(self._source, Positional):
            offset = host_words(self._state)[3]
            return steps_left(offset, self._epochs, **self._source.plan.arithmetic)
        return self._epochs * self._source.steps_per_epoch

    def __next__(self) -> tuple[T, Mask]:
        self._end_if_done()
        batch, mask, self._state = run_next(self._source, self._state)
        self._count_one()
        return batch, mask

    @property
    def state(self) -> Any:
        return jax.tree.map(jnp.copy, self._state)

    @state.setter
    def state(self, state: Any) -> None:
        if isinstance(self._source, Positional):
            check_state(state, self._source.fingerprint)
        self._state = jax.tree.map(jnp.copy, state)
        if self._steps is None and isinstance(self._source, Positional):
            self._left = self._to_the_end()


def _full_mask(lanes: tuple[int, ...], placement: Any) -> Mask:
    """One array of True for all batches that are full; a new one if a user donated it."""
    mask = _kept_full_mask(lanes, placement)
    if mask.is_deleted():
        _kept_full_mask.cache_clear()
        mask = _kept_full_mask(lanes, placement)
    return mask


@lru_cache(maxsize=64)
def _kept_full_mask(lanes: tuple[int, ...], placement: Any) -> Mask:
    return _put(np.ones(lanes, np.bool_), placement)


def _put(mask: np.ndarray, placement: Any) -> Mask:
    array = jnp.array(mask)
    return array if placement is None else place(array, placement)
