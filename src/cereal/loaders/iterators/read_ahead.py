"""Several batches from one compiled call.

To call a compiled program costs 20 to 70 µs; a batch of small images costs less than that. Since a
batch is a function of its position, one call can make the next sixteen batches, and the next call
can start before they are used up.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
from jax import lax

from ...base.capture import resolve
from ...base.spec import Spec
from ...device.placement import is_spread, place, place_step
from ...order.rows import Rows
from ...pipeline.positional import Positional
from ...pipeline.read_step import read_step, rows_of_steps

MOST_BYTES = 64 * 2**20
# A program for many batches takes a fraction of a second longer to compile, so there must be enough
# calls of it.
LEAST_CALLS = 8


@partial(jax.jit, static_argnames="count")
def _read_many(source: Positional[Any], words: Any, count: int) -> tuple[list[Any], Any]:
    rows, words = rows_of_steps(source, source._plan, words, count)

    def read(rows: Rows) -> tuple[Any, Any]:
        return read_step(source, rows)

    placement = source.traits.placement
    if is_spread(placement):
        words = place(words, placement.everywhere)
    if source.traits.light:
        return [read(rows[k]) for k in range(count)], words

    # In a loop, user functions are compiled once; unrolled, they would be compiled `count` times.
    def one(_: None, lanes: Rows) -> tuple[None, Any]:
        return None, read(lanes.replaced(key=rows.key))

    _, stacked = lax.scan(one, None, rows.without_key)
    pairs: list[Any] = [jax.tree.map(lambda x, k=k: x[k], stacked) for k in range(count)]
    if is_spread(placement):
        pairs = [place_step(batch, mask, placement) for batch, mask in pairs]
    return pairs, words


def read_many(source: Positional[Any], words: Any, count: int) -> tuple[list[Any], Any]:
    """The next `count` (batch, mask) pairs, and the state's words after them.

    Every batch has its own mask, so that the user can donate both. The words stay on the device: to
    send them there at every call would cost more than the call itself.
    """
    source = resolve(source)
    made, words = _read_many(source, words, count)
    placement = source.traits.placement
    if placement is not None and not is_spread(placement):
        made = [place(pair, placement) for pair in made]
    return made, words


def batches_per_call(source: Positional[Any]) -> int:
    """How many batches one call makes: limited by memory, with few beyond the end of an epoch."""
    # On a GPU a call costs more; and without user functions, programs compile quickly.
    batches = 32 if source.traits.light and jax.default_backend() != "cpu" else 16
    size = Spec(source.element_spec()).nbytes
    steps = source.steps_per_epoch
    most = max(1, min(batches, steps, MOST_BYTES // max(size, 1)))
    return min(range(most, most // 2, -1), key=lambda count: -steps % count)
