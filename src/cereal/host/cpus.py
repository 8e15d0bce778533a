"""How many CPUs there are for this process."""

from __future__ import annotations

import os


def usable_cpus() -> int:
    """The CPUs that this process may run on, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
