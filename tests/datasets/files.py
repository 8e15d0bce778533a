"""Small files in the formats of the real datasets, and what every dataset must hold."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import struct
import tarfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal.datasets.record import Form, Record, RemoteFile

Arrays = dict[str, np.ndarray]
CODES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}
PARTS = {"train": "train", "test": "t10k"}
KINDS = ("images-idx3-ubyte", "labels-idx1-ubyte")
TITLES = ("Bald", "Smiling", "Young")


def random_images(n: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), np.uint8)


def random_labels(n: int, classes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, classes, n).astype(np.int32)


# IDX


def idx(array: np.ndarray) -> bytes:
    """As LeCun described it: zero, zero, type, axes; then sizes and numbers, big end first."""
    code = CODES[array.dtype.str[1:]]
    sizes = b"".join(struct.pack(">I", size) for size in array.shape)
    big = array.astype(array.dtype.newbyteorder(">"))
    return bytes([0, 0, code, array.ndim]) + sizes + big.tobytes()


def zipped(data: bytes) -> bytes:
    return gzip.compress(data, 1, mtime=0)


def mnist_names(split: str) -> list[str]:
    return [f"{PARTS[split]}-{kind}.gz" for kind in KINDS]


def write_mnist(
    folder: Path, split: str, images: np.ndarray, labels: np.ndarray, *, plain: bool = False
) -> None:
    """Two IDX files of one split, by MNIST's names; `plain` leaves the contents unzipped."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(mnist_names(split), (images, labels), strict=True):
        data = idx(array.astype(np.uint8))
        (folder / name).write_bytes(data if plain else zipped(data))


def emnist_names(subset: str, split: str) -> list[str]:
    return [f"gzip/emnist-{subset}-{split}-{kind}.gz" for kind in KINDS]


def write_emnist(
    folder: Path, parts: Mapping[tuple[str, str], tuple[np.ndarray, np.ndarray]]
) -> None:
    """NIST's `gzip.zip`: four files for each subset."""
    folder.mkdir(parents=True, exist_ok=True)
    members = {}
    for (subset, split), arrays in parts.items():
        for name, array in zip(emnist_names(subset, split), arrays, strict=True):
            members[name] = zipped(idx(array.astype(np.uint8)))
    write_zip(folder / "gzip.zip", members)


# Archives


def write_zip(path: Path, members: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), data, method)


def write_tar(path: Path, members: Mapping[str, bytes], mode: Any = "w:gz") -> None:
    with tarfile.open(path, mode) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


# CIFAR


def planes(images: np.ndarray) -> np.ndarray:
    """Rows of 3072 bytes: all red, then all green, then all blue."""
    return np.stack([np.concatenate([each[..., c].ravel() for c in range(3)]) for each in images])


def records(images: np.ndarray, *labels: np.ndarray) -> bytes:
    rows = planes(images)
    return b"".join(
        bytes(int(column[at]) for column in labels) + rows[at].tobytes() for at in range(len(rows))
    )


class Python2:
    """Writes pickles with the opcodes of Python 2's cPickle, protocol 2; text is bytes there."""

    def __init__(self) -> None:
        self.memo = 0

    def dumps(self, value: Any) -> bytes:
        self.memo = 0
        return b"\x80\x02" + self.value(value) + b"."

    def value(self, value: Any) -> bytes:
        if isinstance(value, dict):
            items = b"".join(self.value(k) + self.value(v) for k, v in value.items())
            return b"}" + self.put() + b"(" + items + b"u"
        if isinstance(value, list):
            return b"]" + self.put() + b"".join(self.chunk(part) for part in chunks(value))
        if isinstance(value, np.ndarray):
            return self.array(value)
        if isinstance(value, str | bytes):
            return self.text(value) + self.put()
        return number(int(value))

    def put(self) -> bytes:
        self.memo += 1
        return b"q" + bytes([self.memo]) if self.memo < 256 else b"r" + struct.pack("<I", self.memo)

    def chunk(self, part: list[Any]) -> bytes:
        items = b"".join(map(self.value, part))
        return items + b"a" if len(part) == 1 else b"(" + items + b"e"

    def text(self, value: str | bytes) -> bytes:
        data = value.encode("latin-1") if isinstance(value, str) else value
        if len(data) < 256:
            return b"U" + bytes([len(data)]) + data
        return b"T" + struct.pack("<i", len(data)) + data

    def array(self, array: np.ndarray) -> bytes:
        fortran = array.ndim > 1 and array.flags.f_contiguous and not array.flags.c_contiguous
        begin = b"cnumpy.core.multiarray\n_reconstruct\n" + self.put() + b"cnumpy\nndarray\n"
        begin += self.put() + b"K\0\x85U\x01b\x87R" + self.put()
        kind = b"cnumpy\ndtype\n" + self.put() + self.text(array.dtype.str[1:]) + b"K\0K\x01\x87R"
        kind += self.put() + b"(K\x03" + self.text(array.dtype.str[0])
        kind += b"NNN" + b"J\xff\xff\xff\xff" * 2 + b"K\0tb"
        shape = b"".join(map(number, array.shape))
        shape += {1: b"\x85", 2: b"\x86", 3: b"\x87"}[array.ndim]
        raw = array.tobytes("F" if fortran else "C")
        order = b"\x88" if fortran else b"\x89"
        return begin + b"(K\x01" + shape + kind + order + self.text(raw) + b"tb"


