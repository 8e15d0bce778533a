"""Archives: members by name, from any thread, and nothing is written."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import re
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.datasets.files import write_tar, write_zip, zipped
from tests.slowly import slowly

from cereal import DatasetError
from cereal.datasets.readers.archives import ZipMembers, tar_members, unzipped

NOISE = np.random.default_rng(0).bytes(5000)
MEMBERS = {"a/one.bin": NOISE, "a/two.bin": b"two" * 1000, "a/none": b"", "three": b"3"}
DAMAGED = r" is a damaged archive \(.+\); delete it, so that it is fetched again\.$"


def named(path: Path) -> str:
    return "^" + re.escape(str(path))


# gzip


@pytest.mark.parametrize("data", [b"", b"x", b"plain bytes", NOISE * 50])
def test_gzip_is_undone_and_other_bytes_are_left_alone(data: bytes) -> None:
    assert unzipped(zipped(data), Path("x")) == data
    assert unzipped(data, Path("x")) == data


# tar


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_members_come_in_the_order_asked_for(tmp_path: Path, mode: str) -> None:
    write_tar(tmp_path / "x.tar", MEMBERS, mode)
    names = ["three", "a/none", "a/one.bin"]
    assert tar_members(tmp_path / "x.tar", names) == [MEMBERS[name] for name in names]


def test_members_may_begin_with_a_dot(tmp_path: Path) -> None:
    write_tar(tmp_path / "x.tar.gz", {"./a/one.bin": b"one"})
    assert tar_members(tmp_path / "x.tar.gz", ["a/one.bin"]) == [b"one"]


def test_a_member_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    write_tar(path, MEMBERS)
    says = r" has no member 'a/four\.bin'; is it another archive\?$"
    with pytest.raises(DatasetError, match=named(path) + says):
        tar_members(path, ["a/one.bin", "a/four.bin"])


def test_links_and_folders_are_no_members(tmp_path: Path) -> None:
    """A link could show a file of this machine."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE):
        path = tmp_path / "x.tar"
        with tarfile.open(path, "w") as archive:
            info = tarfile.TarInfo("a/one.bin")
            info.type, info.linkname = kind, str(secret)
            archive.addfile(info)
        with pytest.raises(DatasetError, match=r"has no member 'a/one\.bin'"):
            tar_members(path, ["a/one.bin"])


def test_members_that_point_outside_write_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    names = ["../outside", str(tmp_path / "absolute"), "fine"]
    write_tar(folder / "x.tar.gz", dict.fromkeys(names, b"harm"))
    write_zip(folder / "x.zip", dict.fromkeys(names, b"harm"))
    assert tar_members(folder / "x.tar.gz", ["fine"]) == [b"harm"]
    assert ZipMembers(folder / "x.zip").read("../outside") == b"harm"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["inner", "x.tar.gz", "x.zip"]


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_tar_that_is_cut_is_an_error(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "x.tar"
    write_tar(path, MEMBERS, mode)
    data = path.read_bytes()
    for cut in (*range(0, len(NOISE), 67), 511, 512, 513):
        path.write_bytes(data[:cut])
        says = " (is a damaged archive|has no member)"
        with pytest.raises(DatasetError, match=named(path) + says):
            tar_members(path, list(MEMBERS))


@pytest.mark.parametrize("data", [b"", b"<!DOCTYPE html>", NOISE, zipped(NOISE), zipped(b"")])
def test_what_is_no_tar_is_damaged(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.tar.gz"
    path.write_bytes(data)
    with pytest.raises(DatasetError, match="(?s)" + named(path) + DAMAGED):
        tar_members(path, ["a"])


@pytest.mark.parametrize("times", [50, slowly(500)])
def test_altered_archives_are_read_or_refused(tmp_path: Path, times: int) -> None:
    """Bytes are changed anywhere, a few at a time; a zip has checksums of what it holds."""
    rng = np.random.default_rng(0)
    small = {"a": NOISE[:40], "b": b"bb" * 30}
    for suffix, write in ((".tar", write_tar), (".zip", write_zip)):
        path = tmp_path / f"x{suffix}"
        for how in ("w", "w:gz") if suffix == ".tar" else (0, 8):
            write(path, small, how)  # type: ignore[operator]
            data = path.read_bytes()
            for _ in range(times):
                altered = bytearray(data)
                for place in rng.integers(0, len(data), rng.integers(1, 4)):
                    altered[place] = rng.integers(0, 256)
                path.write_bytes(altered)
                with contextlib.suppress(DatasetError):
                    found = read_all(path, list(small))
                    assert suffix == ".tar" or found == list(small.values())


def read_all(path: Path, names: list[str]) -> list[bytes]:
    if path.suffix == ".tar":
        return tar_members(path, names)
    archive = ZipMembers(path)
    return [archive.read(name) for name in names]


# zip


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_of_a_zip_are_read_by_name(tmp_path: Path, method: int) -> None:
    write_zip(tmp_path / "x.zip", {"a/": b"", **MEMBERS}, method)
    archive = ZipMembers(tmp_path / "x.zip")
    assert list(archive) == list(MEMBERS)
    assert "three" in archive
    assert "four" not in archive
    assert {name: archive.read(name) for name in archive} == MEMBERS


def test_zips_of_other_writers_are_read(tmp_path: Path) -> None:
    """Written as a stream, with sizes after the data; for sizes of 64 bits; after other bytes."""
    path = tmp_path / "x.zip"

    class Stream(io.RawIOBase):
        def __init__(self) -> None:
            self.parts: list[bytes] = []

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            self.parts.append(bytes(data))
            return len(data)

    stream = Stream()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in MEMBERS.items():
            with archive.open(name, "w", force_zip64=True) as file:
                file.write(data)
    for begin in (b"", b"#!/bin/sh\n"):
        path.write_bytes(begin + b"".join(stream.parts))
        found = ZipMembers(path)
        assert {name: found.read(name) for name in found} == MEMBERS


def test_threads_and_copies_read_one_archive(tmp_path: Path) -> None:
    members = {f"{at}": NOISE[at : at + 500] for at in range(200)}
    write_zip(tmp_path / "x.zip", members, zipfile.ZIP_DEFLATED)
    archive = ZipMembers(tmp_path / "x.zip")
    copy = pickle.loads(pickle.dumps(archive))
    names = list(members) * 5
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda name: (archive.read(name), copy.read(name)), names))
    assert found == [(members[name],) * 2 for name in names]


