"""Rows: which elements a step reads.

    state  --rows_for-->  key, epoch per lane, index per lane, validity per lane
                          --read-->  the batch and its mask

A lane is one place in a batch. Rows say all about their elements: a random stage draws the random
numbers of an element from (key, epoch, index). So they are the same before and after batching.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..base.errors import PipelineError
from ..base.pytree import register_pytree_dataclass
from ..reading.rows import KEY_TYPE as KEY_TYPE
from ..reading.rows import Rows as Rows
from .ordering import Order, Sequential
from .permutation import MAX_HOST, MAX_TRACED
from .position import Remainder, epochs_touched, starts, steps_in

register_pytree_dataclass(Rows)


def rows_at(indices: Any) -> Rows:
    """Rows of these indices, for sources whose elements do not depend on a key or an epoch."""
    indices = jnp.asarray(indices, jnp.int32)
    zeros = jnp.zeros(indices.shape, jnp.uint32)
    return Rows(jnp.zeros(2, jnp.uint32), zeros, indices, None)


def host_rows_at(indices: np.ndarray, key: Any = None, epoch: int = 0) -> Rows:
    """The same in NumPy."""
    key, indices = np.zeros(2, np.uint32) if key is None else key, indices.astype(np.int64)
    rows = Rows(key, np.full(indices.shape, epoch, np.uint32), indices, None)
    return with_high(rows) if indices.size and indices.max() > MAX_TRACED else rows


def with_high(rows: Rows) -> Rows:
    """Rows with 64-bit indices, for programs: the upper 32 bits go into `high`."""
    return rows.replaced(high=(rows.index >> 32).astype(np.uint32))


def whole_index(rows: Rows) -> Rows:
    """Rows from a program, with 64-bit indices made from their two words."""
    low, high = rows.index.astype(np.uint32).astype(np.int64), rows.high.astype(np.int64)
    return rows.replaced(index=(high << 32) | low)


def routed_at(source: Any, indices: np.ndarray, key: Any = None, epoch: int = 0) -> Rows:
    """Routed rows of these indices of a source, in NumPy, with the dtypes that programs give them.

    NumPy computes them with 64 bits; under `jax_enable_x64` a stage would see 64-bit indices.
    """
    rows = host_rows_at(indices, key, epoch)
    routed = source._route(rows).replaced(key=rows.key)
    return routed if source.traits.length > MAX_TRACED else routed.map(narrow)


def narrow(x: Any) -> Any:
    """An index as int32, as compiled code has it; NumPy and `jax_enable_x64` make it int64."""
    return x.astype(np.int32) if x.dtype == np.int64 else x


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of every batch: the part number `index` of `count` equal parts.

        a batch of 10 in 4 parts      0 1 2 | 3 4 5 | 6 7 8 | 9 _ _

    Batches of batches are divided along their last axis.
    """

    index: int
    count: int
    size: int  # of the whole batch along that axis

    def numbers(self, lanes: tuple[int, ...]) -> np.ndarray:
        """The numbers of the lanes of this part, [*lanes]; padding has too large ones."""
        own = self.index * lanes[-1] + np.arange(lanes[-1])
        above = np.arange(math.prod(lanes[:-1])).reshape(-1, 1) * self.size
        whole = math.prod(lanes[:-1]) * self.size
        return np.where(own < self.size, above + own, whole).reshape(lanes)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Which elements each step of an indexed pipeline reads: its order, length and batch size."""

    order: Order
    length: int
    lanes: tuple[int, ...]
    remainder: Remainder
    part: Part | None = None  # `lanes` are those of this part of a batch

    @property
    def batch(self) -> int:
        """Elements that one step takes, in all parts together."""
        if self.part is None:
            return math.prod(self.lanes)
        return math.prod(self.lanes[:-1]) * self.part.size

    def ending(self, remainder: Remainder | None) -> Plan:
        """The same walk with another rule for the end of an epoch; None: the same rule."""
        return self if remainder is None else dataclasses.replace(self, remainder=remainder)

    @property
    def wide(self) -> bool:
        """Whether positions have more than 31 bits. Then NumPy computes them, not a program."""
        return self.length > MAX_TRACED

    @property
    def steps(self) -> int:
        """Steps in an epoch that starts at its beginning."""
        return steps_in(self.length, self.batch, self.remainder)

    @property
    def arithmetic(self) -> dict[str, Any]:
        return {"n": self.length, "batch": self.batch, "remainder": self.remainder}

    def rows_for(self, words: Any, steps: int, lanes: Any = None) -> tuple[Rows, Any]:
        """The rows of the next `steps` steps, [steps, *lanes], and the state's words after them.

        If the words are NumPy arrays, NumPy computes the result, with the same values. `lanes` are
        the numbers of those lanes of a step that are wanted, in any shape; None: all. If batches
        are padded, lanes after the last one are padding.
        """
        xp = np if isinstance(words, np.ndarray) else jnp
        if self.wide and xp is jnp:
            return self._rows_without_end(words, steps)
        epoch, offset, wide = _read_words(xp, words)
        step = xp.arange(steps + 1, dtype=wide)
        epochs, offsets = starts(xp, epoch, offset, step, **self.arithmetic)
        if lanes is None and self.part is not None:
            lanes = self.part.numbers(self.lanes)
        lane = xp.arange(self.batch, dtype=wide)[None, :]
        shape, real = self.lanes, None
        if lanes is not None:
            shape, lane = lanes.shape, lanes.reshape(1, -1).astype(wide)
            real = lane < self.batch
            lane = xp.where(real, lane, xp.zeros_like(lane))
        position = offsets[:-1, None] + lane
        lane_epoch = xp.broadcast_to(epochs[:-1, None], position.shape)
        valid = position < self.length if self.remainder == "pad" else None
        valid = valid if valid is None or real is None else valid & real
        if self.remainder == "wrap" and self.batch > 1:
            lane_epoch = lane_epoch + position // self.length
        if self.remainder != "drop":  # padding repeats the epoch's first elements
            position = position % self.length
        touched = epochs_touched(steps, **self.arithmetic)
        visit = self.order.visit(
            (words[0], words[1]),
            (epochs[0] + xp.arange(touched, dtype=wide)).astype(xp.uint32),
            lane_epoch - epochs[0],
            position,
            self.length,
        )
        epoch = lane_epoch if visit.epoch is None else visit.epoch
        index = _as_index(xp, visit.index)
        rows = Rows(words[:2], epoch.astype(xp.uint32), index, valid, visit.draw, high=visit.again)
        rows = with_high(rows) if self.wide else rows
        return rows.reshape(steps, *shape), _write_words(xp, words, epochs[-1], offsets[-1])

    def _rows_without_end(self, words: Any, steps: int) -> tuple[Rows, Any]:
        """`rows_for` in a program, for sequential data so long that no epoch ends.

        The offset has two words, and only an addition is needed.
        """
        if self.length < MAX_HOST or not isinstance(self.order, Sequential):
            raise PipelineError(
                f"a pipeline over {self.length} elements cannot be part of a compiled program, "
                f"which counts to {MAX_TRACED}; outside of `jit`, write `for batch, mask in "
                f"loader.iterate(state):`, `loader.next_batch(state)` or `loader.scan_epoch(...)` "
                f"(without `feedback`)."
            )
        whole = np.arange(self.batch)
        numbers = whole if self.part is None else self.part.numbers(self.lanes).reshape(-1)
        lane = np.arange(steps)[:, None] * self.batch + np.minimum(numbers, self.batch - 1)
        low, high = _added(words, lane.reshape(-1))
        epoch = jnp.broadcast_to(words[2], low.shape)
        real = np.tile(numbers < self.batch, steps)
        valid = jnp.asarray(real) if self.remainder == "pad" else None
        rows = Rows(words[:2], epoch, low.astype(jnp.int32), valid, high=high)
        low, high = _added(words, np.array(steps * self.batch))
        after = jnp.stack([words[0], words[1], words[2], high, low])
        return rows.reshape(steps, *self.lanes), after


def _added(words: Any, count: np.ndarray) -> tuple[Any, Any]:
    """The offset in the words and so many elements more: its lower and its upper word."""
    low = words[4] + jnp.asarray(count, jnp.uint32)
    return low, words[3] + (low < words[4]).astype(jnp.uint32)


def _read_words(xp: Any, words: Any) -> tuple[Any, Any, Any]:
    if xp is jnp:
        return words[2], words[4], jnp.uint32
    return np.int64(words[2]), np.int64((int(words[3]) << 32) | int(words[4])), np.int64


def _write_words(xp: Any, words: Any, epoch: Any, offset: Any) -> Any:
    if xp is jnp:
        return jnp.stack([words[0], words[1], epoch, words[3], offset])
    low, high = int(offset) & 0xFFFF_FFFF, int(offset) >> 32
    return np.array([words[0], words[1], int(epoch) & 0xFFFF_FFFF, high, low], np.uint32)


def _as_index(xp: Any, index: Any) -> Any:
    return index.astype(jnp.int32) if xp is jnp else np.asarray(index, np.int64)
