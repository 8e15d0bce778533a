"""Rows of 3,072 bytes of a memory map, 8,192 a batch, shuffled, to the device: GB a second.

    python benchmarks/memmap_rate.py [--quick]

Loaders with default settings, and with fixed numbers of workers. Beside them what its parts give:
`np.take` of whole batches by 8 threads into memory that is there already, and `jax.device_put` of
one prepared batch, which is not aligned: the CPU's device would not copy one that is. The file is
read once before the clock: all sides read memory, not the disk.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from host_memmap import make_file, touch
from measure import machine, on_gpu, report
from sides import HAS_PROCESSES, Side, in_turns, ours, say_what_is_missing, spread

from cereal import BatchTransform, MemmapSource

BATCH, WIDTH, TAKERS, GOAL = 8192, 3072, 8, 12.0


def take_by_threads(rows: np.ndarray, threads: int) -> Callable[[int], float]:
    """Seconds in which so many batches are taken; every thread has memory of its own."""
    order = np.random.default_rng(0).permutation(len(rows))
    batches = order[: len(rows) // BATCH * BATCH].reshape(-1, BATCH)
    memory = np.zeros((threads, BATCH, WIDTH), np.uint8)

    def run(which: int, steps: int) -> None:
        for step in range(which, steps, threads):
            np.take(rows, batches[step % len(batches)], axis=0, out=memory[which], mode="clip")

    def seconds(steps: int) -> float:
        each = [threading.Thread(target=run, args=(which, steps)) for which in range(threads)]
        begin = time.perf_counter()
        for thread in each:
            thread.start()
        for thread in each:
            thread.join()
        return time.perf_counter() - begin

    return seconds


def put_one_batch(steps: int) -> float:
    memory = np.ones(BATCH * WIDTH + 128, np.uint8)
    begin = -memory.ctypes.data % 64 + 16
    batch = memory[begin : begin + BATCH * WIDTH].reshape(BATCH, WIDTH)
    jax.block_until_ready(jax.device_put(batch))
    started, last = time.perf_counter(), None
    for _ in range(steps):
        last = jax.device_put(batch)
    jax.block_until_ready(last)
    return time.perf_counter() - started


def loaders(path: Path) -> dict[str, Side]:
    stages = [MemmapSource(path), BatchTransform(BATCH)]
    # 256 MB are read ahead at most, which are ten batches.
    found = {"default": ours(stages, None, ahead=24), "workers=0": ours(stages, 0, ahead=2)}
    for n in (1, 4, 16):
        found[f"threads {n}"] = ours(stages, n, "thread", ahead=24)
    if HAS_PROCESSES:
        for n in (1, 4):
            found[f"processes {n}"] = ours(stages, n, "process", ahead=24)
    return found


def figures(path: Path, steps: int, rounds: int) -> None:
    rows = np.asarray(np.load(path, mmap_mode="r"))
    touch(rows)
    sides = loaders(path)
    for side in sides.values():
        side.start()
    sides["default"].seconds(2 * steps)  # it has chosen after these
    timed = {title: (lambda side=side: side.seconds(steps)) for title, side in sides.items()}
    taker, alone = take_by_threads(rows, TAKERS), take_by_threads(rows, 1)
    timed[f"np.take alone, {TAKERS} threads"] = lambda: taker(steps)
    timed["np.take alone, 1 thread"] = lambda: alone(steps)
    timed["device_put alone, one prepared batch"] = lambda: put_one_batch(steps)
    taken = in_turns(timed, rounds)
    for side in sides.values():
        side.close()
    for title, each in taken.items():
        rates = [steps * BATCH * WIDTH / 1e9 / one for one in each]
        judged = title == "default" and on_gpu()
        goal = f"at least {GOAL:.0f} on the H200" if title == "default" else "reported"
        met = not judged or statistics.median(rates) >= GOAL
        report(f"memory map to the device: {title}", f"{spread(rates, '.2f')}, GB/s", goal, met)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short run, with more spread")
    asked = parser.parse_args()
    print(machine())
    say_what_is_missing()
    with tempfile.TemporaryDirectory() as folder:
        path = make_file(Path(folder) / "rows.npy", BATCH * (16 if asked.quick else 64), WIDTH)
        figures(path, 32 if asked.quick else 128, 3 if asked.quick else 9)
