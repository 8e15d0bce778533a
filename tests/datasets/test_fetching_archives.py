"""Archives that try to write outside of the cache write nothing: nothing is unpacked at all."""

from __future__ import annotations

import dataclasses
import io
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.datasets.files import idx, zipped
from tests.datasets.remote import alone, assert_same, dataset_of, remote_file, tree
from tests.datasets.server import Server, whole

from cereal import CIFAR10Dataset, DatasetError, EMNISTDataset
from cereal.datasets.base import RecordedDataset
from cereal.datasets.record import Form, Record

BATCH = "cifar-10-batches-bin/test_batch.bin"
PARTS = [f"gzip/emnist-balanced-test-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")]
EVIL = b"written by an archive"


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    alone(monkeypatch, tmp_path / "home")
    monkeypatch.chdir(tmp_path / "home")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        yield made


def one_file(record: Record, data: bytes, server: Server) -> type[RecordedDataset[Any]]:
    """A dataset that is one archive on a server, read as the record's first form is."""
    url = server.serve("/archive", whole(data))
    form = Form(record.forms[0].read, {"test": (remote_file("archive", data, url),)})
    return dataset_of(dataclasses.replace(record, splits=("test",), forms=(form,)))


def photographs(n: int = 3) -> tuple[bytes, dict[str, np.ndarray]]:
    """Records of CIFAR-10, and the arrays that they are."""
    rng = np.random.default_rng(0)
    image, label = rng.integers(0, 256, (n, 32, 32, 3), np.uint8), np.arange(n, dtype=np.uint8)
    rows = [bytes([y]) + x.transpose(2, 0, 1).tobytes() for x, y in zip(image, label, strict=True)]
    return b"".join(rows), {"image": image, "label": label.astype(np.int32)}


def evil_names(root: Path) -> list[str]:
    return [
        "../evil",
        "../../evil",
        "../../../../../../../../../../" + str(root / "evil").lstrip("/"),
        str(root / "evil"),
        "cifar-10-batches-bin/../../evil",
        "outside/evil",
        ".lock",
        "archive",
        "..",
        "C:\\evil",
    ]


def evil_tar(root: Path, members: dict[str, bytes], links: dict[str, str]) -> bytes:
    """A .tar.gz with these members, after others that point outside."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:

        def link(name: str, target: str, kind: bytes) -> None:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            archive.addfile(info)

        link("outside", str(root), tarfile.SYMTYPE)
        link("cifar-10-batches-bin", str(root), tarfile.SYMTYPE)
        link("hard", str(root / "secret"), tarfile.LNKTYPE)
        link("pipe", "", tarfile.FIFOTYPE)
        for name, target in links.items():
            link(name, target, tarfile.SYMTYPE)
        for name, data in [*((name, EVIL) for name in evil_names(root)), *members.items()]:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o6777
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def evil_zip(root: Path, members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        link = zipfile.ZipInfo("outside")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, str(root))
        for name, data in [*((name, EVIL) for name in evil_names(root)), *members.items()]:
            archive.writestr(name, data)
    return out.getvalue()


def assert_nothing_else(root: Path, *more: str) -> None:
    """The archive, the lock and what is named: nothing else is anywhere below the root."""
    folder = next(path for path in (root / "cache").iterdir())
    below = {"archive", ".lock", *more}
    assert tree(folder) == below
    outside = {"home", "secret", "cache", f"cache/{folder.name}"}
    assert tree(root) == outside | {f"cache/{folder.name}/{name}" for name in below}
    assert (root / "secret").read_bytes() == b"the user's own"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_bytes(b"the user's own")
    return tmp_path


def test_a_tar_archive_writes_nothing_outside(server: Server, root: Path) -> None:
    data, arrays = photographs()
    archive = evil_tar(root, {BATCH: data}, {})
    dataset = one_file(CIFAR10Dataset.record, archive, server)("test", root / "cache")
    assert_same(dataset.as_array_dict(), arrays)
    assert_nothing_else(root)


def test_a_zip_archive_writes_nothing_outside(server: Server, root: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (4, 28, 28), np.uint8)
    label = np.arange(4, dtype=np.uint8)
    members = (zipped(idx(image)), zipped(idx(label)))
    archive = evil_zip(root, dict(zip(PARTS, members, strict=True)))
    dataset = one_file(EMNISTDataset.record, archive, server)("test", root / "cache")
    wanted = {"image": image[..., None], "label": label.astype(np.int32)}
    assert_same(dataset.as_array_dict(), wanted)
    assert_nothing_else(root)


def test_a_disk_source_unpacks_arrays_and_nothing_else(server: Server, root: Path) -> None:
    data, arrays = photographs()
    make = one_file(CIFAR10Dataset.record, evil_tar(root, {BATCH: data}, {}), server)
    make.make_disk_source("test", cache_dir=root / "cache")
    (found,) = (root / "cache").rglob("image.npy")
    np.testing.assert_array_equal(np.load(found), arrays["image"])
    shelf = f"arrays/{found.parent.name}"
    names = ("image.npy", "label.npy", "tree.json")
    written = {"arrays", "arrays/.lock", shelf, *(f"{shelf}/{name}" for name in names)}
    assert_nothing_else(root, *written)


def test_a_link_in_place_of_a_member_is_not_followed(server: Server, root: Path) -> None:
    (root / "secret").write_bytes(photographs()[0])  # it would do, were it read
    archive = evil_tar(root, {}, {BATCH: str(root / "secret")})
    with pytest.raises(DatasetError, match=rf"archive has no member '{BATCH}'"):
        one_file(CIFAR10Dataset.record, archive, server)("test", root / "cache")
    (root / "secret").write_bytes(b"the user's own")
    assert_nothing_else(root)


def test_an_archive_without_the_member_says_which(server: Server, root: Path) -> None:
    with pytest.raises(DatasetError, match=rf"TinyDataset: .*archive has no member '{PARTS[0]}'"):
        one_file(EMNISTDataset.record, evil_zip(root, {}), server)("test", root / "cache")
    assert_nothing_else(root)
