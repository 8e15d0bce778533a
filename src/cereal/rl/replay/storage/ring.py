"""Where items are stored: a ring, or a reservoir.

    written 7 items, capacity 5      slot    0   1   2   3   4
    ring                             item    5   6   2   3   4       head = 2, the next slot
                                     age     2   1   5   4   3       1 is the newest item

An *item* is what is drawn: one element, or one step of one environment. Items are numbered in the
order of writing: with E environments, step t of environment e is item `t * E + e`, and the item
that follows it in its environment has the number + E. A batch names items by these numbers, of
which it has the lower 32 bits; the age of an item is how many numbers have been given since. So
whether an item was overwritten, and which slot it has, follow from its number; nothing is stored.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ....base.pytree import pytree_dataclass
from ....base.spec import Spec
from ....order.words64 import high_word, plus
from .host_memory import empty_on_host, is_on_host, write_on_host
from .table import Table, empty_table

MOST_ITEMS = 1 << 30  # slots are 32-bit numbers
_SHORT = 1 << 12  # of masks
NO_AGE = 1 << 31  # more than any capacity: the age of what is no item, or of one long gone


@pytree_dataclass
class Ring:
    """Items in slots."""

    table: Table
    head: jax.Array  # the slot of the next item
    count: jax.Array  # how many slots are in use
    written: jax.Array  # how many items were written in all: two words

    @property
    def capacity(self) -> int:
        return self.table.capacity

    @property
    def item(self) -> Spec:
        return self.table.item

    @property
    def data(self) -> Any:
        """The items of all slots: a tree of arrays [capacity, ...]."""
        return self.table.tree

    @property
    def last_number(self) -> jax.Array:
        """The number that the next item gets: its lower 32 bits."""
        return self.written[1]

    def take(self, slots: jax.Array) -> Any:
        """The items in slots of any shape."""
        taken = self.table.take(slots.reshape(-1))
        return jax.tree.map(lambda leaf: leaf.reshape(*slots.shape, *leaf.shape[1:]), taken)

    def slot_of_age(self, age: jax.Array) -> jax.Array:
        """The slots of items of these ages, from 1 to `capacity`."""
        slot = self.head - age
        return jnp.where(slot < 0, slot + self.capacity, slot)

    def later(self, slot: jax.Array, items: Any) -> jax.Array:
        """The slots of the items that were written so many items later."""
        return (slot + items) % self.capacity


_full = partial(jax.jit, static_argnums=(0, 1, 2), inline=True)(jnp.full)


def zeros_of(dtype: Any, *shape: int) -> jax.Array:
    """Zeros that a program makes: no array of the host is sent."""
    return _full(shape, 0, np.dtype(dtype))


def empty_ring(spec: Spec, capacity: int, *, on_host: bool = False) -> Ring:
    """A ring for items like `spec`, without items."""
    zeros = (lambda dtype, *shape: empty_on_host(shape, dtype)) if on_host else zeros_of
    table = empty_table(spec, zeros, capacity, apart=on_host)
    return Ring(table, zeros_of(jnp.int32), zeros_of(jnp.int32), zeros_of(jnp.uint32, 2))


def write_ring(ring: Ring, items: Any, real: jax.Array) -> tuple[Ring, jax.Array]:
    """Writes the items [k] that are `real`, in order; also how many these are."""
    capacity = ring.capacity
    before = _counted(ring, real)
    added = before[-1]
    table = _written(ring, items, (ring.head + before - 1) % capacity, real)
    return _advanced(ring, table, added), added


def write_reservoir(
    ring: Ring, items: Any, real: jax.Array, words: jax.Array
) -> tuple[Ring, jax.Array]:
    """Writes items [k] so that, of all items so far, each is kept with the same probability.

    Item number n goes into slot n while there are free slots. Later it is kept with probability
    capacity / (n + 1), and replaces any item, each with the same probability. `words` is random,
    [4, k].
    """
    capacity = ring.capacity
    before = _counted(ring, real).astype(jnp.uint32)
    high, low = plus(ring.written[0], ring.written[1], before)  # n + 1 for each item
    fresh = (high == 0) & (low <= np.uint32(capacity))
    seen = high.astype(jnp.float32) * np.float32(2**32) + low.astype(jnp.float32)
    high_part, low_part = (word.astype(jnp.float32) for word in words[:2])
    chance = high_part * np.float32(2.0**-32) + low_part * np.float32(2.0**-64)
    kept = chance * seen < np.float32(capacity)
    anywhere = below(words[2:], jnp.uint32(capacity)).astype(jnp.int32)
    slots = jnp.where(fresh, low.astype(jnp.int32) - 1, anywhere)
    kept = real & (fresh | kept)
    table = _written(ring, items, slots, kept & _is_last(jnp.where(kept, slots, capacity)))
    added = before[-1].astype(jnp.int32)
    return _advanced(ring, table, added), added


def _counted(ring: Ring, real: jax.Array) -> jax.Array:
    """For each item, how many real ones there are up to it, and with it."""
    if real.shape[0] > _SHORT:
        # A mask is often a constant. For a GPU, XLA would compute the running sums of it while it
        # compiles: 20 seconds for 10^6 items. It does not know that this is always so.
        real &= ring.count >= 0
    return jnp.cumsum(real, dtype=jnp.int32)


def _is_last(slots: jax.Array) -> jax.Array:
    """Whether no later item of the same step takes the same slot."""
    order = jnp.argsort(slots, stable=True)
    ranked = slots[order]
    last = jnp.concatenate([ranked[1:] != ranked[:-1], jnp.ones(1, jnp.bool_)])
    return jnp.zeros_like(last).at[order].set(last, unique_indices=True)


def _written(ring: Ring, items: Any, slots: jax.Array, real: jax.Array) -> Table:
    """The table with those items that are `real` in their slots; these are all different."""
    outside = ring.capacity + jnp.arange(slots.shape[0], dtype=jnp.int32)
    slots = jnp.where(real, slots, outside)

    def put(leaf: Any, item: Any) -> Any:
        if is_on_host(leaf):
            return write_on_host(leaf, item, ring.head)
        return leaf.at[slots].set(item, mode="drop", unique_indices=True)

    return ring.table.changed(put, items)


def _advanced(ring: Ring, table: Table, added: jax.Array) -> Ring:
    capacity = ring.capacity
    written = jnp.stack(plus(ring.written[0], ring.written[1], added.astype(jnp.uint32)))
    count = jnp.minimum(ring.count + added, capacity)
    return Ring(table, (ring.head + added) % capacity, count, written)


def below(words: jax.Array, n: jax.Array) -> jax.Array:
    """Random numbers from 0 to n - 1, from two random words each, [2, k]; n has 32 bits.

    The 64 bits of both are multiplied by n: no number is more probable than another by more than
    2^-32 of its probability.
    """
    n = jnp.asarray(n, jnp.uint32)
    high, _ = plus(high_word(words[0], n), words[0] * n, high_word(words[1], n))
    return high
