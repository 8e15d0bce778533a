"""HDF5 and Zarr: 100,000 rows of 64 float32, batches of 256, into JAX arrays.

    python benchmarks/stores.py [--rows N] [--pairs N]

    contiguous   an HDF5 dataset in one piece, shuffled, against h5py by hand: the sorted indices of
                 a batch as one selection, put into their order
    chunks       chunks of 2,000 rows, compressed, in blocks of a chunk (`BlockShuffle(2000)`),
                 against a loop by hand that reads one chunk after another, shuffles its rows, and
                 cuts batches; each chunk is decoded once on both sides. What is kept from epoch to
                 epoch is dropped before each run.
    shuffled     the same chunks in any order: reported, for 1 GB of decoded chunks is kept

The loaders read in the caller (`workers=0`) or with default settings. A library that is not
installed is left out.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from measure import compare, machine, report_ratio

from cereal import BatchTransform, BlockShuffle, DataLoader, HDF5Source, ZarrSource

BATCH, WIDTH, CHUNK = 256, 64, 2000
seeds = itertools.count()


def library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"{name}: not installed")
        return None


def values(n: int) -> np.ndarray:
    # Numbers of few digits: what compression is for.
    return np.random.default_rng(0).integers(0, 1000, (n, WIDTH)).astype(np.float32) / 8


def epoch_of(source: Any, workers: int | None) -> Callable[[], Any]:
    loader = DataLoader([source, BatchTransform(BATCH, drop_last=True)], workers=workers)

    def run() -> Any:
        vars(source.data.table).pop("_taken", None)
        last = None
        for batch, _ in loader.iterate(loader.init_state(next(seeds)), epochs=1):
            last = batch
        return last

    return run


def selected(dataset: Any) -> Callable[[], Any]:
    """h5py's own selection of rows, which must ascend."""

    def run() -> Any:
        order, last = np.random.default_rng(next(seeds)).permutation(dataset.shape[0]), None
        for begin in range(0, dataset.shape[0] - BATCH + 1, BATCH):
            indices = order[begin : begin + BATCH]
            ascending = np.argsort(indices)
            rows = np.empty((BATCH, WIDTH), np.float32)
            rows[ascending] = dataset[indices[ascending]]
            last = jax.device_put(rows)
        return last

    return run


def scanned(array: Any) -> Callable[[], Any]:
    """Chunk by chunk, by hand."""

    def batches() -> Iterator[np.ndarray]:
        rng, left = np.random.default_rng(next(seeds)), np.empty((0, WIDTH), np.float32)
        for number in rng.permutation(-(-array.shape[0] // CHUNK)):
            rows = array[number * CHUNK : (number + 1) * CHUNK]
            left = np.concatenate([left, rows[rng.permutation(len(rows))]])
            for begin in range(0, len(left) - BATCH + 1, BATCH):
                yield left[begin : begin + BATCH]
            left = left[len(left) // BATCH * BATCH :]

    def run() -> Any:
        last = None
        for batch in batches():
            last = jax.device_put(batch)
        return last

    return run


def figures(name: str, make: Callable[[], Any], hand: Any, goal: float, pairs: int) -> None:
    for title, workers in (("workers=0", 0), ("default", None)):
        run = epoch_of(make(), workers)
        run()
        result = compare(run, hand, pairs)
        judged = goal and workers == 0  # on few cores, who reads by default depends on the moment
        words = f"at least {goal}x" if judged else "reported"
        met = not judged or result["ratio"] >= goal
        report_ratio(f"{name}, {title}: by hand / iterate", result, words, met)


def hdf5_figures(folder: Path, n: int, pairs: int) -> None:
    h5py = library("h5py")
    if h5py is None:
        return
    path, data = folder / "a.h5", values(n)
    with h5py.File(path, "w") as file:
        file["whole"] = data
        file.create_dataset("chunks", data=data, chunks=(CHUNK, WIDTH), compression="gzip")
    with h5py.File(path, "r") as file:
        make = lambda: HDF5Source(path, "whole", "shuffle")  # noqa: E731
        figures("HDF5, contiguous, shuffled", make, selected(file["whole"]), 5.0, pairs)
        hand = scanned(file["chunks"])
        make = lambda: HDF5Source(path, "chunks", BlockShuffle(CHUNK))  # noqa: E731
        figures("HDF5, chunks, in blocks", make, hand, 0.7, pairs)
        make = lambda: HDF5Source(path, "chunks", "shuffle")  # noqa: E731
        figures("HDF5, chunks, shuffled", make, hand, 0, pairs)


def zarr_figures(folder: Path, n: int, pairs: int) -> None:
    zarr = library("zarr")
    if zarr is None:
        return
    path, data = folder / "a.zarr", values(n)
    array = zarr.create_array(path, shape=data.shape, dtype=data.dtype, chunks=(CHUNK, WIDTH))
    array[...] = data
    hand = scanned(zarr.open(path, mode="r"))
    make = lambda: ZarrSource(path, None, BlockShuffle(CHUNK))  # noqa: E731
    figures("Zarr, chunks, in blocks", make, hand, 0.7, pairs)
    make = lambda: ZarrSource(path, None, "shuffle")  # noqa: E731
    figures("Zarr, chunks, shuffled", make, hand, 0, pairs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--pairs", type=int, default=7)
    asked = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        hdf5_figures(Path(name), asked.rows, asked.pairs)
        zarr_figures(Path(name), asked.rows, asked.pairs)
