"""A dataset like MNIST, but tiny and on servers of the tests', and what plain NumPy says of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.datasets.files import idx, zipped
from tests.datasets.server import Server, whole

from cereal.datasets import fetching
from cereal.datasets.base import RecordedDataset
from cereal.datasets.readers.idx import read_pair
from cereal.datasets.record import Form, Record, RemoteFile

jax.devices()  # now: its start takes a thread for a while, which a test would be blamed for
FOLDER = "tiny"
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


def hash_of(data: bytes, kind: str = "sha256") -> str:
    return f"{kind}:{hashlib.new(kind, data).hexdigest()}"


def remote_file(name: str, data: bytes, *urls: str, kind: str = "sha256") -> RemoteFile:
    return RemoteFile(name, hash_of(data, kind), urls)


@dataclass(frozen=True)
class Tiny:
    """Images and labels of two splits: as arrays, and as files by name."""

    arrays: dict[str, dict[str, np.ndarray]]
    files: dict[str, bytes]

    def names(self, split: str) -> list[str]:
        return [f"{split}-images.gz", f"{split}-labels.gz"]

    def record(self, *places: str) -> Record:
        """Its record, when it lies at these addresses."""
        known = {
            name: remote_file(name, data, *(f"{place}/{name}" for place in places))
            for name, data in self.files.items()
        }
        by_split = {s: tuple(known[name] for name in self.names(s)) for s in self.arrays}
        return Record("Tiny", FOLDER, tuple(self.arrays), (Form(read_pair, by_split),))

    def dataset(self, *places: str) -> type[RecordedDataset[Any]]:
        return dataset_of(self.record(*places))

    def put(self, folder: Path, names: Sequence[str] | None = None) -> None:
        """Lays files into a folder, as a user does by hand."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in self.files if names is None else names:
            (folder / name).write_bytes(self.files[name])

    def serve(self, server: Server) -> None:
        for name, data in self.files.items():
            server.serve(f"/{name}", whole(data))


def dataset_of(record: Record) -> type[RecordedDataset[Any]]:
    return type("TinyDataset", (RecordedDataset,), {"record": record})


def make_tiny(n: int = 6, seed: int = 0, *, blank: bool = False) -> Tiny:
    """`n` images for training and `n - 1` for testing; blank ones pack well."""
    rng, arrays, files = np.random.default_rng(seed), {}, {}
    for split, count in (("train", n), ("test", n - 1)):
        pixels = rng.integers(0, 256, (count, 28, 28), np.uint8) * np.uint8(not blank)
        labels = rng.integers(0, 10, count, np.uint8)
        arrays[split] = {"image": pixels[..., None], "label": labels.astype(np.int32)}
        files[f"{split}-images.gz"], files[f"{split}-labels.gz"] = (
            zipped(idx(pixels)),
            zipped(idx(labels)),
        )
    return Tiny(arrays, files)


TINY = make_tiny()


def assert_same(found: dict[str, Any], wanted: dict[str, np.ndarray]) -> None:
    assert set(found) == set(wanted)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def alone(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """No proxy, no folder of data, no home of the user's: the same on every machine."""
    for name in (*PROXIES, "xdg_cache_home", "cereal_data_dir"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(fetching, "PAUSE", 0.001)


def tree(folder: Path) -> set[str]:
    """Every file and folder below a folder, hidden ones too."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
