"""What workers do in the benchmarks of workers, and what a process costs.

Nothing here imports JAX, so that a process which is sent one of these functions need not.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

SIZE = 224
MEGABYTE = 1 << 20


class Spin:
    """Integer arithmetic in Python, which holds the interpreter lock all the time."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def __call__(self, element: Any) -> np.int32:
        total = int(element)
        for _ in range(self.rounds):
            total = (total * 1103515245 + 12345) & 0x7FFFFFFF
        return np.int32(total)


def calibrated_spin(seconds: float) -> Spin:
    """The arithmetic that takes so long here, by the median of half a second."""
    some = Spin(2000)

    def once() -> float:
        begin = time.perf_counter()
        some(1)
        return time.perf_counter() - begin

    taken = statistics.median(once() for _ in range(2000))
    return Spin(max(1, round(some.rounds * seconds / taken)))


class SpinOnBatch:
    """The same for a batch: takes the time once, and gives a new batch."""

    def __init__(self, rounds: int) -> None:
        self.spin = Spin(rounds)

    def __call__(self, batch: np.ndarray) -> np.ndarray:
        self.spin(1)
        return batch + 1


class SleepOnBatch:
    """Sleeps, which takes no core and no lock, and gives a new batch."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, batch: np.ndarray) -> np.ndarray:
        time.sleep(self.seconds)
        return batch + 1


@cache
def _block(rows: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (rows, width), np.uint8)


class PreparedBlock:
    """Gives the same array again and again; each process makes it once, for its first batch."""

    def __init__(self, rows: int, width: int) -> None:
        self.rows, self.width = rows, width

    def __call__(self, element: Any) -> np.ndarray:
        del element
        return _block(self.rows, self.width)


class Calls:
    """A map-style dataset without end: element `i` is `fn(i)`."""

    def __init__(self, fn: Callable[[int], Any], n: int = 10**8) -> None:
        self.fn, self.n = fn, n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return self.fn(index)


def decode_and_resize(path: str) -> np.ndarray:
    from PIL import Image  # pyright: ignore[reportMissingImports]

    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR))


def tokens_as_array(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "tokens": np.asarray(row["tokens"], np.int32)}


def descendants(pid: int | None = None) -> list[int]:
    """The processes below this one, found in /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:  # it has ended
                continue
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    found, begin = [], [os.getpid() if pid is None else pid]
    while begin:
        begin = [child for child, parent in parents.items() if parent in begin]
        found += begin
    return found


def memory_of(pid: int | str = "self") -> dict[str, float]:
    """MB that only this process has (`uss`), and with its share of what several have (`pss`)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    private = kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]
    return {"uss": private / 1024, "pss": kilobytes["Pss"] / 1024}
