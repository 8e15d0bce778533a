"""Rows: which elements a step reads. A plain class here; `order/rows.py` makes it a pytree."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from .threefry import AGAIN, STAGE, key_for, threefry

KEY_TYPE = "threefry2x32"  # the type of keys that random stages get, whatever key the user has


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """The elements of one step, or of many; the first axes of all arrays are the lanes."""

    key: Any  # two words; None in `without_key`
    epoch: Any
    index: Any
    valid: Any  # False for padding; None: all are valid
    draw: Any = None  # differs between two visits to one element in an epoch; None: use the index
    below: Any = None  # for the sources below: what was computed or read for them already
    high: Any = None  # the index's upper 32 bits, or how often it came before; None: 0

    @property
    def without_key(self) -> Rows:
        """Everything but the key: the arrays that a scan or a vmap iterates over."""
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
            get("high", self.high),
        )

    def map(self, fn: Callable[[Any], Any]) -> Rows:
        """`fn` over every array but the key."""
        return Rows(
            self.key,
            fn(self.epoch),
            fn(self.index),
            None if self.valid is None else fn(self.valid),
            None if self.draw is None else fn(self.draw),
            None if self.below is None else _mapped(fn, self.below),
            None if self.high is None else fn(self.high),
        )

    def __getitem__(self, at: Any) -> Rows:
        return self.map(lambda x: x[at])

    def steps(self, n: int) -> list[Rows]:
        """The rows of each of n steps, which are the first axis."""
        below = self.below
        if below is None or isinstance(below, np.ndarray | Rows | tuple):
            return [self[at] for at in range(n)]
        import jax

        leaves, structure = jax.tree.flatten(below)  # once, and not for every step
        light = self.replaced(below=None)
        return [
            light[at].replaced(below=structure.unflatten([leaf[at] for leaf in leaves]))
            for at in range(n)
        ]

    def reshape(self, *shape: int) -> Rows:
        axes = self.index.ndim
        return self.map(lambda x: x.reshape((*shape, *x.shape[axes:])))

    def element_words(self, stage: int) -> tuple[Any, Any]:
        """The two words of a random key per lane, for random stage number `stage`."""
        key = key_for((self.key[0], self.key[1]), stage, STAGE)
        which = self.index if self.draw is None else self.draw
        words = threefry(key, (self.epoch, which.astype(np.uint32)))
        if self.high is None:
            return words
        where = _where(self.high)
        again = threefry(key_for(key, 0, AGAIN), (words[0] + self.high, words[1]))
        first, second = (where(self.high == 0, a, b) for a, b in zip(words, again, strict=True))
        return first, second

    def again(self, number: Any, count: int) -> Rows:
        """The rows with a `number` below `count`, for elements that may come several times.

        The number goes into `high`, so that each time has its own random numbers.
        """
        number = number.astype(np.uint32)
        return self.replaced(
            high=number if self.high is None else self.high * np.uint32(count) + number
        )

    def element_keys(self, stage: int) -> Any:
        """One JAX random key per lane, for random stage number `stage`."""
        import jax
        import jax.numpy as jnp

        words = self.element_words(stage)
        return jax.random.wrap_key_data(jnp.stack(words, axis=-1), impl=KEY_TYPE)

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.key, self.epoch, self.index, self.valid, self.draw, self.below, self.high)
        return Rows, fields


def _mapped(fn: Callable[[Any], Any], below: Any) -> Any:
    """`fn` over every array of what the rows below hold."""
    if below is None or isinstance(below, np.ndarray):
        return None if below is None else fn(below)
    if isinstance(below, Rows):
        return below.map(fn) if below.key is None else below.map(fn).replaced(key=fn(below.key))
    if isinstance(below, tuple):
        return tuple([_mapped(fn, each) for each in below])
    import jax

    return jax.tree.map(fn, below)


def _where(like: Any) -> Any:
    if isinstance(like, np.ndarray):
        return np.where
    import jax.numpy as jnp

    return jnp.where
