"""A sum tree: draws items in proportion to their priorities, and follows changes of them exactly.

    level 2   [ 16 sums ]                                         one row
    level 1   [ 16 sums ] [ 16 sums ] ...                         a row for each sum above
    level 0   [ 16 priorities ] [ 16 priorities ] ...             a row for each sum above

A sum is always computed from the sixteen numbers below it, never by adding a difference. So it does
not drift, however often priorities change, and is 0 if, and only if, all numbers below it are 0.

A draw walks from the top to an item, with a random word of its own on each level. (One float for
the whole way has 24 bits: of 10^7 equal items, a sixth would never be drawn.) On each level, the
sixteen numbers become shares of 2^30. These are integers, whose running sums are exact. So an item
with priority 0 is never drawn, and each other item can be.

The levels lie in one array, `nodes[rows, 16]`: 4.3 bytes an item.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ....device.platforms import by_platform
from ....order.words64 import high_word
from .ring import zeros_of

WIDTH = 16
LARGEST, SMALLEST = 1e25, 1e-25  # of priorities other than 0; sums and shares stay within float32
_SHARES = np.float32(1 << 30)


def rows_of_levels(n: int) -> list[int]:
    """How many rows each level of a tree of n items has, beginning with the items."""
    rows = [-(-n // WIDTH)]
    while rows[-1] > 1:
        rows.append(-(-rows[-1] // WIDTH))
    return rows


def empty_tree(n: int) -> jax.Array:
    """The nodes of a tree of n items whose priorities are 0."""
    return zeros_of(jnp.float32, sum(rows_of_levels(n)), WIDTH)


def total(nodes: jax.Array) -> jax.Array:
    """The sum of all priorities."""
    return _sum16(nodes[-1])


def priority_of(nodes: jax.Array, items: jax.Array) -> jax.Array:
    """The priorities of items."""
    row, place = _placed(items)
    return nodes.at[row, place].get(mode="promise_in_bounds")


def set_priority(nodes: jax.Array, n: int, items: jax.Array, priority: Any, real: Any) -> jax.Array:
    """Sets the priorities of items [k], those that are `real`.

    If an item is there several times, it gets the largest of its priorities: so the result does not
    depend on the order in which a device writes.
    """
    items = jnp.where(real, items, 0)
    row, place = _placed(items)
    outside = jnp.int32(nodes.shape[0])
    target = jnp.where(real, row, outside)
    nodes = nodes.at[target, place].set(np.float32(0), mode="drop")
    nodes = nodes.at[target, place].max(priority, mode="drop")
    return _sum_above(nodes, n, row)


def set_run(nodes: jax.Array, n: int, start: Any, priority: jax.Array, real: Any) -> jax.Array:
    """Sets the priorities of items in a row, from `start` on; after the last item comes the first.

    The rows above a run of items are a run as well: for 256 items these are 19 rows, not 256.
    """
    count = priority.shape[0]
    items = (start + jnp.arange(count, dtype=jnp.int32)) % n
    row, place = _placed(items)
    outside = nodes.shape[0] + jnp.arange(count, dtype=jnp.int32)
    target = jnp.where(real, row, outside)
    nodes = nodes.at[target, place].set(priority, mode="drop", unique_indices=True)
    rows = rows_of_levels(n)[0]
    # A run that goes on from the end at the beginning has two parts, each with a row at either end.
    touched = min(rows, count // WIDTH + 3)
    return _sum_above(nodes, n, (start // WIDTH + jnp.arange(touched, dtype=jnp.int32)) % rows)


def _sum_above(nodes: jax.Array, n: int, row: jax.Array) -> jax.Array:
    """Computes the sums above these rows of items again, level by level."""
    rows = rows_of_levels(n)
    begins = jnp.asarray(np.cumsum([0, *rows]), jnp.int32)

    def up(level: jax.Array, found: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        nodes, row = found
        made = _sum16(nodes.at[begins[level] + row].get(mode="promise_in_bounds"))
        row, place = _placed(row)
        above = begins[level + 1] + row
        return nodes.at[above, place].set(made, mode="promise_in_bounds"), row

    return _level_by_level(len(rows) - 1, up, (nodes, row))[0]


def draw(nodes: jax.Array, n: int, words: jax.Array) -> jax.Array:
    """Draws items [k] in proportion to their priorities; `words` is random, [levels, k].

    If all priorities are 0, the items that it gives mean nothing, but they exist.
    """
    return draw_known(nodes, n, words)[0]


def draw_known(nodes: jax.Array, n: int, words: jax.Array) -> tuple[jax.Array, ...]:
    """Draws items, and gives what it read on its way: their priorities, and the sum of all, [k].

    It is a loop, and gives all three, because XLA does not merge a loop with those who use its
    results. If the walk were written out, each array that is gathered by these items would walk
    again, for each of its numbers. And if others read the tree, XLA would not know that they do so
    before new priorities are set: it would copy the tree in each step.
    """
    rows = rows_of_levels(n)[::-1]
    begins = jnp.asarray(nodes.shape[0] - np.cumsum(rows), jnp.int32)

    def down(level: jax.Array, found: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        item, _, whole = found
        below = nodes.at[begins[level] + item].get(mode="promise_in_bounds")
        sums = _sum16(below)
        place = _draw16(below, sums, words[level])
        priority = jnp.take_along_axis(below, place[:, None], 1, mode="promise_in_bounds")[:, 0]
        return item * WIDTH + place, priority, jnp.where(level == 0, sums, whole)

    zero = jnp.zeros(words.shape[1:], jnp.float32)
    start = (jnp.zeros(words.shape[1:], jnp.int32), zero, zero)
    item, priority, whole = _level_by_level(len(rows), down, start)
    return jnp.minimum(item, n - 1), priority, whole


def _draw16(priority: jax.Array, sums: jax.Array, word: jax.Array) -> jax.Array:
    """Which of sixteen; [k, 16], their sums [k] and random words [k] -> [k]."""
    scale = _SHARES / jnp.maximum(sums, np.float32(SMALLEST))
    some = (priority > 0).astype(jnp.uint32)
    shares = (priority * scale[..., None]).astype(jnp.uint32) + some
    ends = [shares[..., 0]]
    for place in range(1, WIDTH):
        ends.append(ends[-1] + shares[..., place])
    at = high_word(word, ends[-1])
    # (If all are 0, so is `at`, and all sixteen would count.)
    return jnp.minimum(sum((each <= at).astype(jnp.int32) for each in ends), WIDTH - 1)


def _level_by_level(levels: int, step: Any, found: Any) -> Any:
    """`found = step(level, found)` for each level, as a loop; on a GPU, whose loops are slow (0.14
    instead of 0.06 ms for a batch of 256), written out, with a barrier after each level."""

    def as_loop(found: Any) -> Any:
        return lax.fori_loop(0, levels, step, found)

    def written_out(found: Any) -> Any:
        for level in range(levels):
            found = lax.optimization_barrier(step(level, found))
        return found

    return by_platform(found, cpu=as_loop, default=written_out)


def _placed(items: jax.Array) -> tuple[jax.Array, jax.Array]:
    return items // WIDTH, items % WIDTH


def _sum16(x: jax.Array) -> jax.Array:
    """The sum over the last axis, of length 16: always in the same order, as pairs of pairs."""
    parts = [x[..., place] for place in range(WIDTH)]  # (twice as fast as slices with a stride)
    while len(parts) > 1:
        parts = [a + b for a, b in zip(parts[0::2], parts[1::2], strict=True)]
    return parts[0]
