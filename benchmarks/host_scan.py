"""How long an accelerator waits for data that Python reads: `scan_epoch` with a step of 5 ms.

    python benchmarks/host_scan.py

The step multiplies matrices for about 5 ms and uses the batch. An epoch over a host pipeline (rows
of 12 KB from a file, a Python function per batch, normalised on the device) is compared with the
same program over batches that lie on the device already; the rest is stall. The same inside the
user's own `jit`, where a callback asks for every batch, is reported.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from measure import machine, on_gpu, report

from cereal import (
    BatchTransform,
    DataLoader,
    HostMapTransform,
    MapTransform,
    MemmapSource,
    save_arrays,
)

BATCH, ROW = 128, 12_288


def flip(batch: Any) -> Any:
    return {**batch, "image": batch["image"][:, ::-1]}


def normalise(batch: Any) -> Any:
    return {**batch, "image": batch["image"].astype(jnp.float32) / 255}


def make_loader(folder: Path, rows: int, workers: int) -> DataLoader[Any]:
    rng = np.random.default_rng(0)
    data = {
        "image": rng.integers(0, 256, (rows, ROW), np.uint8),
        "label": rng.integers(0, 10, rows).astype(np.int32),
    }
    save_arrays(folder / "rows", data)
    stages = [
        MemmapSource(folder / "rows"),
        BatchTransform(BATCH),
        HostMapTransform(flip),
        MapTransform(normalise),
    ]
    return DataLoader(stages, workers=workers)


def body_of(times: int, size: int) -> Any:
    def body(carry: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
        weights, total = carry
        del mask

        def multiply(_: int, w: Any) -> Any:
            return (w @ w) * jnp.asarray(1 / size, w.dtype)

        weights = jax.lax.fori_loop(0, times, multiply, weights)
        seen = batch["image"].sum() + batch["label"].sum()
        return (weights, total + seen), weights[0, 0].astype(jnp.float32)

    return body


def calibrated(milliseconds: float) -> tuple[Any, Any]:
    """A body that takes about so long without the batch, and its carry."""
    size = 4096 if on_gpu() else 256
    dtype = jnp.bfloat16 if on_gpu() else jnp.float32
    carry = (jnp.full((size, size), 1 / size, dtype), jnp.float32(0))
    batch = {"image": jnp.zeros((BATCH, ROW)), "label": jnp.zeros(BATCH, jnp.int32)}
    times = 16
    for _ in range(3):
        step = jax.jit(body_of(times, size))
        jax.block_until_ready(step(carry, batch, None))
        begin = time.perf_counter()
        for _ in range(5):
            jax.block_until_ready(step(carry, batch, None))
        took = (time.perf_counter() - begin) / 5 * 1e3
        times = max(1, round(times * milliseconds / took))
    return body_of(times, size), carry


def seconds(fn: Any) -> float:
    begin = time.perf_counter()
    jax.block_until_ready(fn())
    return time.perf_counter() - begin


def on_device(loader: DataLoader[Any], state: Any, steps: int) -> Any:
    """The batches of an epoch, stacked on the device."""
    pairs = list(loader.iterate(state, steps=steps))
    return jax.block_until_ready(jax.tree.map(lambda *x: jnp.stack(x), *pairs))


def main(rows: int, workers: int, rounds: int, milliseconds: float) -> None:
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        loader = make_loader(Path(folder), rows, workers)
        print(loader)
        steps = loader.steps_per_epoch
        state = loader.init_state(0)
        body, carry = calibrated(milliseconds)
        stacked = on_device(loader, state, steps)

        @jax.jit
        def resident(carry: Any, stacked: Any) -> Any:
            return jax.lax.scan(lambda c, pair: body(c, *pair), carry, stacked)

        @jax.jit
        def own_jit(loader: Any, state: Any, carry: Any) -> Any:
            return loader.scan_epoch(state, carry, body)

        ways = {
            "resident": lambda: resident(carry, stacked),
            "scan_epoch": lambda: loader.scan_epoch(state, carry, body),
            "own jit": lambda: own_jit(loader, state, carry),
        }
        for fn in ways.values():
            seconds(fn)
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, fn in ways.items():
                times[name].append(seconds(fn))
        loader.close()
    resident_s = statistics.median(times["resident"])
    print(f"{steps} steps of {resident_s / steps * 1e3:.2f} ms, {rounds} rounds, {workers} workers")
    for name, goal in (("scan_epoch", "at most 2 %"), ("own jit", "reported")):
        stalls = [1 - r / t for r, t in zip(times["resident"], times[name], strict=True)]
        low, mid, high = (float(np.quantile(stalls, q)) for q in (0.25, 0.5, 0.75))
        value = f"{mid:.2%} [{low:.2%}, {high:.2%}]; epoch {statistics.median(times[name]):.3f} s"
        report(f"stall of {name}, 5 ms step", value, goal, name == "own jit" or mid <= 0.02)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--step", type=float, default=5.0, help="milliseconds")
    options = parser.parse_args()
    main(options.rows, options.workers, options.rounds, options.step)
