"""Damaged files are named and fetched again; offline, the error says what to put where."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

import pytest
from tests.datasets.remote import (
    FOLDER,
    TINY,
    assert_same,
    hash_of,
    make_tiny,
    remote_file,
    tree,
)
from tests.datasets.server import Server, dead_port, whole

from cereal import DatasetError
from cereal.datasets.fetching import obtain

TRAIN = TINY.names("train")
DATA = os.urandom(70_000)


# Damage:

DAMAGES = {
    "truncated": lambda data: data[:-7],
    "altered": lambda data: data[:40] + bytes([data[40] ^ 4]) + data[41:],
    "emptied": lambda data: b"",
    "too long": lambda data: data + b"\0",
    "a web page": lambda data: b"<html>login</html>",
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_file_is_named_and_fetched_again(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    TINY.put(tmp_path / FOLDER)
    path = tmp_path / FOLDER / TRAIN[0]
    wrong = DAMAGES[how](path.read_bytes())
    path.write_bytes(wrong)
    with caplog.at_level(logging.WARNING, "cereal"):
        dataset = TINY.dataset(server.url)("train", tmp_path)
    assert_same(dataset.as_array_dict(), TINY.arrays["train"])
    assert path.read_bytes() == TINY.files[TRAIN[0]]
    assert server.paths() == [f"/{TRAIN[0]}"]
    assert tree(tmp_path / FOLDER) == {*TINY.files, ".lock"}
    (record,) = caplog.records
    said = record.getMessage()
    assert record.levelno == logging.WARNING
    assert f"{path} is damaged" in said
    assert f"{len(wrong):,} bytes" in said
    for data in (wrong, TINY.files[TRAIN[0]]):
        assert hash_of(data).removeprefix("sha256:") in said
    assert "fetched again" in said


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_damage_is_found_by_every_kind_of_hash(server: Server, tmp_path: Path, kind: str) -> None:
    file = remote_file("a.bin", DATA, server.serve("/a.bin", whole(DATA)), kind=kind)
    (tmp_path / "a.bin").write_bytes(DATA[:-1])
    assert obtain(file, tmp_path).read_bytes() == DATA
    assert server.count() == 1


def test_a_file_taken_as_it_is_is_neither_checked_nor_fetched(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = make_tiny(4, seed=1)
    own.put(tmp_path / FOLDER)
    make = TINY.dataset(server.url)
    assert_same(make("train", tmp_path, verify=False).as_array_dict(), own.arrays["train"])
    assert server.count() == 0
    assert not caplog.records


def test_a_download_is_checked_even_if_files_there_are_not(server: Server, tmp_path: Path) -> None:
    own = make_tiny(6, seed=1)
    for name in TRAIN:
        server.serve(f"/{name}", whole(own.files[name]))
    with pytest.raises(DatasetError, match="hash is not the right one"):
        TINY.dataset(server.url)("train", tmp_path, verify=False)
    assert tree(tmp_path / FOLDER) == {".lock"}


def test_a_damaged_file_offline_is_named_with_what_is_wrong(tmp_path: Path) -> None:
    TINY.put(tmp_path / FOLDER)
    path = tmp_path / FOLDER / TRAIN[1]
    path.write_bytes(TINY.files[TRAIN[1]][:-3])
    place = dead_port()
    with pytest.raises(DatasetError) as caught:
        TINY.dataset(place)("train", tmp_path)
    said = str(caught.value)
    assert f"TinyDataset: {TRAIN[1]} could not be fetched" in said
    assert f"{path} is damaged (it has {len(TINY.files[TRAIN[1]]) - 3:,} bytes" in said
    assert f"{place}/{TRAIN[1]}: no connection" in said
    assert path.read_bytes() == TINY.files[TRAIN[1]][:-3]  # what the user has stays


# Offline:


def offline(folder: Path, place: str) -> str:
    with pytest.raises(DatasetError) as caught:
        TINY.dataset(place)("train", folder)
    return str(caught.value)


def test_offline_the_error_says_what_to_put_where(tmp_path: Path) -> None:
    place = dead_port()
    said = offline(tmp_path, place)
    assert said.startswith(f"TinyDataset: {TRAIN[0]} could not be fetched.")
    assert f"{place}/{TRAIN[0]}: no connection" in said
    assert f"put these files into {tmp_path / FOLDER}" in said
    for name in TRAIN:
        assert f"{name}  ({hash_of(TINY.files[name])})" in said
    for name in TINY.names("test"):
        assert name not in said  # files of the other split would not help
    assert f"set CEREAL_DATA_DIR to a folder that has them in its subfolder '{FOLDER}'" in said
    assert tree(tmp_path) <= {FOLDER, f"{FOLDER}/.lock"}


def test_what_the_offline_error_says_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = dead_port()
    (named,) = re.findall(r"put these files into (.*):\n", offline(tmp_path, place))
    TINY.put(Path(named), TRAIN)
    make = TINY.dataset(place)
    assert_same(make("train", tmp_path).as_array_dict(), TINY.arrays["train"])
    TINY.put(tmp_path / "elsewhere" / FOLDER, TINY.names("test"))
    monkeypatch.setenv("CEREAL_DATA_DIR", str(tmp_path / "elsewhere"))
    assert_same(make("test").as_array_dict(), TINY.arrays["test"])


def test_a_file_without_mirrors_can_only_be_put_there(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="No place is known to fetch it from") as caught:
        TINY.dataset()("train", tmp_path)
    assert f"put these files into {tmp_path / FOLDER}" in str(caught.value)
    TINY.put(tmp_path / FOLDER)
    assert_same(TINY.dataset()("train", tmp_path).as_array_dict(), TINY.arrays["train"])


def test_a_disk_source_offline_says_the_same_and_leaves_no_arrays(tmp_path: Path) -> None:
    with pytest.raises(
        DatasetError, match=r"TinyDataset\.make_disk_source: train-images\.gz could"
    ):
        TINY.dataset(dead_port()).make_disk_source("train", cache_dir=tmp_path)
    left = {Path(each).name for each in tree(tmp_path)}
    assert left <= {FOLDER, "arrays", ".lock"}
