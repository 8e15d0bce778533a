"""A SQLite table of 1,000,000 rows, shuffled by its primary key, batches of 256, into JAX arrays.

    python benchmarks/sqlite.py [--rows N] [--pairs N] [--batches N]

    numbers   id, three numbers and a label
    blobs     the same, and a BLOB of 64 bytes, which becomes an array of uint8

By hand: the keys of a batch, sorted, in one `SELECT ... WHERE id IN (?, ...)`, whose statement
SQLite keeps; the columns as arrays of 32 bits, put into the order of the batch, and on the device.
Both sides have the same cache of pages. Of the loader: with default settings, which measures who
reads, and with `workers=0`. The file is in a temporary folder, and was written just before.
"""

from __future__ import annotations

import argparse
import itertools
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from measure import compare, machine, report_ratio

from cereal import BatchTransform, DataLoader, SQLiteSource

BATCH, WIDTH, GOAL = 256, 64, 0.7
seeds = itertools.count()


def make_file(path: Path, n: int, blobs: bool) -> Path:
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(n, 2)).tolist()
    counts = rng.integers(0, 2**20, n).tolist()
    labels = rng.integers(0, 10, n).tolist()
    rows: Iterator[Any] = (
        (i, counts[i], *numbers[i], labels[i], *([rng.bytes(WIDTH)] if blobs else []))
        for i in range(n)
    )
    database = sqlite3.connect(path)
    extra = ", image BLOB" if blobs else ""
    database.execute(
        f"CREATE TABLE t (id INTEGER PRIMARY KEY, a INTEGER, x REAL, y REAL, label INTEGER{extra})"
    )
    database.executemany(f"INSERT INTO t VALUES (?, ?, ?, ?, ?{', ?' if blobs else ''})", rows)
    database.commit()
    database.close()
    return path


def by_hand(path: Path, n: int, blobs: bool) -> tuple[Callable[..., Any], Callable[[int], Any]]:
    """A function from keys to a batch, and one that makes so many batches."""
    database = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    database.execute("PRAGMA cache_size = -65536")
    names = ["id", "a", "x", "y", "label"]
    listed, marks = ", ".join([*names, "image"] if blobs else names), ", ".join("?" * BATCH)
    sql = f"SELECT {listed} FROM t WHERE id IN ({marks})"
    dtypes = [np.int32, np.int32, np.float32, np.float32, np.int32]

    def batch(keys: np.ndarray) -> Any:
        order = np.argsort(keys)
        place = np.empty(BATCH, np.int64)
        place[order] = np.arange(BATCH)
        columns = list(zip(*database.execute(sql, keys[order].tolist()).fetchall(), strict=True))
        made = {
            name: np.array(column, dtype)[place]
            for name, dtype, column in zip(names, dtypes, columns[:5], strict=True)
        }
        if blobs:
            whole = np.frombuffer(b"".join(columns[5]), np.uint8)
            made["image"] = whole.reshape(BATCH, WIDTH)[place]
        return made

    def run(batches: int) -> Any:
        order, last = np.random.default_rng(next(seeds)).permutation(n), None
        for step in range(batches):
            last = jax.device_put(batch(order[step * BATCH : (step + 1) * BATCH]))
        return last

    return batch, run


def ours(path: Path, blobs: bool, workers: int | None) -> Callable[[int], Any]:
    extra = ", image" if blobs else ""
    source = SQLiteSource(
        path,
        f"SELECT id, a, x, y, label{extra} FROM t",
        key="id",
        blobs={"image": "uint8"} if blobs else None,
    )
    loader = DataLoader([source, BatchTransform(BATCH, drop_last=True)], workers=workers)

    def run(batches: int) -> Any:
        last = None
        for batch, _ in loader.iterate(loader.init_state(next(seeds)), steps=batches):
            last = batch
        return last

    return run


def check_alike(path: Path, n: int, blobs: bool) -> None:
    """Both sides give the same arrays for the same rows."""
    mine = jax.tree.map(np.asarray, ours(path, blobs, 0)(1))
    theirs = by_hand(path, n, blobs)[0](mine["id"].astype(np.int64))
    jax.tree.map(np.testing.assert_array_equal, mine, theirs)
    assert all(mine[name].dtype == theirs[name].dtype for name in mine)


def figures(name: str, path: Path, n: int, blobs: bool, batches: int, pairs: int) -> None:
    check_alike(path, n, blobs)
    hand = by_hand(path, n, blobs)[1]
    hand(batches)
    for title, workers in (("default settings", None), ("workers=0", 0)):
        side = ours(path, blobs, workers)
        side(4 * batches)  # who reads has been found out after these
        result = compare(lambda side=side: side(batches), lambda: hand(batches), pairs)
        met = result["ratio"] >= GOAL
        goal = f"at least {GOAL} of the rate" if workers is None else "reported"
        label = f"SQLite, {name}, {batches} batches of {BATCH}, {title}: by hand / iterate"
        report_ratio(label, result, goal, met or workers == 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--batches", type=int, default=400)
    asked = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        for name in ("numbers", "blobs"):
            made = make_file(Path(folder) / f"{name}.db", asked.rows, name == "blobs")
            figures(name, made, asked.rows, name == "blobs", asked.batches, asked.pairs)
