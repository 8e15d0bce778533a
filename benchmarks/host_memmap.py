"""Memory-mapped rows, shuffled, batches of 128, into JAX arrays, at default settings.

    python benchmarks/host_memmap.py

60,000 rows of 784 bytes and 50,000 of 12,288, in `.npy` files in a temporary folder that were read
before the clock starts: all sides read memory, not the disk. Every side shuffles anew for each
epoch, and drops the incomplete batch at its end.

    inline   a permutation, then `jax.device_put(np.take(rows, indices, axis=0))` for every batch
    Grain    source of rows, shuffle, batch, to_iter_dataset, `jax.device_put`
    torch    a map-style dataset of rows, DataLoader(shuffle=True), `jax.device_put` of the tensor

The consumer is the same for all: it keeps the latest batch and waits for the last one, or with
`--consumer each` waits for every batch. Peers that are slow run on `--peer-batches` of the epoch
(of a permutation of all rows), and are scaled by the number of batches. Their worker processes are
started before the clock, where that can be. A peer that is not installed is left out.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from measure import compare, machine, report_ratio

from cereal import BatchTransform, DataLoader, MemmapSource

BATCH = 128
seeds = itertools.count()


def make_file(path: Path, n: int, width: int) -> Path:
    rows = np.lib.format.open_memmap(path, "w+", np.uint8, (n, width))
    rng = np.random.default_rng(0)
    for begin in range(0, n, 4096):
        size = min(4096, n - begin)
        rows[begin : begin + size] = rng.integers(0, 256, (size, width), np.uint8)
    rows.flush()
    return path


def touch(rows: np.ndarray) -> None:
    """Reads every page once: a page of a new map costs a fault, although it is in memory."""
    rows.reshape(-1)[::4096].sum()


class Rows:
    """One row at a time, as map-style datasets have it; processes open the file themselves."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows = np.load(path, mmap_mode="c")  # torch wants writable arrays
        touch(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> np.ndarray:
        return self._rows[index]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._path,)


class BatchedRows(Rows):
    """The same with torch's batched read."""

    def __getitems__(self, indices: list[int]) -> np.ndarray:
        return np.take(self._rows, indices, axis=0)


def as_tensor(batch: np.ndarray) -> Any:
    import torch  # pyright: ignore[reportMissingImports]

    return torch.from_numpy(np.asarray(batch))


def consume(batches: Iterable[Any], each: bool) -> Any:
    last = None
    for batch in batches:
        last = jax.block_until_ready(batch) if each else batch
    return last


def inline(rows: np.ndarray) -> Callable[[], Iterable[Any]]:
    def epoch() -> Iterable[Any]:
        order = np.random.default_rng(next(seeds)).permutation(len(rows))
        for begin in range(0, len(rows) - BATCH + 1, BATCH):
            yield jax.device_put(np.take(rows, order[begin : begin + BATCH], axis=0))

    return epoch


def ours(path: Path) -> Callable[[], Iterable[Any]]:
    loader = DataLoader([MemmapSource(path), BatchTransform(BATCH, drop_last=True)])

    def epoch() -> Iterable[Any]:
        for batch, _ in loader.iterate(loader.init_state(next(seeds)), epochs=1):
            yield batch

    return epoch


def grain_sides(path: Path, batches: int) -> dict[str, Callable[[], Iterable[Any]]]:
    try:
        import grain  # pyright: ignore[reportMissingImports]
    except ImportError:
        print("Grain: not installed")
        return {}
    rows: Any = Rows(path)

    def side(options: Any) -> Callable[[], Iterable[Any]]:
        def epoch() -> Iterable[Any]:
            data = grain.MapDataset.source(rows).shuffle(seed=next(seeds))
            data = data.batch(BATCH, drop_remainder=True)[:batches]
            return map(jax.device_put, data.to_iter_dataset(options))

        return epoch

    read = grain.ReadOptions
    return {
        "Grain, default": side(read()),
        "Grain, ReadOptions(16, 32)": side(read(num_threads=16, prefetch_buffer_size=32)),
        "Grain, ReadOptions(0, 0)": side(read(num_threads=0, prefetch_buffer_size=0)),
    }


