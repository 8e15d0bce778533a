"""Many small batches (128 x 784 bytes) with a host transform of 1 ms each, by 2 threads.

    python benchmarks/host_small_batches.py

    excess = wall time per batch - (time of the transform) / 2

The transform is `time.sleep`, which takes no core, or `zlib.crc32` of a block, which does; both
give a new array and leave the interpreter lock alone for most of their time. How long one takes is
measured in the same rounds, by a single thread with nothing else to do. Also measured: two bare
threads that only call the transform (the least there can be, and what the second core is worth
here), and the loop that reads, transforms and puts a batch in the caller's thread. The consumer
keeps the latest batch and waits for the last one.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from measure import machine, report, seconds

from cereal import BatchTransform, DataLoader, HostMapTransform, MemmapSource

N, WIDTH, BATCH, WORKERS = 60_000, 784, 128, 2
seeds = itertools.count()


def make_transforms(millisecond: float) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    block = bytes(1 << 21)
    taken = min(seconds(lambda: zlib.crc32(block)) for _ in range(20))
    block = bytes(int(len(block) * millisecond / taken))

    def sleeping(batch: np.ndarray) -> np.ndarray:
        time.sleep(millisecond)
        return 255 - batch

    def computing(batch: np.ndarray) -> np.ndarray:
        zlib.crc32(block)
        return 255 - batch

    return {"sleep": sleeping, "crc32": computing}


def alone(fn: Callable[[Any], Any], batch: np.ndarray, steps: int) -> None:
    for _ in range(steps):
        fn(batch)


def bare_threads(fn: Callable[[Any], Any], batch: np.ndarray, steps: int) -> None:
    each = [threading.Thread(target=alone, args=(fn, batch, steps // WORKERS)) for _ in range(2)]
    for thread in each:
        thread.start()
    for thread in each:
        thread.join()


def inline(fn: Callable[[Any], Any], rows: np.ndarray, steps: int) -> Any:
    order, last = np.random.default_rng(next(seeds)).permutation(len(rows)), None
    for step in range(steps):
        indices = order[step * BATCH : (step + 1) * BATCH]
        last = jax.device_put(fn(np.take(rows, indices, axis=0)))
    return last


def ours(loader: DataLoader[Any], steps: int) -> Any:
    last = None
    for batch, _ in loader.iterate(loader.init_state(next(seeds)), steps=steps):
        last = batch
    return last


def figures(name: str, fn: Callable[[Any], Any], path: Path, options: argparse.Namespace) -> None:
    rows = np.asarray(np.load(path, mmap_mode="r"))
    batch, steps = rows[:BATCH].copy(), options.steps

    def loader(workers: int | None, prefetch: int | None) -> DataLoader[Any]:
        stages = [MemmapSource(path), BatchTransform(BATCH, drop_last=True), HostMapTransform(fn)]
        return DataLoader(stages, workers=workers, prefetch=prefetch)

    chosen = {f"prefetch={each}": loader(WORKERS, each) for each in (None, 2, 4, 16)}
    chosen["workers=0"] = loader(0, 0)
    sides: dict[str, Callable[[], Any]] = {
        "alone": lambda: alone(fn, batch, steps),
        "two bare threads": lambda: bare_threads(fn, batch, steps),
        "inline": lambda: inline(fn, rows, steps),
        **{title: (lambda each=each: ours(each, steps)) for title, each in chosen.items()},
    }
    for side in sides.values():
        seconds(side)
    taken: dict[str, list[float]] = {title: [] for title in sides}
    for turn in range(options.rounds):
        titles = list(sides)
        for title in titles[turn % len(titles) :] + titles[: turn % len(titles)]:
            taken[title].append(1e6 * seconds(sides[title]) / steps)
    print_times(name, taken)


def print_times(name: str, taken: dict[str, list[float]]) -> None:
    def difference(a: str, b: str, share: float) -> tuple[float, str]:
        each = [x - share * y for x, y in zip(taken[a], taken[b], strict=True)]
        low, mid, high = (float(np.quantile(each, q)) for q in (0.25, 0.5, 0.75))
        return mid, f"{mid:.0f} µs [{low:.0f}, {high:.0f}] of {len(each)} rounds"

    for title, each in taken.items():
        print(f"      {name}: {title}: {statistics.median(each):.0f} µs a batch")
    for title in taken:
        if title.startswith("prefetch="):
            excess, words = difference(title, "alone", 1 / WORKERS)
            goal = "at most 100 µs" if title == "prefetch=None" else "reported"
            met = goal == "reported" or excess <= 100
            report(f"{name}, 2 threads, {title}: beyond half the transform", words, goal, met)
    _, words = difference("prefetch=None", "two bare threads", 1)
    report(f"{name}, 2 threads: beyond two bare threads", words, "reported", True)
    for title in ("inline", "workers=0"):
        _, words = difference(title, "alone", 1)
        report(f"{name}, {title}: beyond the transform", words, "reported", True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=468, help="batches in each measurement")
    parser.add_argument("--milliseconds", type=float, default=1.0)
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        np.save(path, np.random.default_rng(0).integers(0, 256, (N, WIDTH), np.uint8))
        for name, fn in make_transforms(options.milliseconds / 1e3).items():
            figures(name, fn, path, options)
