"""nanoGPT's loader: random windows of 1,025 tokens from a 1 GB file, batch 64.

    python benchmarks/windows.py

Against the loop that one writes by hand: random starts, `np.stack` of slices of the memmap, and
the transfer. The file is made in a temporary folder and read before the clock starts, so that both
sides read memory, not the disk.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from measure import compare, machine, report_ratio

from cereal import BatchTransform, DataLoader, MapTransform, WindowSource

LENGTH, BATCH = 1025, 64


def make_file(path: Path, tokens: int) -> np.memmap:
    rng = np.random.default_rng(0)
    with open(path, "wb") as file:
        for begin in range(0, tokens, 1 << 24):
            size = min(1 << 24, tokens - begin)
            file.write(rng.integers(0, 50_257, size, np.uint16).tobytes())
    data = np.memmap(path, np.uint16, mode="r")
    data[:: 4096 // 2].sum()  # every page once
    return data


def shift(window: Any) -> tuple[Any, Any]:
    return window[:, :-1].astype(jnp.int32), window[:, 1:].astype(jnp.int32)


def by_hand(data: np.memmap, steps: int, after: Any) -> Any:
    rng, last = np.random.default_rng(1), None
    for _ in range(steps):
        starts = rng.integers(0, len(data) - LENGTH, BATCH)
        last = after(jax.device_put(np.stack([data[s : s + LENGTH] for s in starts])))
    return last


def ours(loader: DataLoader[Any], steps: int) -> Any:
    last = None
    for batch, _ in loader.iterate(loader.init_state(0), steps=steps):
        last = batch
    return last


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--megabytes", type=int, default=1024)
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        data = make_file(Path(folder) / "train.bin", options.megabytes * 2**20 // 2)
        source = WindowSource(data, LENGTH)
        plain = DataLoader([source, BatchTransform(BATCH)])
        shifted = DataLoader([source, BatchTransform(BATCH), MapTransform(shift)])
        steps, compiled = options.steps, jax.jit(shift)
        for name, loader, after in (
            ("windows as they are", plain, lambda x: x),
            ("inputs and targets as int32", shifted, compiled),
        ):
            result = compare(
                lambda loader=loader: ours(loader, steps),
                lambda after=after: by_hand(data, steps, after),
                options.pairs,
            )
            title = f"NumPy loop + transfer / iterate, {name}, {steps} batches"
            report_ratio(title, result, "at least 0.8x", result["ratio"] >= 0.8)
