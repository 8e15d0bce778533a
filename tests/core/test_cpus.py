"""How many CPUs there are for this process."""

from __future__ import annotations

import os

import pytest

from cereal.core.cpus import usable_cpus


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no such call")
def test_cpus_that_the_process_may_not_use_do_not_count() -> None:
    allowed = os.sched_getaffinity(0)
    assert usable_cpus() == len(allowed)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert usable_cpus() == 1
    finally:
        os.sched_setaffinity(0, allowed)
