"""A scan over a pipeline with a host part: chunks of batches, read ahead by workers.

    workers   read chunk 1   read chunk 2     read chunk 3
    device                   scan chunk 1     scan chunk 2     one compiled program a chunk

There are no callbacks, and the batches are the same as in `iterate`. JAX returns before a chunk has
run, so the next chunk is sent to the device meanwhile; at most two chunks wait to run.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from ...base.spec import Spec
from ...device.placement import put_words
from ...device.transfer import sent, to_device, to_host
from ...order.position import Remainder
from ...pipeline.execute import moved, stripped
from ...pipeline.state import PipelineState
from ...pipeline.walk import Walk
from ..iterators.read_ahead import MOST_BYTES
from .epoch_scan import chunk_steps, joined

MOST_STEPS = 16


def scan_host(
    source: Any,
    state: PipelineState,
    carry: Any,
    program: Callable[[Any, Any, Any], tuple[Any, Any]],
    steps: int,
    remainder: Remainder | None = None,
    done: Callable[[int], Any] = lambda steps: None,
) -> tuple[Any, Any, Any]:
    """Runs `program(source, rows, carry)` over the rows of the next `steps` steps.

    `done(n)` is called after each chunk of n steps.
    """
    size = Spec(source.element_spec()).nbytes
    chunk = chunk_steps(steps, max(1, min(MOST_STEPS, MOST_BYTES // max(size, 1))))
    whole, rest = divmod(steps, chunk)
    walk = Walk.starting(source._plan.ending(remainder), state.words)
    if source._iterators is not None:
        source._iterators.adopt(state.bookmark)
    light, pieces, running = stripped(source), [], deque()
    share, placement = source._share, source.traits.placement
    given = sent if share is None else partial(_spread, source)
    light = light if share is None else placement.replicated(light)
    # The smaller chunk, if any, comes first: it is read sooner, and others are read meanwhile.
    plan = ((0, 1, rest), (rest, whole, chunk))
    with contextlib.ExitStack() as tracks:
        opened = []
        for begin, count, each in plan:
            if count and each:
                track = _track(source, to_device(walk.words_at(begin)), count, each, remainder)
                tracks.callback(track.close)
                track.start()
                opened.append((track, count, each))
        for track, count, each in opened:
            for number in range(count):
                carry, outputs = program(light, given(track.take(number)), carry)
                done(each)
                pieces.append(outputs)
                running.append((carry, outputs))
                if len(running) > 2:
                    jax.block_until_ready(running.popleft())
    if not pieces:
        rows, _ = source._plan.rows_for(to_host(state.words), 1, source._lanes_here)
        rows = jax.tree.map(lambda x: x[:0], source._fetch(source._route(rows)))
        carry, outputs = program(light, given(rows), carry)
        pieces.append(outputs)
    words = put_words(walk.words_at(steps), placement)
    return moved(source, state, words), carry, joined(pieces)


def _spread(source: Any, rows: Any) -> Any:
    """Fetched rows of several steps as global arrays, of which this process has read its part."""
    found = source._untouched(rows)
    batch = None if found is None else found.values
    return source._share.rows(rows, 1, batch, source._kept)


def _track(source: Any, words: Any, count: int, each: int, remainder: Remainder | None) -> Any:
    """A track that reads `count` chunks of `each` steps ahead."""
    service = source.service
    return service.track(
        source,
        words,
        count,
        remainder=remainder,
        steps_at_once=each,
    )
