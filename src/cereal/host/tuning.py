"""Who reads the steps of a track: what a track asks, and what it tells."""

from __future__ import annotations

from typing import Any


class Tuning:
    """Who reads the steps of a track, and how many are read ahead; told what that takes."""

    remote: Any = None  # reads steps in processes; None: threads read
    caller = False  # whether the caller reads, without threads
    cheaply = True  # whether the caller may read steps that are read quickly

    def __init__(self, prefetch: int) -> None:
        self.prefetch = prefetch

    def read(self, computed: float, wall: float, rows: Any) -> None:
        """A thread has read these rows: its seconds of CPU and of wall time."""

    def taken(self, waited: float, since_last: float, elements: int) -> None:
        """The caller has taken a step: how long it waited, and the time since the last one."""
