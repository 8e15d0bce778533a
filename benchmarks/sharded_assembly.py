"""Global batches over 8 CPU devices: a loader with `sharding=` against code written by hand.

    python benchmarks/sharded_assembly.py

A batch has 256 rows of 784 floats, divided over the devices by rows. Compared are:

    assembly   A batch and its mask, which lie in memory, become global arrays: the loader's own
               code against `make_array_from_process_local_data`, called for the batch and the mask.
               And the same for the batch alone.
    loop       `iterate` with workers=0, over a shuffled file: it finds the rows, takes them, and
               makes both arrays. Against a loop over a stored permutation that does `np.take` and
               calls `make_array_from_process_local_data` for the batch and for its mask.
    threads    The same `iterate` with one thread that reads ahead; reported.

Both sides end when the arrays of all batches are ready.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from measure import compare, inverse, machine, report_ratio

from cereal import BatchTransform, DataLoader, MemmapSource
from cereal.order.rows import Rows
from cereal.pipeline.execute import Delivery

N, BATCH, WIDTH = 16_384, 256, 784
STEPS = N // BATCH
seeds = itertools.count()


def make_loader(folder: Path, mesh: Mesh, workers: int) -> DataLoader[Any]:
    stages = [MemmapSource(folder / "rows.npy", ordering="shuffle"), BatchTransform(BATCH)]
    return DataLoader(stages, workers=workers, sharding=(mesh, "data"))


def by_hand(sharding: Any, array: np.ndarray) -> jax.Array:
    return jax.make_array_from_process_local_data(sharding, array)


def fetched(loader: DataLoader[Any]) -> Rows:
    """The rows of the first step, as the loader reads them: what it makes global arrays of."""
    running: Any = loader.running
    return running._next_rows(loader.init_state(0).words)[0]


def assembly(loader: DataLoader[Any], sharding: Any, pairs: int) -> None:
    rows = fetched(loader)
    source: Any = loader.running
    deliver, share = Delivery(source, ahead=True), source._share
    batch = jax.tree.leaves(source._untouched(rows).values)[0]

    def ours() -> Any:
        return [deliver(rows, masked=True) for _ in range(STEPS)]

    def theirs() -> Any:
        return [
            (by_hand(sharding, batch), by_hand(sharding, np.ones(BATCH, np.bool_)))
            for _ in range(STEPS)
        ]

    ratio("a batch and its mask become global arrays", ours, theirs, pairs)
    alone = lambda: [share.batch([batch]) for _ in range(STEPS)]  # noqa: E731
    ratio("a batch alone", alone, lambda: [by_hand(sharding, batch) for _ in range(STEPS)], pairs)


def loops(folder: Path, mesh: Mesh, sharding: Any, pairs: int) -> None:
    data = np.asarray(np.load(folder / "rows.npy", mmap_mode="r"))

    def theirs() -> Any:
        order, found = orders[next(seeds) % len(orders)], None
        for step in range(STEPS):
            rows = np.take(data, order[step * BATCH : (step + 1) * BATCH], axis=0)
            found = by_hand(sharding, rows), by_hand(sharding, np.ones(BATCH, np.bool_))
        return found

    orders = [np.random.default_rng(seed).permutation(N) for seed in range(8)]
    for workers, name in ((0, "iterate, workers=0"), (1, "iterate, a thread reads ahead")):
        with make_loader(folder, mesh, workers) as loader:

            def ours(loader: Any = loader) -> Any:
                last = None
                for pair in loader.iterate(loader.init_state(next(seeds)), steps=STEPS):
                    last = pair
                return last

            ratio(f"{name}: an epoch of {STEPS} batches", ours, theirs, pairs, goal=workers == 0)


def ratio(
    name: str, ours: Callable[[], Any], theirs: Callable[[], Any], pairs: int, goal: bool = True
) -> None:
    result = inverse(compare(ours, theirs, pairs))
    met = not goal or result["ratio"] <= 1.2
    report_ratio(f"{name} / by hand", result, "at most 1.2x" if goal else "reported", met)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=21)
    options = parser.parse_args()
    print(machine(), f"{jax.device_count()} devices")
    mesh = Mesh(np.array(jax.devices()), ("data",))
    sharding = NamedSharding(mesh, P("data"))
    with tempfile.TemporaryDirectory() as name:
        rows = np.random.default_rng(0).random((N, WIDTH), np.float32)
        np.save(Path(name) / "rows.npy", rows)
        with make_loader(Path(name), mesh, 0) as loader:
            assembly(loader, sharding, options.pairs)
        loops(Path(name), mesh, sharding, options.pairs)
