"""Rows: which elements a step reads. What flows through an indexed pipeline.

    state  --rows_for-->  key, epoch per lane, index per lane, validity per lane
                          --read-->  the batch and its mask

A lane is one place in a batch. Rows name their elements completely, so that a stage that needs
randomness for an element draws it from (key, epoch, index), before or after batching alike.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .ordering import Order
from .position import Remainder, epochs_touched, starts, steps_in
from .pytree import pytree_dataclass
from .threefry import STAGE, key_for, threefry

KEY_TYPE = "threefry2x32"  # of the keys that random stages get, whatever the user's own are


@pytree_dataclass
class Rows:
    """The elements of one step, or of many; all arrays begin with the axes of its lanes."""

    key: Any  # two words; None where only the lanes travel
    epoch: Any
    index: Any
    valid: Any  # None: all of them
    draw: Any = None  # tells two visits to an element in one epoch apart; None: its index does
    below: Any = None  # what the sources below were found to need, ahead of reading

    @property
    def lanes(self) -> Rows:
        """Everything but the key: what a scan or a vmap goes over."""
        return self.replaced(key=None)

    def replaced(self, **fields: Any) -> Rows:
        get = fields.get  # several times quicker than dataclasses.replace
        return Rows(
            get("key", self.key),
            get("epoch", self.epoch),
            get("index", self.index),
            get("valid", self.valid),
            get("draw", self.draw),
            get("below", self.below),
        )

    def map(self, fn: Callable[[Any], Any]) -> Rows:
        """`fn` over every array but the key."""
        return Rows(
            self.key,
            fn(self.epoch),
            fn(self.index),
            None if self.valid is None else fn(self.valid),
            None if self.draw is None else fn(self.draw),
            None if self.below is None else jax.tree.map(fn, self.below),
        )

    def __getitem__(self, at: Any) -> Rows:
        return self.map(lambda x: x[at])

    def reshape(self, *shape: int) -> Rows:
        axes = self.index.ndim
        return self.map(lambda x: x.reshape((*shape, *x.shape[axes:])))

    def element_words(self, stage: int) -> tuple[Any, Any]:
        """The two words of a random key per lane, for random stage number `stage`."""
        high, low = key_for((self.key[0], self.key[1]), stage, STAGE)
        which = self.index if self.draw is None else self.draw
        return threefry((high, low), (self.epoch, which.astype(np.uint32)))

    def element_keys(self, stage: int) -> jax.Array:
        """One JAX random key per lane, for random stage number `stage`."""
        words = self.element_words(stage)
        return jax.random.wrap_key_data(jnp.stack(words, axis=-1), impl=KEY_TYPE)


def rows_at(indices: Any) -> Rows:
    """Rows of these indices, for sources whose elements need neither a key nor an epoch."""
    indices = jnp.asarray(indices, jnp.int32)
    zeros = jnp.zeros(indices.shape, jnp.uint32)
    return Rows(jnp.zeros(2, jnp.uint32), zeros, indices, None)


def host_rows_at(indices: np.ndarray, key: Any = None, epoch: int = 0) -> Rows:
    """The same in NumPy."""
    key = np.zeros(2, np.uint32) if key is None else key
    return Rows(key, np.full(indices.shape, epoch, np.uint32), indices.astype(np.int64), None)


@dataclasses.dataclass(frozen=True)
class Plan:
    """How an indexed pipeline walks its data: everything about it but the reading."""

    order: Order
    length: int
    lanes: tuple[int, ...]
    remainder: Remainder

    @property
    def batch(self) -> int:
        """Elements that one step takes."""
        return math.prod(self.lanes)

    def ending(self, remainder: Remainder | None) -> Plan:
        """The same walk with another rule for the end of an epoch; None: the same rule."""
        return self if remainder is None else dataclasses.replace(self, remainder=remainder)

    @property
    def steps(self) -> int:
        """Steps in an epoch that starts at its beginning."""
        return steps_in(self.length, self.batch, self.remainder)

    @property
    def arithmetic(self) -> dict[str, Any]:
        return {"n": self.length, "batch": self.batch, "remainder": self.remainder}

    def rows_for(self, words: Any, steps: int) -> tuple[Rows, Any]:
        """The rows of the next `steps` steps, [steps, *lanes], and the state's words after them.

        With NumPy words the answer is NumPy, and the same.
        """
        xp = np if isinstance(words, np.ndarray) else jnp
        epoch, offset, wide = _read_words(xp, words)
        step = xp.arange(steps + 1, dtype=wide)
        epochs, offsets = starts(xp, epoch, offset, step, **self.arithmetic)
        position = offsets[:-1, None] + xp.arange(self.batch, dtype=wide)[None, :]
        lane_epoch = xp.broadcast_to(epochs[:-1, None], position.shape)
        valid = position < self.length if self.remainder == "pad" else None
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
        rows = Rows(words[:2], epoch.astype(xp.uint32), index, valid, visit.draw)
        return rows.reshape(steps, *self.lanes), _write_words(xp, words, epochs[-1], offsets[-1])


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
