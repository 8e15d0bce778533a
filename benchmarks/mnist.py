"""MNIST: from the cache into memory, and from disk into batches.

CEREAL_DATA_DIR=... python benchmarks/mnist.py      # or let it be fetched

load    `MNISTDataset("train")` against a bare gunzip and `np.frombuffer` of the same two files
disk    an epoch of `make_disk_source` against one of the arrays in memory: shuffled, batch 128,
        `iterate`; the files are in the system's cache on both sides
"""

from __future__ import annotations

import gzip
import itertools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from measure import compare, inverse, machine, report_ratio

from cereal import ArraySampleSource, BatchTransform, DataLoader, MemmapSource, MNISTDataset
from cereal.datasets.storage import SplitFiles

BATCH = 128


def bare(paths: list[Path]) -> dict[str, np.ndarray]:
    with gzip.open(paths[0]) as file:
        images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28, 1)
    with gzip.open(paths[1]) as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8).astype(np.int32)
    return {"image": images, "label": labels}


_seeds = itertools.count()


def epoch(loader: DataLoader) -> Any:
    batch: Any = None
    for batch, _ in loader.iterate(loader.init_state(next(_seeds))):  # noqa: B007
        pass
    return batch


def main() -> None:
    print(machine())
    _, found = SplitFiles(MNISTDataset.record, "train", None, True, "benchmark").located()
    with tempfile.TemporaryDirectory() as folder:  # the user's own folder stays as it is
        (Path(folder) / "mnist").mkdir()
        paths = [Path(shutil.copy(path, Path(folder) / "mnist")) for path in found]
        result = inverse(compare(lambda: loaded(folder), lambda: bare(paths)))
        met = result["ratio"] <= 1.5
        report_ratio("MNISTDataset / gunzip and frombuffer", result, "at most 1.5x", met)

        data = MNISTDataset("train", folder).as_array_dict()
        memory = DataLoader([ArraySampleSource(data), BatchTransform(BATCH)])
        source = MNISTDataset.make_disk_source("train", "shuffle", 1024, folder)
        disk = DataLoader([source, BatchTransform(BATCH)])
        result = compare(lambda: epoch(disk), lambda: epoch(memory))
        met = result["ratio"] >= 0.7
        report_ratio("in memory / from disk, epoch of iterate", result, "at least 0.7x", met)
        mapped = {name: np.load(path, mmap_mode="r") for name, path in files_of(folder).items()}
        host = DataLoader([MemmapSource(mapped), BatchTransform(BATCH)])
        result = compare(lambda: epoch(host), lambda: epoch(memory))
        report_ratio("in memory / MemmapSource (as for a GPU)", result, "reported", True)


def loaded(folder: str) -> int:
    return len(MNISTDataset("train", folder))


def files_of(folder: str) -> dict[str, Path]:
    found = Path(folder).glob("mnist/arrays/train-*/*.npy")
    return {path.stem: path for path in found}


if __name__ == "__main__":
    main()
