"""Which items a batch has, and what it shows of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..n_step import n_step_of_window
from .state import ReplayState
from .storage.ring import NO_AGE, Ring, below
from .storage.sum_tree import draw_known, rows_of_levels
from .storing import DRAW, random_words


class Drawn(NamedTuple):
    """Items that were drawn: their slots, and whether there were enough to draw from.

    And if they have priorities: these, and the sum of all priorities, [k].
    """

    slots: jax.Array
    ready: jax.Array
    priority: Any = None
    total: Any = None


def draw_uniform(state: ReplayState, k: int) -> Drawn:
    """Any k of the items that are whole, each with the same probability."""
    layout, ring = state.layout, state.ring
    words = random_words(state.key, state.batches, DRAW, 2, k)
    if layout.span == layout.period == 1:
        slots = below(words, jnp.maximum(ring.count, 1)).astype(jnp.int32)
        return Drawn(slots, ring.count > 0)
    steps = (ring.count + layout.columns - 1) // layout.columns
    # The newest step that may be drawn was written `first` steps ago, the next ones every `period`.
    first = layout.span + (state.phase - layout.span) % layout.period
    starts = jnp.where(steps >= first, (steps - first) // layout.period + 1, 0)
    # Of the oldest step, some items may be overwritten; they would be the last ones here.
    last = first + (starts - 1) * layout.period
    n = starts * layout.columns - jnp.maximum(last * layout.columns - ring.count, 0)
    n = jnp.where(starts > 0, n, 0)
    which = below(words, jnp.maximum(n, 1)).astype(jnp.int32)
    steps_ago = first + which // layout.columns * layout.period
    age = (steps_ago - 1) * layout.columns + 1 + which % layout.columns
    age = jnp.clip(age, 1, jnp.maximum(ring.count, 1))
    return Drawn(ring.slot_of_age(age), n > 0)


def draw_prioritized(state: ReplayState, k: int) -> Drawn:
    """Any k of the items that are whole, in proportion to their priorities."""
    n = state.layout.capacity
    words = random_words(state.key, state.batches, DRAW, len(rows_of_levels(n)), k)
    slots, priority, total = draw_known(state.nodes, n, words)
    return Drawn(slots, total[0] > 0, priority, total)


def next_in_queue(state: ReplayState, k: int) -> Drawn:
    """The k items that have waited longest."""
    ages = state.waiting - jnp.arange(k, dtype=jnp.int32)
    return Drawn(state.ring.slot_of_age(jnp.maximum(ages, 1)), state.waiting >= k)


def number_of(ring: Ring, slots: jax.Array) -> jax.Array:
    """The numbers of the items in these slots, by which priorities find them again."""
    age = ring.head - slots
    age = jnp.where(age <= 0, age + ring.capacity, age)
    return ring.last_number - age.astype(jnp.uint32)


def no_item(ring: Ring) -> jax.Array:
    """A number that is of no item, and will not be: of a batch that is not real."""
    return ring.last_number - np.uint32(NO_AGE)


def windows(ring: Ring, slots: jax.Array, length: int, columns: int, end: str | None) -> Any:
    """`length` steps from each slot on, [k, length, ...], and which of them are real.

    A window ends with its episode. After that it repeats the last step, which is masked.
    """
    offsets = jnp.arange(length, dtype=jnp.int32)[None]
    real = jnp.ones((slots.shape[0], length), jnp.bool_)
    if end is not None:
        whole = ring.later(slots[:, None], offsets * columns)
        done = ring.take(whole)[end].astype(jnp.bool_).astype(jnp.int32)
        real = jnp.cumsum(done, axis=1, dtype=jnp.int32) == done
        offsets = jnp.minimum(offsets, jnp.sum(real, axis=1, dtype=jnp.int32)[:, None] - 1)
    return ring.take(ring.later(slots[:, None], offsets * columns)), real


def with_n_steps(ring: Ring, slots: jax.Array, n: int, columns: int, gamma: Any) -> dict[str, Any]:
    """The items with the return of n steps, and the state and discount for bootstrapping."""
    whole = ring.later(slots[:, None], jnp.arange(n, dtype=jnp.int32)[None] * columns)
    steps = ring.take(whole)
    done = steps["done"].astype(jnp.bool_)
    info = steps.get("info")
    terminated = info["terminated"] if isinstance(info, dict) and "terminated" in info else done
    returns, last, discount = n_step_of_window(steps["reward"], done, terminated, n, gamma)
    after = ring.take(ring.later(slots, last * columns))["next_state"]
    return {
        **ring.take(slots),
        "n_step_return": returns,
        "bootstrap_state": after,
        "bootstrap_discount": discount,
    }
