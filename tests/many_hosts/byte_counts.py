"""How many bytes a process reads, counted where it reads them, and how many it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P
from tests.many_hosts.jobs import mesh_of

from cereal import BatchTransform, DataLoader, DiskSampleSource, MemmapSource, save_arrays
from cereal.reading.readers.arrays import ArraysReader

LENGTH, WIDTH = 512, 1024  # rows of 4096 bytes, and a label


def write_rows(folder: Path) -> Path:
    rows = {
        "x": np.arange(LENGTH * WIDTH, dtype=np.int32).reshape(LENGTH, WIDTH),
        "y": np.arange(LENGTH, dtype=np.int32),
    }
    save_arrays(folder / "rows", rows)
    return folder / "rows"


class Counter:
    """Counts what the reader of a file gives, or what a function returns."""

    def __init__(self, path: str) -> None:
        self.path, self.bytes = path, 0
        self._x = np.load(Path(path) / "x.npy", mmap_mode="r")

    def pipeline(self, source: str, batch: int) -> list[Any]:
        made = {"file": self._file, "function": self._function}[source]()
        return [made, BatchTransform(batch, pad_last_batch=True)]

    def _function(self) -> Any:
        def read(index: int) -> Any:
            found = {"x": self._x[index], "y": np.int32(index)}
            self.bytes += found["x"].nbytes + found["y"].nbytes
            return found

        return DiskSampleSource(LENGTH, read, ordering="shuffle")

    def _file(self) -> Any:
        plain = ArraysReader.take

        def take(self_: ArraysReader, indices: np.ndarray) -> list[np.ndarray]:
            found = plain(self_, indices)
            self.bytes += sum(leaf.nbytes for leaf in found)
            return found

        ArraysReader.take = take  # type: ignore[method-assign]  # also of the readers that are made of it, for parts of rows
        return MemmapSource(self.path, ordering="shuffle")


def needed(shape: tuple[int, ...], sharding: Any) -> int:
    """How many numbers of a batch's array are on devices of this process. (Padding counts: a padded
    lane has an element, too, which is read.)"""
    here = np.zeros(shape, np.bool_)
    for index in sharding.addressable_devices_indices_map(shape).values():
        here[index] = True
    return int(here.sum())


def counted(path: str, cells: list[list[Any]], steps: int) -> list[dict[str, int]]:
    """What this process has read in these steps, and its share; for `[mesh, source, batch]`."""
    return [_counted(path, *cell, steps=steps) for cell in cells]


def _counted(path: str, mesh: str, source: str, batch: int, steps: int) -> dict[str, int]:
    plain, counter = ArraysReader.take, Counter(path)
    spec = {"x": P("data", "seq") if mesh == "data x seq" else P("data"), "y": P("data")}
    loader = DataLoader(counter.pipeline(source, batch), workers=2, sharding=(mesh_of(mesh), spec))
    counter.bytes = 0  # to find out the shapes, one element has been read
    last: Any = None
    for pair in loader.iterate(loader.init_state(0), steps=steps):
        last = pair
    loader.close()
    ArraysReader.take = plain
    share = {name: needed(x.shape, x.sharding) for name, x in last[0].items()}
    if source == "function":  # it reads whole elements
        share["x"] = share["y"] * WIDTH
    jax.block_until_ready(last)
    whole = batch * (WIDTH + 1)
    return {
        "read": counter.bytes,
        "share": 4 * steps * sum(share.values()),
        "all": 4 * steps * whole,
    }
