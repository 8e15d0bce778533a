"""Worker processes are killed at random for minutes on end; every batch must be the right one.

    python -m tests.soak --minutes 10

Loaders run at once, in threads: iterate, scans, `next_batch`, restarts in mid-epoch, loops that
are left early, loaders that are closed and used again. Meanwhile a worker is killed every few
hundredths of a second. At the end nothing may be left: no process, no thread of ours,
no descriptor, no shared memory; and memory may not have grown.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import random
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from tests.workers.process_loaders import children, descriptors, reading_threads, shared_files

from cereal import (
    BatchTransform,
    DataLoader,
    DiskSampleSource,
    EpochWarning,
    HostRandomMapTransform,
)

N, BATCH, LOADERS = 2000, 16, 3


def make(workers: int, **options: Any) -> DataLoader[Any]:
    def read(i: int) -> Any:
        time.sleep(0.0002)
        return {"x": np.full(500, i, np.int32), "label": i}

    def add(element: Any, rng: Any) -> Any:
        return {**element, "x": element["x"] + rng.integers(1000, dtype=np.int32)}

    source = DiskSampleSource(N, read, ordering="shuffle")
    stages = [source, HostRandomMapTransform(add), BatchTransform(BATCH)]
    return DataLoader(stages, workers=workers, **options)


class Soak:
    """Runs until the time is up; notes what was wrong."""

    def __init__(self, minutes: float, seed: int) -> None:
        self.end = time.monotonic() + 60 * minutes
        self.random = random.Random(seed)
        self.wrong: list[str] = []
        self.batches = self.kills = self.loops = 0
        self.alone = make(0)
        self.expected: dict[int, list[Any]] = {}

    @property
    def over(self) -> bool:
        return time.monotonic() > self.end or bool(self.wrong)

    def epoch(self, key: int) -> list[Any]:
        if key not in self.expected:
            pairs = self.alone.iterate(self.alone.init_state(key))
            self.expected[key] = [jax.tree.map(np.array, batch) for batch, _ in pairs]
        return self.expected[key]

    def check(self, key: int, step: int, batch: Any) -> None:
        self.batches += 1
        expected = self.epoch(key)[step]
        if not all(np.array_equal(batch[name], expected[name]) for name in expected):
            self.wrong.append(f"key {key}, step {step}: another batch")

    def kill(self) -> None:
        while not self.over:
            time.sleep(self.random.uniform(0.02, 0.6))
            found = children()
            for pid in found if self.random.random() < 0.05 else found[:1]:
                try:
                    os.kill(pid, self.random.choice([signal.SIGKILL, signal.SIGTERM]))
                    self.kills += 1
                except ProcessLookupError:
                    pass

    def loop(self, key: int, seed: int) -> None:
        rng = random.Random(seed)
        loader = make(2, worker_type="process", prefetch=rng.choice([1, 2, 8]))
        try:
            while not self.over:
                self.loops += 1
                way: Callable[..., None] = rng.choice(
                    [self.by_iterate, self.by_restart, self.by_scan, self.by_next_batch]
                )
                way(loader, key, rng)
                if rng.random() < 0.2:
                    loader.close()
        except BaseException as error:
            self.wrong.append(f"{type(error).__name__}: {error}")
        finally:
            loader.close()

    def by_iterate(self, loader: Any, key: int, rng: random.Random) -> None:
        stop = rng.choice([5, 30, 10_000])
        for step, (batch, _) in enumerate(loader.iterate(loader.init_state(key))):
            self.check(key, step, batch)
            if step == stop or self.over:
                break

    def by_restart(self, loader: Any, key: int, rng: random.Random) -> None:
        begin = rng.randrange(100)
        state = loader.state_at(key, begin)
        for step, (batch, _) in enumerate(loader.iterate(state, steps=10), start=begin):
            self.check(key, step, batch)

    def by_scan(self, loader: Any, key: int, rng: random.Random) -> None:
        steps = rng.choice([3, 40])
        keep = lambda carry, batch, mask: (carry, batch)  # noqa: E731
        _, _, found = loader.scan_epoch(loader.init_state(key), 0, keep, steps=steps)
        for step in range(steps):
            self.check(key, step, jax.tree.map(lambda x, at=step: x[at], found))

    def by_next_batch(self, loader: Any, key: int, rng: random.Random) -> None:
        state = loader.init_state(key)
        for step in range(rng.choice([2, 20])):
            batch, state, _ = loader.next_batch(state)
            self.check(key, step, batch)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore", EpochWarning)
    logging.getLogger("cereal").setLevel(logging.ERROR)  # a line for each worker that was killed
    soak = Soak(options.minutes, options.seed)
    for key in range(LOADERS):
        soak.epoch(key)
    gc.collect()
    before = descriptors(), shared_files(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    threads = [threading.Thread(target=soak.loop, args=(key, key)) for key in range(LOADERS)]
    killer = threading.Thread(target=soak.kill)
    for thread in [*threads, killer]:
        thread.start()
    for thread in [*threads, killer]:
        thread.join(60 * options.minutes + 120)
        if thread.is_alive():
            soak.wrong.append("a loop hangs")
    gc.collect()
    time.sleep(2.0)
    left = descriptors() - before[0], shared_files() - before[1]
    if children() or reading_threads() or max(left) > 0:
        soak.wrong.append(f"left behind: {children()}, {reading_threads()}, {left}")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before[2]) / 1024
    print(
        f"{soak.batches} batches in {soak.loops} loops, {soak.kills} workers killed, memory grew "
        f"by {grown:.0f} MB"
    )
    for wrong in soak.wrong:
        print(f"WRONG  {wrong}")
    return len(soak.wrong) > 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # a loop that hangs would keep the process
