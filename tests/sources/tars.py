"""Tars for tests, written by Python's own `tarfile`."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def write_tar(
    path: Path, members: Iterable[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT
) -> Path:
    with tarfile.open(path, "w", format=form) as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def sample(number: int, key: str = "") -> list[tuple[str, bytes]]:
    """A sample with one member of every kind that is decoded, and one that is not."""
    key = key or f"train/{number:04}"
    return [
        (f"{key}.bin", bytes([number]) * (number * 300 + 1)),
        (f"{key}.cls", f"{number}\n".encode()),
        (f"{key}.json", json.dumps({"n": number}).encode()),
        (f"{key}.npy", npy(np.arange(3, dtype=np.float32) + number)),
        (f"{key}.txt", f"number {number} ü".encode()),
    ]


def element(number: int) -> dict[str, Any]:
    """What `TarSource` makes of it."""
    return {
        "__key__": f"train/{number:04}",
        "bin": bytes([number]) * (number * 300 + 1),
        "cls": number,
        "json": {"n": number},
        "npy": [number, number + 1, number + 2],
        "txt": f"number {number} ü",
    }


def plain(value: dict[str, Any]) -> dict[str, Any]:
    """An element without NumPy, to compare it."""
    arrays = (np.ndarray, np.generic)
    return {key: each.tolist() if isinstance(each, arrays) else each for key, each in value.items()}