def chunks(values: list[Any], size: int = 1000) -> Iterable[list[Any]]:
    return (values[at : at + size] for at in range(0, len(values), size))


def number(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    return (
        b"M" + struct.pack("<H", value) if 0 <= value < 2**16 else b"J" + struct.pack("<i", value)
    )


def python2_batch(images: np.ndarray, **labels: np.ndarray) -> bytes:
    """A batch as the authors pickled it: bytes as keys, labels as a list, names of files."""
    batch = {"batch_label": "training batch 1 of 5"}
    batch |= {name: column.tolist() for name, column in labels.items()}
    batch |= {"data": planes(images), "filenames": [f"{at}.png" for at in range(len(images))]}
    return Python2().dumps(batch)


# CelebA


def jpeg(image: np.ndarray) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(image).save(out, "JPEG", quality=95)
    return out.getvalue()


def smooth_images(n: int, height: int, width: int) -> np.ndarray:
    """Slopes of colour, which JPEG keeps nearly as they are."""
    ramp = np.linspace(0, 1, height)[:, None, None] + np.linspace(0, 1, width)[None, :, None]
    tint = np.random.default_rng(0).uniform(40, 120, (n, 1, 1, 3))
    return (ramp * tint).astype(np.uint8)


def write_celeba(
    folder: Path, photos: Sequence[bytes], splits: Sequence[int], marks: np.ndarray
) -> None:
    """The zip of photos and the two lists beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{at:06}.jpg" for at in range(1, len(photos) + 1)]
    inside = {f"img_align_celeba/{name}": data for name, data in zip(names, photos, strict=True)}
    write_zip(folder / "img_align_celeba.zip", {"img_align_celeba/": b"", **inside})
    partition = "".join(f"{n} {s}\n" for n, s in zip(names, splits, strict=True))
    (folder / "list_eval_partition.txt").write_text(partition)
    rows = [
        f"{name} " + " ".join(f"{mark:2}" for mark in row)
        for name, row in zip(names, marks, strict=True)
    ]
    text = "\r\n".join([str(len(names)), " ".join(TITLES) + " ", *rows, ""])
    (folder / "list_attr_celeba.txt").write_bytes(text.encode())


# Series


def write_csv(
    path: Path, column: str, values: Iterable[Any], *, end: str = "\r\n", bom: bool = False
) -> None:
    """A date and a number per line, in quotes, as the series' files have them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8-sig" if bom else "utf-8") as file:
        rows = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator=end)
        rows.writerow(["Date", column])
        rows.writerows((f"1981-{at}", value) for at, value in enumerate(values))


# Records


def with_own_hashes(record: Record, folder: Path) -> Record:
    """The record, with the hashes of the files that lie in the folder, and nowhere to fetch."""

    def own(file: RemoteFile) -> RemoteFile:
        path = folder / record.folder / file.name
        if not path.is_file():
            return replace(file, urls=())
        return RemoteFile(file.name, f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}")

    def form(old: Form) -> Form:
        return replace(old, files={s: tuple(map(own, files)) for s, files in old.files.items()})

    return replace(record, forms=tuple(map(form, record.forms)))


# What every dataset must hold


def assert_holds(dataset: Any, expected: Mapping[str, np.ndarray]) -> None:
    """Length, elements, slices and arrays are those expected, and nobody can change them."""
    n = len(next(iter(expected.values())))
    assert len(dataset) == n
    assert_arrays(dataset.as_array_dict(), expected)
    for index in (0, n // 2, n - 1, -1, -n, np.int64(0)):
        element = dataset[index]
        assert element.keys() == expected.keys()
        for name, value in element.items():
            assert value.dtype == expected[name].dtype
            np.testing.assert_array_equal(value, expected[name][index])
    for part in (slice(1, 3), slice(None, None, -2), [0, n - 1]):
        assert_arrays(dataset[part], {name: array[part] for name, array in expected.items()})
    assert sum(1 for _ in dataset) == n
    for index in (n, -n - 1):
        with pytest.raises(IndexError, match=f"{index} is out of bounds .* size {n}"):
            dataset[index]
    assert_unchangeable(dataset, expected)


def assert_arrays(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, array in found.items():
        assert type(array) is np.ndarray
        assert array.dtype == expected[name].dtype, name
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def assert_unchangeable(dataset: Any, expected: Mapping[str, np.ndarray]) -> None:
    arrays = dataset.as_array_dict()
    for name, array in arrays.items():
        assert array.flags.writeable
        assert array.flags.c_contiguous
        assert array.base is None
        array[...] = array + 1
        with pytest.raises(ValueError, match="read-only"):
            dataset[0:1][name][...] = 1
    assert_arrays(dataset.as_array_dict(), expected)
