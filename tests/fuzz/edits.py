"""Data that changes between two epochs: arrays written into, files edited.

Arrays are copied when a source is built, so nothing done to them later is seen. Files, and the
elements of datasets, are read when they are asked for: a new epoch has what is there then; a
mapped file that was written to is refused. Where results are kept in files, other data is
recognised, or refused.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.fuzz.reference import DifferenceError

import cereal

N = 6


def values(loader: Any, way: str) -> list[Any]:
    """One number of every element of an epoch."""
    state = loader.init_state(0)
    if way == "scan":
        stacked = np.asarray(loader.scan_epoch(state, 0, _first_numbers)[2]).reshape(-1)
        return stacked.tolist()
    return [x for batch, _ in loader.iterate(state) for x in _numbers(batch).tolist()]


def _first_numbers(count: Any, batch: Any, mask: Any) -> Any:
    del mask
    return count + 1, _numbers(batch)


def _numbers(batch: Any) -> Any:
    return batch.reshape(batch.shape[0], -1)[:, -1]


def loader_of(source: Any, *stages: Any) -> Any:
    return cereal.DataLoader([source, *stages, cereal.BatchTransform(3)])


def require_same(found: list[Any], wanted: list[Any], what: str) -> None:
    if found != wanted:
        raise DifferenceError(f"{what}: {found} is not {wanted}")


def arrays_written_into(folder: Path, way: str) -> None:
    """Also those that a source holds as words of 32 bits, and windows."""
    del folder
    makers: list[tuple[Any, Callable[[Any], Any]]] = [
        (np.arange(N, dtype=np.float32), sequential),
        (np.arange(N, dtype=np.int32), sequential),
        (np.arange(N * 400, dtype=np.uint8).reshape(N, 20, 20), sequential),
        (np.arange(N + 1, dtype=np.int32), lambda a: cereal.WindowSource(a, 2, ordering=in_order)),
    ]
    for array, make in makers:
        loader = loader_of(make(array))
        before = values(loader, way)
        array[:] = 77
        require_same(values(loader, way), before, f"{array.dtype}{list(array.shape)} written into")


in_order = "sequential"


def sequential(array: Any) -> Any:
    return cereal.ArraySampleSource(array, ordering=in_order)


def weights_written_into(folder: Path, way: str) -> None:
    del folder
    weights, indices = np.ones(N), np.arange(N)
    for order, array in ((cereal.WeightedSampling(weights), weights), (indices, indices)):
        loader = loader_of(cereal.RangeSource(N, ordering=order))
        before = values(loader, way)
        array[:] = 0
        array[2] = 2
        require_same(values(loader, way), before, "an order whose array was written into")


def elements_of_a_dataset(folder: Path, way: str) -> None:
    del folder
    rows = [np.float32(i) for i in range(N)]
    loader = loader_of(cereal.DatasetSource(rows))
    values(loader, way)
    rows[:] = [row + np.float32(10) for row in rows]
    require_same(values(loader, way), [10.0 + i for i in range(N)], "elements replaced")


def write_files(folder: Path, shift: int) -> None:
    for i in range(N):
        np.save(folder / f"{i}.npy", np.float32(i + shift))


def files_edited(folder: Path, way: str) -> None:
    write_files(folder, 0)
    source = cereal.DiskSampleSource(N, lambda i: np.load(folder / f"{i}.npy"), ordering=in_order)
    loader = loader_of(source)
    values(loader, way)
    write_files(folder, 10)
    require_same(values(loader, way), [10.0 + i for i in range(N)], "files edited")


def mapped_file_edited(folder: Path, way: str) -> None:
    path = folder / "rows.npy"
    np.save(path, np.arange(N, dtype=np.float32))
    loader = loader_of(cereal.MemmapSource(path, ordering=in_order))
    values(loader, way)
    time.sleep(0.01)  # longer than the ticks in which a file system writes down its times
    np.load(path, mmap_mode="r+")[:] += 10
    try:
        found = values(loader, way)
    except cereal.PipelineError as error:
        if "has changed since the source was built" in str(error):
            return
        raise
    raise DifferenceError(f"a mapped file edited: {found} was read in silence")


def mapped_file_replaced(folder: Path, way: str) -> None:
    path = folder / "rows.npy"
    for shift in (0, 10):
        np.save(folder / "new.npy", np.arange(shift, shift + N, dtype=np.float32))
        (folder / "new.npy").replace(path)
        found = values(loader_of(cereal.MemmapSource(path, ordering=in_order)), way)
        require_same(found, [float(shift + i) for i in range(N)], "a mapped file replaced")


def cache_over_edited_files(folder: Path, way: str) -> None:
    """Nothing in the code has changed; the cache must look at the data."""

    def read(i: int) -> Any:
        return np.load(folder / f"{i}.npy")

    for shift in (0, 10):
        write_files(folder, shift)
        source = cereal.DiskSampleSource(N, read, ordering=in_order)
        try:
            found = values(loader_of(source, cereal.CacheTransform(folder / "cache")), way)
        except cereal.CerealError:
            return
        require_same(found, [float(shift + i) for i in range(N)], "a cache over edited files")


def selection_over_edited_files(folder: Path, way: str) -> None:
    path = folder / "rows.npy"
    for shift in (0, 3):
        np.save(path, np.arange(shift, shift + N, dtype=np.float32))
        source = cereal.MemmapSource(path, ordering=in_order)
        try:
            source = cereal.select(source, lambda x: x < 5, cache=folder / "select")
        except cereal.CerealError:
            return
        found = values(loader_of(source, cereal.MapTransform(lambda x: x)), way)
        wanted = [float(shift + i) for i in range(N) if shift + i < 5]
        require_same(found[: len(wanted)], wanted, "a selection over an edited file")


EDITS: list[Callable[[Path, str], None]] = [
    arrays_written_into,
    weights_written_into,
    elements_of_a_dataset,
    files_edited,
    mapped_file_edited,
    mapped_file_replaced,
    cache_over_edited_files,
    selection_over_edited_files,
]


def check_edit(seed: int) -> tuple[str, str]:
    """Draws an edit and a way to run; raises a `DifferenceError`."""
    edit, way = EDITS[seed % len(EDITS)], ("iterate", "scan")[seed // len(EDITS) % 2]
    with tempfile.TemporaryDirectory() as folder:
        edit(Path(folder), way)
    return edit.__name__, way
