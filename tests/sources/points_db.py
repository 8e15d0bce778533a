"""A small SQLite database, for tests."""

from __future__ import annotations

import functools
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np

from cereal import BatchTransform, DataLoader

N = 40
X = np.arange(N) / 4
LABELS = np.arange(N) % 7
VECTORS = np.arange(N * 3, dtype=np.float32).reshape(N, 3)
ALL = "SELECT id, x, label FROM points"


def write(path: Path, *statements: str, wal: bool = False) -> Path:
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA synchronous = off")
        if wal:
            database.execute("PRAGMA journal_mode = wal")
        for statement in statements:
            database.execute(statement)
        database.commit()
    return path


@functools.cache
def content() -> bytes:
    """A database of forty points."""
    with tempfile.TemporaryDirectory() as folder:
        return _made(Path(folder) / "points.db").read_bytes()


def _made(path: Path) -> Path:
    made = write(
        path,
        "CREATE TABLE points (id INTEGER PRIMARY KEY, x REAL, label INTEGER, name TEXT, v BLOB)",
        "CREATE TABLE names (label INTEGER PRIMARY KEY, word TEXT)",
    )
    with closing(sqlite3.connect(made)) as database:
        rows = [(3 * i + 1, X[i], int(LABELS[i]), f"n{i}", VECTORS[i].tobytes()) for i in range(N)]
        database.executemany("INSERT INTO points VALUES (?, ?, ?, ?, ?)", rows)
        words = [(label, f"w{label}") for label in range(7)]
        database.executemany("INSERT INTO names VALUES (?, ?)", words)
        database.commit()
    return made


def take(source: Any, indices: Any) -> dict[str, Any]:
    """Rows of a table, as its columns."""
    table = source.data.table
    return dict(zip(sorted(table.form), table.take(np.asarray(indices)), strict=True))


def batches(source: Any, size: int = 8, **options: Any) -> list[Any]:
    loader = DataLoader([source, BatchTransform(size, drop_last=True)], **options)
    with loader:
        return [jax.tree.map(np.asarray, b) for b, _ in loader.iterate(loader.init_state(0))]
