"""Folders that cannot be written and disks that are full: what, where and the fix is said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.datasets.children import Child, Wish
from tests.datasets.remote import FOLDER, TINY, Tiny, assert_same, make_tiny, tree
from tests.datasets.server import Server

LARGE = make_tiny(500)  # files of 390 kB
BLANK = make_tiny(500, blank=True)  # files of 1 kB, arrays of 390 kB
TRAIN = TINY.names("train")
FULL = 100_000
FIX = "name another folder, with `cache_dir=` or the variable CEREAL_DATA_DIR"


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A folder for data; what a test has locked is opened at the end."""
    made = tmp_path / "data"
    made.mkdir()
    yield made
    for path in [made, *sorted(made.rglob("*"))]:
        path.chmod(0o700 if path.is_dir() else 0o600)


def lock_up(folder: Path) -> None:
    for path in [*sorted(folder.rglob("*"), reverse=True), folder]:
        path.chmod(0o555 if path.is_dir() else 0o444)


def wanted(tiny: Tiny, place: str, folder: Path, **options: Any) -> Any:
    """What a process without root's rights finds."""
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    own = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "NO_PROXY": "127.0.0.1"}
    return Child(Wish(tiny.record(place), folder, variables=own, **options)).result()


def error_of(found: Any) -> str:
    assert isinstance(found, tuple), "no error was raised"
    kind, said = found
    assert kind == "DatasetError", said
    return said


# Folders that can only be read:


def test_files_in_a_read_only_folder_are_read(server: Server, data: Path) -> None:
    TINY.put(data / FOLDER)
    lock_up(data)
    found = wanted(TINY, server.url, data, rights=False)
    assert_same(found, TINY.arrays["train"])
    assert tree(data) == {FOLDER, *(f"{FOLDER}/{name}" for name in TINY.files)}
    assert server.count() == 0


def test_arrays_of_a_read_only_folder_go_to_the_users_cache(server: Server, data: Path) -> None:
    TINY.put(data / FOLDER)
    lock_up(data)
    for _ in range(2):
        found = wanted(TINY, server.url, data, rights=False, mapped=True)
        assert_same(found, TINY.arrays["train"])
    (made,) = (data.parent / "home").rglob("image.npy")
    np.testing.assert_array_equal(np.load(made), TINY.arrays["train"]["image"])
    assert tree(data / FOLDER) == set(TINY.files)


def test_arrays_that_a_read_only_folder_has_are_used(server: Server, data: Path) -> None:
    TINY.put(data / FOLDER)
    TINY.dataset(server.url).make_disk_source("train", cache_dir=data)
    lock_up(data)
    found = wanted(TINY, server.url, data, rights=False, mapped=True)
    assert_same(found, TINY.arrays["train"])
    assert not tree(data.parent / "home")


def test_arrays_that_a_read_only_folder_has_not_go_to_the_users_cache(
    server: Server, data: Path
) -> None:
    TINY.put(data / FOLDER)
    TINY.dataset(server.url).make_disk_source("train", cache_dir=data)
    lock_up(data)
    found = wanted(TINY, server.url, data, rights=False, mapped=True, split="test")
    assert isinstance(found, dict), found
    assert_same(found, TINY.arrays["test"])


@pytest.mark.parametrize("mapped", [False, True], ids=["in memory", "on disk"])
def test_a_read_only_folder_without_the_files_is_named_with_the_fix(
    server: Server, data: Path, mapped: bool
) -> None:
    lock_up(data)
    said = error_of(wanted(TINY, server.url, data, rights=False, mapped=mapped))
    where = data / FOLDER / TRAIN[0]
    assert said.startswith(f"TinyDataset: {where} could not be written: Permission denied.")
    assert FIX in said
    for name in TRAIN:
        assert f"\n  {name}  (sha256:" in said
    assert tree(data) == set()
    assert server.count() == 0


def test_a_damaged_file_in_a_read_only_folder_is_said_to_be_damaged(
    server: Server, data: Path
) -> None:
    TINY.put(data / FOLDER)
    (data / FOLDER / TRAIN[1]).write_bytes(b"not what it was")
    lock_up(data)
    said = error_of(wanted(TINY, server.url, data, rights=False))
    path = data / FOLDER / TRAIN[1]
    assert f"{path} is damaged (it has 15 bytes" in said
    assert f"{path} could not be written: Permission denied" in said
    assert FIX in said


def test_a_file_that_may_not_be_read_is_said_so(server: Server, data: Path) -> None:
    TINY.put(data / FOLDER)
    (data / FOLDER / TRAIN[0]).chmod(0)
    said = error_of(wanted(TINY, server.url, data, rights=False))
    assert f"{data / FOLDER / TRAIN[0]} could not be read: Permission denied" in said


def test_when_nothing_can_be_written_anywhere_a_disk_source_says_where(
    server: Server, data: Path
) -> None:
    TINY.put(data / FOLDER)
    lock_up(data)
    home = data.parent / "home"
    home.mkdir(mode=0o500)
    said = error_of(wanted(TINY, server.url, data, rights=False, mapped=True))
    assert said.startswith(f"TinyDataset: {home}")
    assert "could not be written: Permission denied" in said
    assert FIX in said


# Disks that are full:


def test_a_full_disk_is_said_and_nothing_half_is_left(server: Server, data: Path) -> None:
    LARGE.serve(server)
    said = error_of(wanted(LARGE, server.url, data, largest=FULL))
    where = data / FOLDER / TRAIN[0]
    assert said.startswith(f"TinyDataset: {where} could not be written: File too large. Make room")
    assert FIX in said
    assert tree(data / FOLDER) == {".lock"}
    assert server.count() == 1  # another mirror would not help
    assert_same(wanted(LARGE, server.url, data), LARGE.arrays["train"])


def test_a_disk_that_is_full_for_arrays_is_said_and_nothing_half_is_left(
    server: Server, data: Path
) -> None:
    BLANK.serve(server)
    assert all(len(each) < FULL for each in BLANK.files.values())
    said = error_of(wanted(BLANK, server.url, data, largest=FULL, mapped=True))
    assert said.startswith(f"TinyDataset: {data / FOLDER / 'arrays'}/train-")
    assert "could not be written: File too large. Make room" in said
    assert FIX in said
    assert tree(data / FOLDER) == {*TRAIN, ".lock", "arrays", "arrays/.lock"}
    assert_same(wanted(BLANK, server.url, data, mapped=True), BLANK.arrays["train"])
    assert server.count() == len(TRAIN)
