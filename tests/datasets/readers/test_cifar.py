"""CIFAR's records and pickles: planes of colour become pixels, and damage is named."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.datasets.files import (
    Python2,
    planes,
    python2_batch,
    random_images,
    random_labels,
    records,
    write_tar,
)

from cereal import DatasetError
from cereal.datasets.readers.cifar import (
    from_pickles,
    from_records,
    reader,
)

IMAGES = random_images(6, 32, 32, 3)
LABELS, COARSE = random_labels(6, 10), random_labels(6, 20, seed=1)
NAMES = {"label": "labels"}
PICKLERS = {
    "python 2": lambda batch: Python2().dumps(batch),
    "python 3": lambda batch: pickle.dumps(batch, 4),
    "python 3, bytes": lambda batch: pickle.dumps({k.encode(): v for k, v in batch.items()}, 2),
}


def test_records_are_labels_and_planes() -> None:
    found = from_records([(records(IMAGES, LABELS), "one")], ["label"])
    assert list(found) == ["image", "label"]
    assert (found["image"].dtype, found["label"].dtype) == (np.uint8, np.int32)
    assert found["image"].flags.c_contiguous
    np.testing.assert_array_equal(found["image"], IMAGES)
    np.testing.assert_array_equal(found["label"], LABELS)


def test_the_first_bytes_are_red_and_run_along_rows() -> None:
    data = bytes([7]) + bytes([1]) * 32 + bytes(992) + bytes([2]) * 1024 + bytes([3]) * 1024
    image = from_records([(data, "one")], ["label"])["image"][0]
    assert image[0, :, 0].tolist() == [1] * 32
    assert not image[1:, :, 0].any()
    assert (image[..., 1] == 2).all()
    assert (image[..., 2] == 3).all()


def test_parts_are_put_together_in_order() -> None:
    parts = [(records(IMAGES[:2], LABELS[:2], COARSE[:2]), "one")]
    parts += [(records(IMAGES[2:], LABELS[2:], COARSE[2:]), "two")]
    found = from_records(parts, ["fine", "coarse"])
    assert list(found) == ["image", "fine", "coarse"]
    np.testing.assert_array_equal(found["image"], IMAGES)
    np.testing.assert_array_equal(found["fine"], LABELS)
    np.testing.assert_array_equal(found["coarse"], COARSE)


@pytest.mark.parametrize("pickler", PICKLERS)
def test_pickled_batches_hold_the_same(pickler: str) -> None:
    def dumps(part: slice) -> bytes:
        batch = {"data": planes(IMAGES[part]), "labels": LABELS[part].tolist(), "more": "x"}
        return PICKLERS[pickler](batch)

    parts = [(dumps(slice(0, 4)), "one"), (dumps(slice(4, 6)), "two")]
    found = from_pickles(parts, NAMES)
    assert (found["image"].dtype, found["label"].dtype) == (np.uint8, np.int32)
    np.testing.assert_array_equal(found["image"], IMAGES)
    np.testing.assert_array_equal(found["label"], LABELS)


def test_archives_and_files_are_read(tmp_path: Path) -> None:
    binary, pickled, loose = tmp_path / "b.tar.gz", tmp_path / "p.tar.gz", tmp_path / "x.bin"
    write_tar(binary, {"d/readme.html": b"<html>", "d/x.bin": records(IMAGES, LABELS)})
    write_tar(pickled, {"d/batches.meta": b"(", "d/x": python2_batch(IMAGES, labels=LABELS)})
    loose.write_bytes(records(IMAGES, LABELS))
    for found in (
        reader(from_records, ["label"], {"test": ["d/x.bin"]})([binary], "test"),
        reader(from_pickles, NAMES, {"test": ["d/x"]})([pickled], "test"),
        reader(from_records, ["label"])([loose], "test"),
    ):
        np.testing.assert_array_equal(found["image"], IMAGES)
        np.testing.assert_array_equal(found["label"], LABELS)


# Damage


@pytest.mark.parametrize("cut", [0, 1, 3072, 3074, 6 * 3073 - 1])
def test_records_that_are_cut_are_named(cut: int) -> None:
    data = records(IMAGES, LABELS)[:cut]
    says = rf"^batch has {cut:,} bytes, which are no whole records of 3073: it is truncated, or no "
    with pytest.raises(DatasetError, match=says + r"CIFAR file\. Delete it, so that it is fetched"):
        from_records([(data, "batch")], ["label"])


def test_records_with_one_label_are_none_with_two() -> None:
    with pytest.raises(DatasetError, match="no whole records of 3074"):
        from_records([(records(IMAGES, LABELS), "batch")], ["coarse", "fine"])


def refused(batch: Any, message: str) -> None:
    with pytest.raises(DatasetError, match="^batch " + message):
        from_pickles([(pickle.dumps(batch, 2), "batch")], NAMES)


def test_a_pickle_of_something_else_is_refused() -> None:
    refused({"labels": [1]}, r"has no 'data', but \['labels'\]; is it a CIFAR batch\?$")
    refused(
        {"data": planes(IMAGES), "fine_labels": [1]}, r"has no 'labels', but \['data', 'fine_la"
    )
    refused([1, 2], r"has no 'data', but \[\]; is it a CIFAR batch\?$")
    refused({1: 2, "one": 3, (): 4}, "has no 'data', but .*; is it a CIFAR batch")


@pytest.mark.parametrize(
    ("data", "labels"),
    [
        (planes(IMAGES), [1, 2, 3]),
        (planes(IMAGES)[:, :3071], [0] * 6),
        (planes(IMAGES)[0], [0] * 3072),
        (IMAGES, [0] * 6),
    ],
)
def test_pixels_and_labels_that_do_not_fit_are_refused(data: Any, labels: Any) -> None:
    says = r"has no uint8\[n,3072\] of pixels with as many whole numbers as labels \(found "
    refused({"data": data, "labels": labels}, says)


@pytest.mark.parametrize(
    ("data", "labels"),
    [
        (None, [0] * 6),
        (5, [0] * 6),
        ("x" * 6, [0] * 6),
        ([1, [2, 3]], [0, 0]),
        (planes(IMAGES).astype("f4"), [0] * 6),
        (planes(IMAGES).astype("i8"), [0] * 6),
        (planes(IMAGES), None),
        (planes(IMAGES), 7),
        (planes(IMAGES), "abcdef"),
        (planes(IMAGES), ["a"] * 6),
        (planes(IMAGES), [1.5] * 6),
        (planes(IMAGES), [[0]] * 6),
        (planes(IMAGES), [2**40] * 6),
        (planes(IMAGES), {"a": 1}),
    ],
    ids=lambda value: f"{type(value).__name__}{str(value)[:8]}",
)
def test_pixels_and_labels_of_other_types_are_refused(data: Any, labels: Any) -> None:
    refused({"data": data, "labels": labels}, "")


def test_damage_names_the_archive_and_the_member(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    write_tar(path, {"d/x.bin": records(IMAGES, LABELS)[:-1], "d/x": b"cos\nsystem\n."})
    with pytest.raises(DatasetError, match=r"x\.tar\.gz/d/x\.bin has 18,437 bytes"):
        reader(from_records, ["label"], {"test": ["d/x.bin"]})([path], "test")
    with pytest.raises(
        DatasetError, match=r"x\.tar\.gz/d/x is a pickle that uses the name os\.sys"
    ):
        reader(from_pickles, NAMES, {"test": ["d/x"]})([path], "test")
    with pytest.raises(DatasetError, match=r"x\.tar\.gz has no member 'd/y'"):
        reader(from_records, ["label"], {"test": ["d/y"]})([path], "test")
