"""Files are fetched once, checked, and kept where the user says."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import numpy as np
import pytest
from tests.datasets.remote import (
    FOLDER,
    TINY,
    assert_same,
    remote_file,
    tree,
)
from tests.datasets.server import Server, chunked, refused, whole

from cereal import BatchTransform, DataLoader, DatasetError
from cereal.datasets.fetching import obtain

TRAIN = TINY.names("train")
DATA = os.urandom(70_000)


# What comes, and what is left in the folder:


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_file_is_fetched_and_nothing_else_is_there(
    server: Server, tmp_path: Path, kind: str
) -> None:
    file = remote_file("a.bin", DATA, server.serve("/x/a.bin", whole(DATA)), kind=kind)
    path = obtain(file, tmp_path / "deep" / "down")
    assert path == tmp_path / "deep" / "down" / "a.bin"
    assert path.read_bytes() == DATA
    assert tree(path.parent) == {"a.bin", ".lock"}
    assert server.paths() == ["/x/a.bin"]


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_file_of_another_hash_is_not_taken(server: Server, tmp_path: Path, kind: str) -> None:
    url = server.serve("/a.bin", whole(DATA[:-1] + bytes([DATA[-1] ^ 1])))
    with pytest.raises(DatasetError, match=r"a\.bin could not be fetched.*\n.*hash is not the"):
        obtain(remote_file("a.bin", DATA, url, kind=kind), tmp_path)
    assert tree(tmp_path) == {".lock"}


@pytest.mark.parametrize("size", [0, 1, 2**18, 2**18 + 1])
def test_files_of_any_size_are_fetched(server: Server, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    file = remote_file("a.bin", data, server.serve("/a.bin", whole(data)))
    assert obtain(file, tmp_path).read_bytes() == data


def test_a_split_is_fetched_and_read(server: Server, tmp_path: Path) -> None:
    dataset = TINY.dataset(server.url)("train", tmp_path)
    assert_same(dataset.as_array_dict(), TINY.arrays["train"])
    assert sorted(server.paths()) == [f"/{name}" for name in TRAIN]  # nothing of the other split
    assert tree(tmp_path) == {FOLDER, f"{FOLDER}/.lock", *(f"{FOLDER}/{name}" for name in TRAIN)}
    for name in TRAIN:
        assert (tmp_path / FOLDER / name).read_bytes() == TINY.files[name]


def test_both_splits_are_kept_side_by_side(server: Server, tmp_path: Path) -> None:
    make = TINY.dataset(server.url)
    for split in ("train", "test", "train", "test"):
        assert_same(make(split, tmp_path).as_array_dict(), TINY.arrays[split])
    assert tree(tmp_path / FOLDER) == {*TINY.files, ".lock"}
    assert server.count() == len(TINY.files)


def test_a_file_that_is_there_is_not_asked_for(server: Server, tmp_path: Path) -> None:
    make = TINY.dataset(server.url)
    make("train", tmp_path)
    before = {name: (tmp_path / FOLDER / name).stat().st_mtime_ns for name in TRAIN}
    asked = server.count()
    server.close()
    assert_same(make("train", tmp_path).as_array_dict(), TINY.arrays["train"])
    make.make_disk_source("train", cache_dir=tmp_path)
    assert server.count() == asked == len(TRAIN)
    assert before == {name: (tmp_path / FOLDER / name).stat().st_mtime_ns for name in TRAIN}


def test_files_put_there_by_hand_are_not_asked_for(server: Server, tmp_path: Path) -> None:
    TINY.put(tmp_path / FOLDER)
    assert_same(TINY.dataset(server.url)("test", tmp_path).as_array_dict(), TINY.arrays["test"])
    assert server.count() == 0
    assert tree(tmp_path / FOLDER) == set(TINY.files)  # not even a lock


def test_only_the_missing_file_is_asked_for(server: Server, tmp_path: Path) -> None:
    TINY.put(tmp_path / FOLDER, TRAIN[:1])
    assert_same(TINY.dataset(server.url)("train", tmp_path).as_array_dict(), TINY.arrays["train"])
    assert server.paths() == [f"/{TRAIN[1]}"]


def test_the_name_of_the_file_is_ours_not_the_servers(server: Server, tmp_path: Path) -> None:
    disposition = 'attachment; filename="../../../evil.bin"'
    url = server.serve("/get?id=7", whole(DATA, content_disposition=disposition))
    path = obtain(remote_file("a.bin", DATA, url), tmp_path / "in" / "side")
    assert path.read_bytes() == DATA
    assert tree(tmp_path) == {"in", "in/side", "in/side/a.bin", "in/side/.lock"}


# What the user sees:


def test_a_progress_bar_names_the_file(
    server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make = TINY.dataset(server.url)
    make("train", tmp_path)
    printed = capfd.readouterr()
    assert printed.out == ""
    for name in TRAIN:
        assert re.search(rf"{re.escape(name)}: 100%.*B/s\]", printed.err)
    make("train", tmp_path)
    assert capfd.readouterr() == ("", "")  # nothing is fetched, nothing is said


def test_a_progress_bar_counts_bytes_where_nobody_says_how_many_there_are(
    server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = os.urandom(1_200_000)
    obtain(remote_file("a.bin", data, server.serve("/a.bin", chunked(data))), tmp_path)
    last = capfd.readouterr().err.rstrip().rpartition("a.bin: ")[2]
    assert re.match(r"1\.20MB \[", last)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_what_is_written_has_the_usual_rights(server: Server, tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        TINY.dataset(server.url).make_disk_source("train", cache_dir=tmp_path / "data")
    finally:
        os.umask(before)
    for path in (tmp_path / "data").rglob("*"):
        usual = 0o777 if path.is_dir() else 0o666
        assert stat.S_IMODE(path.stat().st_mode) == usual & ~mask, path


# Where files are kept:


def test_the_folder_may_be_a_string_a_path_or_begin_with_home(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = TINY.dataset(server.url)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    places = [
        (str(tmp_path / "a string"), "a string"),
        (tmp_path / "späth%20", "späth%20"),
        ("~/mine", "home/mine"),
        (Path("~") / "yours", "home/yours"),
        ("below/here", "below/here"),
    ]
    for given, found in places:
        assert_same(make("train", given).as_array_dict(), TINY.arrays["train"])
        assert tree(tmp_path / found) == {FOLDER, *(f"{FOLDER}/{n}" for n in (*TRAIN, ".lock"))}
    assert {path.name for path in tmp_path.iterdir()} == {"a string", "späth%20", "home", "below"}


def test_the_variable_names_the_folder_and_an_argument_another(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = TINY.dataset(server.url)
    monkeypatch.setenv("CEREAL_DATA_DIR", str(tmp_path / "named"))
    make("train")
    assert set(TRAIN) < tree(tmp_path / "named" / FOLDER)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CEREAL_DATA_DIR", "~/at home")
    make("train")
    assert set(TRAIN) < tree(tmp_path / "at home" / FOLDER)
    make("train", tmp_path / "given")
    assert set(TRAIN) < tree(tmp_path / "given" / FOLDER)
    assert {path.name for path in tmp_path.iterdir()} == {"named", "at home", "given"}


@pytest.mark.parametrize("variable", [None, ""])
def test_without_a_word_files_go_to_the_users_cache(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if variable is not None:
        monkeypatch.setenv("CEREAL_DATA_DIR", variable)
    make = TINY.dataset(server.url)
    make("train")
    (found,) = tmp_path.rglob(TRAIN[0])
    assert found.parent.name == FOLDER
    assert "cereal" in found.parts
    assert_same(make("train").as_array_dict(), TINY.arrays["train"])
    assert server.count() == len(TRAIN)


# Arrays on disk:


def test_a_disk_source_fetches_once_and_reads_what_was_fetched(
    server: Server, tmp_path: Path
) -> None:
    make = TINY.dataset(server.url)
    wanted = TINY.arrays["train"]
    for _ in range(2):
        source = make.make_disk_source("train", ordering="sequential", cache_dir=tmp_path)
        batch, _ = DataLoader([source, BatchTransform(len(wanted["label"]))]).batch_at(0, 0)
        assert_same({name: np.asarray(array) for name, array in batch.items()}, wanted)
    assert server.count() == len(TRAIN)
    (arrays,) = [p for p in (tmp_path / FOLDER / "arrays").iterdir() if p.name != ".lock"]
    assert arrays.name.startswith("train-")
    assert tree(arrays) == {"image.npy", "label.npy", "tree.json"}


def test_arrays_are_written_once_even_if_files_are_taken_as_they_are(
    server: Server, tmp_path: Path
) -> None:
    make = TINY.dataset(server.url)
    for _ in range(3):
        make.make_disk_source("train", cache_dir=tmp_path, verify=False)
    shelf = tmp_path / FOLDER / "arrays"
    assert len([path for path in shelf.iterdir() if path.name != ".lock"]) == 1


# Things in the way:


def test_a_link_to_nowhere_is_replaced_by_the_file(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.bin").symlink_to(tmp_path / "gone.bin")
    file = remote_file("a.bin", DATA, server.serve("/a.bin", whole(DATA)))
    assert obtain(file, tmp_path).read_bytes() == DATA
    assert tree(tmp_path) == {"a.bin", ".lock"}


def test_a_link_to_the_file_is_followed(server: Server, tmp_path: Path) -> None:
    TINY.put(tmp_path / "shared")
    (tmp_path / FOLDER).mkdir()
    for name in TRAIN:
        (tmp_path / FOLDER / name).symlink_to(tmp_path / "shared" / name)
    dataset = TINY.dataset(server.url)("train", tmp_path)
    assert_same(dataset.as_array_dict(), TINY.arrays["train"])
    assert server.count() == 0


def test_a_folder_in_place_of_the_file_is_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.bin").mkdir()
    file = remote_file("a.bin", DATA, server.serve("/a.bin", whole(DATA)))
    with pytest.raises(DatasetError, match=rf"{re.escape(str(tmp_path / 'a.bin'))}.*directory"):
        obtain(file, tmp_path)
    assert tree(tmp_path) == {"a.bin", ".lock"}


@pytest.mark.parametrize("where", ["file/below", "/proc/cereal/below", "/dev/null/below"])
def test_a_folder_that_cannot_be_is_named_with_the_fix(
    server: Server, tmp_path: Path, where: str
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DatasetError) as caught:
        TINY.dataset(server.url)("train", tmp_path / where)
    said = str(caught.value)
    assert f"TinyDataset: {tmp_path / where / FOLDER / TRAIN[0]} could not be written: " in said
    assert "name another folder, with `cache_dir=` or the variable CEREAL_DATA_DIR" in said
    assert (tmp_path / "file").read_text() == "not a folder"
    assert server.count() == 0


def test_a_mirror_without_the_file_leaves_no_folder_of_arrays(tmp_path: Path) -> None:
    with Server() as empty:
        for name in TRAIN:
            empty.serve(f"/{name}", refused(404))
        with pytest.raises(DatasetError, match="HTTP 404 Not Found"):
            TINY.dataset(empty.url).make_disk_source("train", cache_dir=tmp_path)
    assert not list(tmp_path.rglob("*.npy"))
