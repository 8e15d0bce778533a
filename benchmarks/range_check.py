"""What it costs to look whether numbers of 64 bits fit the 32 that JAX has for them.

    python benchmarks/range_check.py

In memory: a column of int64[60000,10], looked at once, when its source is built. In files: batches
of 128 of the same column in a `.npy` file, shuffled; `iterate` as it is against `iterate` that
casts without looking, interleaved.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
from measure import compare, inverse, machine, report, report_ratio, seconds

import cereal.sources.memmap
from cereal import BatchTransform, DataLoader, MemmapSource
from cereal.core.fitting import check_fits

BATCH = 128


def column(low: int) -> np.ndarray:
    return np.random.default_rng(0).integers(low, 1000, (60_000, 10))


def in_memory(name: str, array: np.ndarray) -> None:
    check_fits(array)
    took = statistics.median(seconds(lambda: check_fits(array)) for _ in range(21))
    report(f"once, int64[60000,10], {name}", f"{1e3 * took:.3f} ms", "at most 1 ms", took <= 1e-3)


def in_files(name: str, array: np.ndarray, path: Path, pairs: int) -> None:
    np.save(path, array)
    loader = DataLoader([MemmapSource(path), BatchTransform(BATCH, drop_last=True)])

    def epoch() -> object:
        last = None
        for last, _ in loader.iterate(loader.init_state(0)):
            pass
        return last

    def without() -> object:
        with mock.patch.object(
            cereal.sources.memmap, "narrowed", lambda x, dtype, _: x.astype(dtype)
        ):
            return epoch()

    result = inverse(compare(epoch, without, pairs))
    title = f"files, batches of {BATCH}, {name}: with the look / without"
    report_ratio(title, result, "at most 1.03x", result["ratio"] <= 1.03)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=41)
    options = parser.parse_args()
    print(machine())
    for name, low in (("none negative", 0), ("some negative", -1000)):
        array = column(low)
        in_memory(name, array)
        with tempfile.TemporaryDirectory() as folder:
            in_files(name, array, Path(folder) / "ids.npy", options.pairs)
