"""Who is killed while a cache in files is filled has lost a few seconds' work, not all of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal import BatchTransform, CacheTransform, DataLoader, HostMapTransform, RangeSource
from cereal.cache import pace as cache_pace
from cereal.cache import store as cache_store
from cereal.cache.elements import FEW

N = 120
CHILD = """
import os, sys, time
import numpy as np
from cereal import BatchTransform, CacheTransform, DataLoader, HostMapTransform, RangeSource


def slow(x):
    time.sleep(0.05)  # the work
    if x == int(os.environ["HANGS_AT"]):  # which no digest sees
        print("hangs", flush=True)
        sys.stdin.read()
    with open("calls", "a") as file:
        file.write("x")
    return {"id": x, "embedding": np.full(256, x, np.float32)}


stages = [RangeSource(120), HostMapTransform(slow), CacheTransform("cache", version=1)]
loader = DataLoader([*stages, BatchTransform(int(sys.argv[1]))], workers=0)
for number, (batch, mask) in enumerate(loader.iterate(loader.init_state(0))):
    assert (batch["embedding"] == batch["id"][:, None]).all()
print("done", flush=True)
"""


def run(folder: Path, hangs_at: int, size: int, end: signal.Signals | None = None) -> int:
    """How many elements a process computes, that hangs at one and is then sent a signal."""
    (folder / "calls").unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(size)],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HANGS_AT": str(hangs_at)},
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline().strip()
        if said not in ("hangs", "done"):
            pytest.fail(process.communicate()[1])
        if end is not None:
            assert said == "hangs"
            process.send_signal(end)
            process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    return os.path.getsize(folder / "calls")


@pytest.mark.slow
@pytest.mark.parametrize(("end", "size"), [(signal.SIGTERM, 4), (signal.SIGKILL, N)])
def test_what_was_computed_before_the_last_seconds_is_not_computed_again(
    end: signal.Signals, size: int, tmp_path: Path
) -> None:
    assert run(tmp_path, N - 5, size, end) >= N - 6
    again = run(tmp_path, -1, size)
    # 115 elements of 50 ms: all but two seconds between marks, and one of a chunk on its way.
    assert again <= 5 + FEW + 1 + 3.5 / 0.05
    assert run(tmp_path, -1, size) <= FEW + 1  # and one, to see what elements look like


class Clock:
    """Time that passes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        for module in (cache_store, cache_pace):
            monkeypatch.setattr(module, "time", self)

    def monotonic(self) -> float:
        return self.now


def test_marks_are_written_every_two_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)

    def slow(x: Any) -> Any:
        clock.now += 0.3
        return x

    cache = CacheTransform(tmp_path, version=1)
    loader = DataLoader([RangeSource(24), HostMapTransform(slow), cache, BatchTransform(2)])
    (place,) = tmp_path.iterdir()
    marked = []
    for _ in loader.iterate(loader.init_state(0)):
        marked.append(int(np.load(place / "filled.npy").sum()))
    assert marked == [0, 0, 0, 8, 8, 8, 8, 16, 16, 16, 16, 24]


def test_a_large_batch_of_slow_elements_is_computed_and_kept_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)

    def slow(x: Any) -> Any:
        clock.now += 1.0
        if x == 30:
            raise KeyboardInterrupt("in the middle")
        return x

    cache = CacheTransform(tmp_path, version=1)
    loader = DataLoader([RangeSource(64), HostMapTransform(slow), cache, BatchTransform(64)])
    with pytest.raises(KeyboardInterrupt, match="in the middle"):
        loader.batch_at(0, 0)
    (place,) = tmp_path.iterdir()
    assert 26 <= int(np.load(place / "filled.npy").sum()) <= 30


def test_marks_come_to_the_disk_after_their_elements(tmp_path: Path) -> None:
    order = []

    class Array:
        def __init__(self, name: str) -> None:
            self.name = name

        def flush(self) -> None:
            order.append(f"{self.name} flushed")

        def __setitem__(self, at: Any, value: Any) -> None:
            order.append(f"{self.name} set at {at.tolist()}")

    pending = [np.array([3, 4]), np.array([7])]
    cache_store.save([Array("one"), Array("two")], Array("marks"), pending)
    assert order == [
        "one flushed",
        "two flushed",
        "marks set at [3, 4]",
        "marks set at [7]",
        "marks flushed",
    ]
    assert pending == []
