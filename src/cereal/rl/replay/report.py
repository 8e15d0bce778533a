"""What the buffer of a loader's state holds, in numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...base.errors import UsageError
from .state import ReplayState, find_all_buffers


class ReplayReport(NamedTuple):
    """What a buffer holds, and what it left out; `replay_report` makes it.

        items         how many are stored now
        capacity      how many can be stored
        written       how many were stored in all
        overwritten   new priorities that came too late: their items had been overwritten
        refused       new priorities that were negative, NaN, infinite or too large
        not_filled    calls of `fill_replay` in `jit` that stored nothing, since they would have
                      joined steps of different episodes

    Each is a Python integer.
    """

    items: int
    capacity: int
    written: int
    overwritten: int
    refused: int
    not_filled: int


def replay_report(state: Any) -> ReplayReport:
    """What the buffer in a state holds, as a `ReplayReport`; waits for the state.

        print(cereal.rl.replay_report(state))
        ReplayReport(items=10000, capacity=10000, written=25600, overwritten=3, refused=0, ...)

    With several buffers, or states of `jax.vmap`, their sums.
    """
    buffers = find_all_buffers(state)
    if not buffers:
        raise UsageError("`replay_report`: this state has no buffer.")
    return ReplayReport(*(sum(each) for each in zip(*map(_report, buffers), strict=True)))


def _report(state: ReplayState) -> tuple[int, ...]:
    def summed(name: str) -> int:
        return int(state.counted(name).astype(np.int64).sum())

    high, low = state.counted("written").reshape(-1, 2).astype(object).sum(axis=0)
    seeds = state.counted("count").size
    written, capacity = int(high * 2**32 + low), state.layout.capacity * seeds
    left_out = [summed(name) for name in ("overwritten", "refused", "not_filled")]
    return summed("count"), capacity, written, *left_out
