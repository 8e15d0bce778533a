"""New items go into a buffer."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...base.pytree import set_copy
from ...device.transfer import sent
from ...order.threefry import REPLAY, key_for, threefry
from ...pipeline.source import Source
from ...pipeline.state import key_words
from .state import ReplayState
from .storage.ring import write_reservoir, write_ring
from .storage.sum_tree import set_run

WRITE, DRAW = range(2)  # what the random words of a step are for


def store(state: ReplayState, items: Any, real: jax.Array) -> ReplayState:
    """The state with the items [k] that are `real`; k is at most the capacity."""
    layout = state.layout
    if layout.write == "reservoir":
        words = random_words(state.key, state.ring.written, WRITE, 4, real.shape[0])
        ring, added = write_reservoir(state.ring, items, real, words)
    else:
        ring, added = write_ring(state.ring, items, real)
    phase = (state.phase + added // layout.columns) % layout.period
    waiting = state.waiting + added if layout.sample == "queue" else state.waiting
    state = state.but(ring=ring, phase=phase, waiting=waiting)
    return state if state.nodes is None else _with_priorities(state, real.shape[0], added)


def _with_priorities(state: ReplayState, most: int, added: jax.Array) -> ReplayState:
    """Gives priorities after `added` items (at most `most`) were written.

    ages, newest first    1 ... behind | behind + 1 ... behind + added | older
    priority              0, not whole | the largest so far            | as it is
    """
    layout, ring = state.layout, state.ring
    count = layout.behind + most
    ages = jnp.arange(count, 0, -1, dtype=jnp.int32)
    whole = are_whole(state, ages)
    priority = jnp.where(whole, state.largest, np.float32(0))
    new = ages <= layout.behind + added
    start = ring.slot_of_age(jnp.int32(count))
    return set_copy(state, nodes=set_run(state.nodes, layout.capacity, start, priority, new))


def are_whole(state: ReplayState, ages: jax.Array) -> jax.Array:
    """Whether items of these ages (1 is the newest) may be drawn: all of their steps are stored."""
    layout = state.layout
    whole = (ages > layout.behind) & (ages <= state.ring.count)
    if layout.period > 1:
        steps_ago = (ages + layout.columns - 1) // layout.columns
        whole &= (state.phase - steps_ago) % layout.period == 0
    return whole


def buffer_key(key: Any, source: Source[Any]) -> jax.Array:
    """The two words from which all random words of a buffer over this source follow."""
    return _key_of(sent(key_words(key)), source.traits.random_stages)


@partial(jax.jit, static_argnums=1)
def _key_of(words: jax.Array, number: int) -> jax.Array:
    return jnp.stack(key_for((words[0], words[1]), number, REPLAY))


def random_words(key: jax.Array, number: jax.Array, purpose: int, rows: int, k: int) -> jax.Array:
    """Random words [rows, k] for a purpose, and a number of 64 bits that does not come again."""
    high, low = number[0], number[1]
    own = threefry((key[0], key[1]), (low, (high << 1) | np.uint32(purpose)))
    half = (rows * k + 1) // 2
    both = threefry(own, (jnp.zeros(half, jnp.uint32), jnp.arange(half, dtype=jnp.uint32)))
    return jnp.concatenate(both)[: rows * k].reshape(rows, k)
