"""Worker processes and the program around them: its death, Ctrl-C, scripts, pytest itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.workers.reading import SCRIPT, script, until

pytestmark = pytest.mark.slow

SOON = 5.0

LOADER = (
    SCRIPT
    + """
def children():
    found = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    for task in os.listdir("/proc/self/task"):
        found += open(f"/proc/self/task/{task}/children").read().split()
    return sorted(set(found))

def slow(i):
    time.sleep(0.02)
    return i
"""
)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def start(code: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    return subprocess.Popen(
        [sys.executable, "-c", LOADER + code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def heard(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(word):
            return line
    raise AssertionError(process.communicate()[1])


RUNNING = """
loader = loader_of({fn}, 4000, 4, workers=3, worker_type="process")
for step, (batch, _) in enumerate(loader.iterate()):
    if step == 5:
        say("pids " + " ".join(children()))
{after}
"""
FUNCTIONS = {
    "sleeps": ("slow", ""),
    "stays in C": ("lambda i: i if i < 40 else __import__('ctypes').PyDLL(None).sleep(60)", ""),
    "hangs": ("lambda i: i if i < 40 else time.sleep(1000)", ""),
    "rests": ("slow", "        time.sleep(1000)"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_workers_end_when_their_parent_is_killed(name: str) -> None:
    fn, after = FUNCTIONS[name]
    process = start(RUNNING.format(fn=fn, after=after))
    pids = [int(pid) for pid in heard(process, "pids").split()[1:]]
    assert len(pids) == 3
    assert all(alive(pid) for pid in pids)
    time.sleep(0.3)
    process.kill()
    process.communicate()
    assert until(lambda: not any(map(alive, pids)), SOON), pids


def test_control_c_twice_ends_everything() -> None:
    process = start(RUNNING.format(fn="slow", after=""))
    pids = [int(pid) for pid in heard(process, "pids").split()[1:]]
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert time.monotonic() - began < SOON
    assert "KeyboardInterrupt" in errors
    assert process.returncode != 0
    assert until(lambda: not any(map(alive, pids)), SOON)


def test_after_control_c_the_loader_can_be_used_again_and_lost_nothing() -> None:
    code, output, errors, _ = script(
        """
loader = loader_of(lambda i: time.sleep(0.01) or i, 400, 4, workers=2, worker_type="process")
found, batches = [], loader.iterate()
for turn in range(3):
    try:
        while True:
            if len(found) == 5 + turn * 5:
                os.kill(os.getpid(), signal.SIGINT)
            found.append(next(batches)[0].tolist())
    except KeyboardInterrupt:
        say("again")
    except StopIteration:
        break
found += [batch.tolist() for batch, _ in batches]
assert found == chunks(400, 4), found
loader.close()
say("done")
"""
    )
    assert code == 0, errors
    assert "done" in output


def test_a_script_needs_no_guard_and_is_not_run_again(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        """
import numpy as np
from cereal import BatchTransform, DataLoader
print("the script runs")

class Data:
    scale = 2
    def __len__(self):
        return 12
    def __getitem__(self, i):
        return helper(i) * self.scale

def helper(i):
    return np.float32(i)

class OwnError(Exception):
    pass

loader = DataLoader([Data(), BatchTransform(4)], workers=2, worker_type="process")
print([batch.tolist() for batch, _ in loader])
helper = lambda i: (_ for _ in ()).throw(OwnError("mine"))
try:
    list(loader)
except OwnError as error:
    print("caught", error)
"""
    )
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    found = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, env=environment, timeout=60
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == [
        "the script runs",
        "[[0.0, 2.0, 4.0, 6.0], [8.0, 10.0, 12.0, 14.0], [16.0, 18.0, 20.0, 22.0]]",
        "caught mine",
    ]


def test_a_program_that_ends_without_closing_its_loader_leaves_nothing() -> None:
    process = start(
        """
loader = loader_of(slow, 4000, 4, workers=2, worker_type="process")
batches = loader.iterate()
next(batches)
say("pids " + " ".join(children()))
"""
    )
    pids = [int(pid) for pid in heard(process, "pids").split()[1:]]
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    assert not errors.strip(), errors
    assert not any(map(alive, pids))


def test_a_program_that_ends_while_workers_start_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first worker process starts quickly, the others take a minute.
    (tmp_path / "sitecustomize.py").write_text(
        f"""
import os, sys, time
if "start.py" in map(os.path.basename, sys.orig_argv):
    try:
        os.mkdir({str(tmp_path / "first")!r})
    except FileExistsError:
        time.sleep(60)
"""
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    process = start(
        """
loader = loader_of(slow, 4000, 4, workers=2, worker_type="process")
batches = loader.iterate()
next(batches)
while len(children()) < 2:
    time.sleep(0.01)
say("pids " + " ".join(children()))
"""
    )
    pids = [int(pid) for pid in heard(process, "pids").split()[1:]]
    assert len(pids) == 2
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    assert not errors.strip(), errors
    assert not any(map(alive, pids))
