"""Indices are made once, kept beside their file, and never wrong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.sources.tars import npy

from cereal import PipelineError
from cereal.reading.files import kept_index as module
from cereal.reading.files.kept_index import kept_index
from cereal.reading.files.watched import WatchedFile


class Made:
    """Makes an index, and counts how often."""

    def __init__(self, path: Path) -> None:
        self.path, self.times = path, 0

    def __call__(self) -> dict[str, np.ndarray]:
        self.times += 1
        return {"begins": np.arange(3), "size": np.array([self.path.stat().st_size])}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: Any) -> Path:
    monkeypatch.setattr(module, "user_cache", lambda: tmp_path / "cache")
    path = tmp_path / "data" / "x.tar"
    path.parent.mkdir()
    path.write_bytes(b"12345")
    return path


def index(path: Path, make: Any, kind: str = "test 1") -> Any:
    found = kept_index(WatchedFile(path, "X"), kind, make)
    return {name: value.tolist() for name, value in found.items()}


def test_it_is_made_once_and_lies_beside_the_file(path: Path) -> None:
    make = Made(path)
    assert index(path, make) == index(path, make) == {"begins": [0, 1, 2], "size": [5]}
    assert make.times == 1
    assert sorted(os.listdir(path.parent)) == [".x.tar.index.npz", "x.tar"]


def test_a_folder_that_is_moved_takes_it_along(path: Path) -> None:
    make = Made(path)
    index(path, make)
    moved = path.parent.with_name("moved")
    path.parent.rename(moved)
    assert index(moved / "x.tar", make)["size"] == [5]
    assert make.times == 1


def test_a_file_that_has_changed_gets_a_new_one(path: Path) -> None:
    make = Made(path)
    index(path, make)
    path.write_bytes(b"123456")
    assert index(path, make)["size"] == [6]
    os.utime(path, ns=(1, 1))
    index(path, make)
    assert make.times == 3
    index(path, make, "test 2")  # another form of index
    assert make.times == 4


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04" + bytes(100), npy(3)])
def test_an_index_that_cannot_be_read_is_made_again(path: Path, content: bytes) -> None:
    make = Made(path)
    index(path, make)
    kept = path.with_name(".x.tar.index.npz")
    whole = kept.read_bytes()
    for broken in (content, whole[: len(whole) // 2]):
        kept.write_bytes(broken)
        assert index(path, make)["begins"] == [0, 1, 2]
    assert make.times == 3


def test_it_is_never_unpickled(path: Path) -> None:
    make = Made(path)
    index(path, make)
    kept = path.with_name(".x.tar.index.npz")
    with np.load(kept) as entries:
        of = entries["of"]
    np.savez(kept, of=of, begins=np.array([print], object))
    index(path, make)
    assert make.times == 2


def test_where_nobody_may_write_it_lies_in_the_cache(path: Path, tmp_path: Path) -> None:
    path.with_name(".x.tar.index.npz").mkdir()  # in the way: an error, also for root
    make = Made(path)
    assert index(path, make) == index(path, make)
    assert make.times == 1
    assert len(list((tmp_path / "cache" / "indices").iterdir())) == 1
    assert sorted(os.listdir(path.parent)) == [".x.tar.index.npz", "x.tar"]


def test_where_it_can_be_kept_nowhere_it_is_made_every_time(path: Path, tmp_path: Path) -> None:
    path.with_name(".x.tar.index.npz").mkdir()
    (tmp_path / "cache").write_text("a file")
    make = Made(path)
    assert index(path, make) == index(path, make)
    assert make.times == 2


def test_a_file_that_changes_meanwhile_is_an_error(path: Path) -> None:
    def make() -> Any:
        path.write_bytes(b"longer than before")
        return {}

    with pytest.raises(PipelineError, match="has changed"):
        index(path, make)
    assert os.listdir(path.parent) == ["x.tar"]
