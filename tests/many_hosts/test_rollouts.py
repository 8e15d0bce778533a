"""Rollouts and replay buffers in real processes of `jax.distributed`, over one mesh."""

from __future__ import annotations

import pytest
from tests.many_hosts.launch import launch


@pytest.mark.slow
@pytest.mark.parametrize("explicit", [False, True], ids=["auto", "explicit"])
@pytest.mark.parametrize("stages", ["segments", "buffer"])
def test_batches_are_those_of_one_process(stages: str, explicit: bool) -> None:
    job = "tests.many_hosts.rl_jobs:all_alike"
    found = launch(job, 2, 2, stages=stages, explicit=explicit)
    assert found == [{"devices": [4, 4, 4, 4]}] * 2
