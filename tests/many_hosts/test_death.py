"""A process that dies in the middle of an epoch: the others fail soon, and a restart is exact."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from tests.many_hosts.launch import launch, started

JOBS = "tests.many_hosts.jobs:"
FAILS_WITHIN = 60


@pytest.mark.slow
def test_a_process_dies_and_the_job_goes_on_with_fewer(tmp_path: Path) -> None:
    log, state = tmp_path / "log", tmp_path / "state.json"
    given = {"log": str(log), "state": str(state), "steps": 40}
    patience = {"heartbeat_timeout_seconds": 10}
    with started(JOBS + "training", 4, 1, **given, pause=0.2, distributed=patience) as job:
        _wait_for_lines(log, 12)
        os.kill(job.processes[2].pid, signal.SIGKILL)
        begin = time.monotonic()
        codes = job.wait(FAILS_WITHIN + 5)
        took = time.monotonic() - begin
    assert took < FAILS_WITHIN
    assert all(codes), codes  # nobody says that all is well
    before = len(log.read_text().splitlines())
    assert 12 <= before < 40
    launch(JOBS + "training", 2, 1, **given, pause=0)
    launch(JOBS + "training", 1, 2, log=str(tmp_path / "whole"), state=None, steps=40, pause=0)
    wanted = _batches(tmp_path / "whole")
    assert len(wanted) == 40
    assert _batches(log) == wanted  # those after the last saved state were given again, equal


def _wait_for_lines(path: Path, count: int) -> None:
    end = time.monotonic() + 120
    while not path.exists() or len(path.read_text().splitlines()) < count:
        assert time.monotonic() < end
        time.sleep(0.1)


def _batches(path: Path) -> dict[int, str]:
    """The digest of every step; a step that was run twice must have given the same batch."""
    found: dict[int, str] = {}
    for line in path.read_text().splitlines():
        step, digest = json.loads(line)
        assert found.setdefault(step, digest) == digest
    return found
