"""An interrupt at any call of Python loses no buffer, and no batch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tests.rl.replay.streams import KEY, numbered, replaying, same

from cereal.rl import set_priorities


def interrupted(action: Callable[[], Any], at: int) -> bool:
    """Runs it, with an interrupt at this call of a Python function; whether there was one."""
    calls, before = 0, sys.getprofile()

    def watch(frame: Any, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event == "call"
        if event == "call" and calls == at:
            raise KeyboardInterrupt

    sys.setprofile(watch)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(before)
    return False


@pytest.mark.parametrize("kind", ["next", "feed_back"])
def test_an_interrupt_loses_nothing(kind: str) -> None:
    loader = replaying(numbered(40), 30, sample="prioritized", batch_size=4, prefill=4, collect=4)
    priority = jnp.asarray([1.0, 2.0, 3.0, 4.0])

    def change(batches: Any, batch: Any) -> None:
        batches.feed_back(set_priorities, batch["index"], priority)

    batches = loader.iterate(loader.init_state(KEY), steps=10_000)
    batch: Any = None
    for _ in range(3):
        batch, _ = next(batches)
        change(batches, batch)
    state, action = batches.state, lambda: change(batches, batch)
    wanted = next(loader.iterate(state))
    again = loader.iterate(state)
    change(again, batch)
    changed, at = again.state, 1
    if kind == "next":
        while interrupted(lambda: next(batches), at):
            assert same(next(batches), wanted)
            batches.state = state
            at += 1
    else:
        while interrupted(action, at):
            assert same(batches.state, state) or same(batches.state, changed)
            at += 1
    assert at > 20
    assert np.isfinite(np.asarray(batches.state.nodes)).all()
