"""A training that is killed in the middle of a checkpoint goes on from the last whole one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.loaders import training

pytestmark = pytest.mark.usefixtures("orbax_threads_end")
ROOT = Path(__file__).parents[2]
STEPS, BATCH = 16, 4  # more than an epoch


def program(
    folder: Path, *arguments: object, stdout: Any = subprocess.PIPE
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.loaders.training", str(folder), *map(str, arguments)],
        cwd=ROOT,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )


def lines_of(process: subprocess.Popen[str], ends_with: int = 0) -> list[str]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == ends_with, err
    return out.splitlines()


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the training prints if nobody kills it."""
    return list(training.train(tmp_path_factory.mktemp("straight"), STEPS, BATCH, workers=0))


def finished(folder: Path) -> set[int]:
    return {int(path.name) for path in folder.iterdir() if path.name.isdigit()}


@pytest.mark.slow  # processes
@pytest.mark.parametrize("how", ["between", "late"])
def test_killed_between_the_two_writes_it_goes_on_from_the_step_before(
    how: str, straight: list[str], tmp_path: Path
) -> None:
    killed = lines_of(program(tmp_path, STEPS, BATCH, 2, how, 8), -signal.SIGKILL)
    assert killed == straight[: max(9, len(killed))]  # it trains on while it saves
    [unfinished] = [path for path in tmp_path.iterdir() if not path.name.isdigit()]
    assert unfinished.name.startswith("8.")
    assert list(unfinished.glob("model*/_METADATA"))
    assert bool(list(unfinished.glob("data*/metadata"))) == (how == "late")
    assert finished(tmp_path) == {2, 5}
    again = list(training.train(tmp_path, STEPS, BATCH, workers=1))
    assert again == straight[6:]


def printed_until_killed(folder: Path, log: Path, seconds: float) -> list[str]:
    """The whole lines of a training that is killed some time after its first one."""
    with log.open("w") as file:
        process = program(folder, STEPS, BATCH, 2, "never", -1, stdout=file)
        while not log.stat().st_size and process.poll() is None:
            time.sleep(0.001)
        time.sleep(seconds)
        process.kill()
        _, err = process.communicate(timeout=300)
    assert process.returncode in (0, -signal.SIGKILL), err
    return [line[:-1] for line in log.read_text().splitlines(keepends=True) if line[-1] == "\n"]


@pytest.mark.slow  # starts a dozen processes
def test_killed_at_any_moment_it_goes_on_exactly(straight: list[str], tmp_path: Path) -> None:
    """Killed again and again; all that it ever prints follows from its last whole checkpoint."""
    moments, torn, resumed = random.Random(0), 0, 0
    for number in range(60):
        folder = tmp_path / f"run {number // 6}"
        folder.mkdir(exist_ok=True)
        begin = max(finished(folder), default=-1) + 1
        lines = printed_until_killed(folder, tmp_path / "log", moments.uniform(0, 0.2))
        assert lines == straight[begin : begin + len(lines)]
        torn += any(not path.name.isdigit() for path in folder.iterdir())
        resumed += begin > 0
        if number >= 11 and torn and resumed:
            break
    assert torn, "it was never killed while it saved"
    assert resumed, "it never went on from a checkpoint"