def test_a_member_of_a_zip_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    write_zip(path, MEMBERS)
    says = r" has no member 'four'; is it another archive\?$"
    with pytest.raises(DatasetError, match=named(path) + says):
        ZipMembers(path).read("four")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_member_whose_bytes_were_altered_is_damaged(tmp_path: Path, method: int) -> None:
    path = tmp_path / "x.zip"
    write_zip(path, MEMBERS, method)
    data = bytearray(path.read_bytes())
    data[data.index(b"a/two.bin") + 12] ^= 0xFF
    path.write_bytes(data)
    archive = ZipMembers(path)
    assert archive.read("a/one.bin") == NOISE
    says = r": the member 'a/two\.bin' is damaged \(.+\); delete the archive, so that it is fetched"
    with pytest.raises(DatasetError, match=named(path) + says):
        archive.read("a/two.bin")


def test_a_wrong_checksum_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    write_zip(path, {"one": b"some bytes"})
    path.write_bytes(path.read_bytes().replace(b"some bytes", b"same bytes"))
    with pytest.raises(
        DatasetError, match=r"the member 'one' is damaged \(its checksum is wrong\)"
    ):
        ZipMembers(path).read("one")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_that_are_not_known_are_named(tmp_path: Path, method: int) -> None:
    write_zip(tmp_path / "x.zip", MEMBERS, method)
    says = rf"the member 'three' is damaged \(compressed by a method that is not known, {method}\)"
    with pytest.raises(DatasetError, match=says):
        ZipMembers(tmp_path / "x.zip").read("three")


@pytest.mark.parametrize("data", [b"", b"<!DOCTYPE html>", NOISE, b"PK\x03\x04", b"PK\x05\x06"])
def test_what_is_no_zip_is_damaged(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.zip"
    path.write_bytes(data)
    with pytest.raises(DatasetError, match="(?s)" + named(path) + DAMAGED):
        ZipMembers(path)


def test_a_zip_cut_anywhere_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    write_zip(path, MEMBERS)
    data = path.read_bytes()
    for cut in [*range(0, len(data), 101), *range(len(data) - 120, len(data))]:
        path.write_bytes(data[:cut])
        with pytest.raises(DatasetError, match=named(path) + " is a damaged archive"):
            ZipMembers(path)


def test_an_archive_that_goes_away_or_shrinks_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    write_zip(path, MEMBERS)
    archive = ZipMembers(path)
    os.truncate(path, 20)
    with pytest.raises(DatasetError, match="the member 'three' is damaged"):
        archive.read("three")
    path.unlink()
    with pytest.raises(OSError, match=r"x\.zip"):
        archive.read("three")


def test_a_newer_zip_is_named(tmp_path: Path) -> None:
    """Its directory says that a program of version 25.5 is needed."""
    path = tmp_path / "x.zip"
    write_zip(path, {"one": b"some bytes"})
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 6] = 255
    path.write_bytes(data)
    with pytest.raises(DatasetError, match=named(path) + " is a damaged archive"):
        ZipMembers(path)
