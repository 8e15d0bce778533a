"""Several batches from one compiled call.

A compiled call costs 20 to 70 µs before it does anything; a batch of small images costs less. Since
a batch is a function of its position, one call can make the next sixteen, and the call after it
can be on its way before they are used.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ...base.capture import resolve
from ...base.spec import Spec
from ...order.rows import Rows
from ...pipeline.execute import place
from ...pipeline.positional import Positional

MOST_BYTES = 64 * 2**20
# Compiling a program for many batches takes a fraction of a second more: it must pay.
LEAST_CALLS = 8


@partial(jax.jit, static_argnames="count")
def _read_many(source: Positional[Any], words: Any, count: int) -> tuple[list[Any], Any]:
    rows, words = source._plan.rows_for(words, count)
    rows = source._route(rows)

    def read(rows: Rows) -> tuple[Any, Any]:
        values, mask = source._read(rows)
        return values, jnp.ones(source.traits.lanes, jnp.bool_) if mask is None else mask

    if source.traits.light:
        return [read(rows[k]) for k in range(count)], words

    # User functions are compiled once, in a loop, not `count` times.
    def one(_: None, lanes: Rows) -> tuple[None, Any]:
        return None, read(lanes.replaced(key=rows.key))

    _, stacked = lax.scan(one, None, rows.without_key)
    return [jax.tree.map(lambda x, k=k: x[k], stacked) for k in range(count)], words


def read_many(source: Positional[Any], words: Any, count: int) -> tuple[list[Any], Any]:
    """The next `count` (batch, mask) pairs, and the state's words after them.

    Every batch has a mask of its own, which may be donated with it. The words stay on the device:
    sending them there with every call would cost more than the call.
    """
    source = resolve(source)
    made, words = _read_many(source, words, count)
    if source.traits.placement is not None:
        made = [place(pair, source.traits.placement) for pair in made]
    return made, words


def batches_per_call(source: Positional[Any]) -> int:
    """How many batches one call may make: bounded in memory, and few past the end of an epoch."""
    # A GPU's calls cost more, and without user functions its programs compile quickly.
    batches = 32 if source.traits.light and jax.default_backend() != "cpu" else 16
    size = Spec(source.element_spec()).nbytes
    steps = source.steps_per_epoch
    most = max(1, min(batches, steps, MOST_BYTES // max(size, 1)))
    return min(range(most, most // 2, -1), key=lambda count: -steps % count)