def torch_sides(path: Path, batches: int) -> dict[str, Callable[[], Iterable[Any]]]:
    try:
        from torch.utils import data as torch_data  # pyright: ignore[reportMissingImports]
    except ImportError:
        print("torch: not installed")
        return {}

    def side(rows: Any, workers: int, **words: Any) -> Callable[[], Iterable[Any]]:
        if workers:  # not forked: JAX has threads
            words |= {"multiprocessing_context": "spawn", "persistent_workers": True}
        sampler = torch_data.RandomSampler(rows, num_samples=min(batches * BATCH, len(rows)))
        loader = torch_data.DataLoader(
            rows, BATCH, sampler=sampler, num_workers=workers, drop_last=True, **words
        )
        return lambda: (jax.device_put(batch.numpy()) for batch in loader)

    batched = side(BatchedRows(path), 0, collate_fn=as_tensor)
    return {
        "torch, 0 workers": side(Rows(path), 0),
        "torch, 2 workers": side(Rows(path), 2),
        "torch, 0 workers, its batched __getitems__ (by hand, no goal)": batched,
    }


def scaled(result: dict[str, Any], factor: float) -> dict[str, Any]:
    """The same, as if the other side had done so many times as much."""
    low, high = result["quartiles"]
    return {
        **result,
        "ratio": result["ratio"] * factor,
        "quartiles": (low * factor, high * factor),
        "theirs": result["theirs"] * factor,
    }


def against(
    name: str, mine: Any, sides: dict[str, Any], factor: float, goal: float, pairs: int
) -> None:
    """Reports all ways to use a peer, and holds the best of them against the goal."""
    found = {}
    for title, side in sides.items():
        found[title] = scaled(compare(mine, side, pairs), factor)
        report_ratio(f"{name}: {title} / iterate", found[title], "reported", True)
    judged = {title: result for title, result in found.items() if "no goal" not in title}
    if judged:
        title = min(judged, key=lambda title: judged[title]["ratio"])
        met = judged[title]["ratio"] >= goal
        report_ratio(f"{name}: {title} (its best) / iterate", judged[title], f">= {goal}x", met)


def figures(path: Path, name: str, options: argparse.Namespace) -> None:
    rows = np.load(path, mmap_mode="r")
    touch(rows)
    steps = len(rows) // BATCH
    some = min(steps, options.peer_batches)
    each = options.consumer == "each"

    def whole(side: Callable[[], Iterable[Any]]) -> Callable[[], Any]:
        return lambda: consume(side(), each)

    mine = whole(ours(path))
    for how, data in (("", rows), (", the memmap as a plain array", np.asarray(rows))):
        result = compare(mine, whole(inline(data)), options.pairs)
        title = f"{name}: np.take + device_put{how} / iterate, {steps} batches"
        report_ratio(title, result, "at least 0.8x", result["ratio"] >= 0.8)
    if options.peer_pairs:
        print(f"{name}: peers on {some} of {steps} batches, scaled")
        for make, goal in ((grain_sides, 20.0), (torch_sides, 5.0)):
            sides = {title: whole(side) for title, side in make(path, some).items()}
            against(name, mine, sides, steps / some, goal, options.peer_pairs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--peer-pairs", type=int, default=7, help="0 leaves peers out")
    parser.add_argument("--peer-batches", type=int, default=150)
    parser.add_argument("--consumer", choices=("last", "each"), default="last")
    parser.add_argument("--rows", type=int, default=None, help="fewer rows, for a short run")
    options = parser.parse_args()
    print(machine(), f"consumer: {options.consumer}", sep=", ")
    with tempfile.TemporaryDirectory() as folder:
        for n, width in ((60_000, 784), (50_000, 12_288)):
            n = options.rows or n
            path = make_file(Path(folder) / f"{width}.npy", n, width)
            figures(path, f"{n} x {width} bytes", options)
