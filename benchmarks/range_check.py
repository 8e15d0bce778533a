"""What it costs to look whether numbers of 64 bits fit the 32 that JAX has for them.

    python benchmarks/range_check.py

In memory: a column of int64[60000,10], looked at once, when its source is built. In files: batches
of 128 rows of it out of a `.npy` file, shuffled, by `iterate`. The look takes a microsecond or
two of a batch, less than batches differ by, so it is timed by itself: casting a batch with the
look, less casting it without, as a share of what `iterate` takes for a batch.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import machine, report, seconds

from cereal import BatchTransform, DataLoader, MemmapSource
from cereal.base.fitting import canonical, check_fits, narrowed

BATCH = 128
COLUMNS = {
    "int64, none negative": np.random.default_rng(0).integers(0, 1000, (60_000, 10)),
    "int64, some negative": np.random.default_rng(0).integers(-1000, 1000, (60_000, 10)),
    "float64": np.random.default_rng(0).normal(size=(60_000, 10)),
}


def alone(fn: Callable[[], Any], number: int) -> float:
    fn()
    # Short runs, many times: a longer one is interrupted on a machine that others use.
    return min(timeit.repeat(fn, number=number, repeat=300)) / number


def in_memory(name: str, column: np.ndarray) -> None:
    took = alone(lambda: check_fits(column), 5)
    report(f"once, {name}, 60,000 x 10", f"{1e3 * took:.3f} ms", "at most 1 ms", took <= 1e-3)


def in_files(name: str, column: np.ndarray, epochs: int) -> None:
    rows, dtype = column[:BATCH], canonical(column.dtype)
    look = alone(lambda: narrowed(rows, dtype), 100) - alone(lambda: rows.astype(dtype), 100)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "column.npy"
        np.save(path, column)
        loader = DataLoader([MemmapSource(path), BatchTransform(BATCH, drop_last=True)])
        state = loader.init_state(0)
        took = [seconds(lambda: list(loader.iterate(state))[-1]) for _ in range(epochs)]
    batch = statistics.median(took) / len(loader)
    report(
        f"files, {name}, batches of {BATCH}",
        f"{1e6 * look:.1f} of {1e6 * batch:.0f} µs, {100 * look / batch:.1f} %",
        "at most 3 %",
        look <= 0.03 * batch,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=21)
    options = parser.parse_args()
    print(machine())
    for name, column in COLUMNS.items():
        in_memory(name, column)
        in_files(name, column, options.epochs)
