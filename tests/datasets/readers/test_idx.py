"""IDX files: what was written is read, and what is damaged is named."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import re
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.datasets.files import CODES, idx, random_images, random_labels, write_zip, zipped

from cereal import DatasetError
from cereal.datasets.readers.idx import pair, parse_idx, read_pair, read_zipped_pair

IMAGES = random_images(5, 4, 3)
LABELS = random_labels(5, 10).astype(np.uint8)
PLAIN = idx(IMAGES)


def refused(data: bytes, message: str) -> None:
    """It is a DatasetError that begins with the file's name."""
    with pytest.raises(DatasetError, match=r"^some/file\.gz " + message):
        parse_idx(data, Path("some/file.gz"))


# Values


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 4), (2, 1, 3, 2)])
@pytest.mark.parametrize("wrap", [bytes, zipped])
def test_numbers_of_every_type_and_shape_are_read(
    code: str, shape: tuple[int, ...], wrap: Any
) -> None:
    values = np.arange(np.prod(shape)).reshape(shape).astype(code)
    values.flat[0] = -3 if values.dtype.kind != "u" else 253
    found = parse_idx(wrap(idx(values)), "file")
    assert found.dtype == values.dtype
    assert found.dtype.isnative
    np.testing.assert_array_equal(found, values)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.integers(0, 9))
def test_any_shape_is_read_even_without_numbers(shape: list[int], level: int) -> None:
    values = random_images(shape[0], *shape[1:])
    data = idx(values)
    np.testing.assert_array_equal(parse_idx(gzip.compress(data, level), "file"), values)
    np.testing.assert_array_equal(parse_idx(data, "file"), values)


def test_bytes_are_not_copied() -> None:
    found = parse_idx(PLAIN, "file")
    assert np.shares_memory(found, np.frombuffer(PLAIN, np.uint8))
    assert not found.flags.writeable


def test_gzip_files_in_several_pieces_are_read() -> None:
    for at in (1, 20, len(PLAIN) // 2, len(PLAIN) - 1):
        data = zipped(PLAIN[:at]) + zipped(PLAIN[at:])
        np.testing.assert_array_equal(parse_idx(data, "file"), IMAGES)


def test_zeros_after_a_gzip_file_are_padding() -> None:
    np.testing.assert_array_equal(parse_idx(zipped(PLAIN) + bytes(8), "file"), IMAGES)


# Damage


@pytest.mark.parametrize(
    ("data", "begin"),
    [
        (b"", "nothing"),
        (b"\0", "00"),
        (b"\0\0\x08", "000008"),
        (b"<!DOCTYPE html><html>Log in</html>", "3c21444f"),
        (b"\0\x01" + PLAIN[2:], "00010803"),
        (b"\0\0\x0a" + PLAIN[3:], "00000a03"),
        (b"\0\0\x08\0\x05", "00000800"),
        (np.lib.format.magic(1, 0) + b"v", "934e554d"),
    ],
)
def test_another_file_is_no_idx_file(data: bytes, begin: str) -> None:
    says = rf"is no IDX file: it begins with {begin}, .*another file, or a web page\?$"
    refused(data, says)
    refused(zipped(data), says)


def test_a_file_cut_anywhere_is_truncated() -> None:
    for cut in range(4, len(PLAIN)):
        says = rf"is truncated: it has {cut} bytes, .* Delete it, so that it is fetched again\.$"
        refused(PLAIN[:cut], says)
        refused(zipped(PLAIN[:cut]), says)


def test_a_gzip_file_cut_anywhere_is_damaged() -> None:
    data = zipped(PLAIN)
    for cut in range(2, len(data)):
        refused(
            data[:cut], r"is a damaged gzip file \(.+\); delete it, so that it is fetched again"
        )


def test_a_gzip_file_altered_anywhere_is_damaged() -> None:
    """In its contents, checksum or size; before them are flags and a date, between them padding."""
    data, harmless = zipped(PLAIN), 0
    for place, bit in itertools.product(range(10, len(data)), range(8)):
        altered = data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]
        with contextlib.suppress(DatasetError):
            np.testing.assert_array_equal(parse_idx(altered, "file"), IMAGES)
            harmless += 1
    assert harmless < 8


def test_bytes_after_the_numbers_are_too_many() -> None:
    size = len(PLAIN)
    says = rf"is too long: it has {size + 3} bytes, and 5x4x3 numbers need {size}\. Delete it"
    refused(PLAIN + b"abc", says)
    refused(zipped(PLAIN + b"abc"), says)


def test_bytes_after_a_gzip_file_are_damage() -> None:
    refused(zipped(PLAIN) + b"abcdefgh", "is a damaged gzip file")


def test_sizes_that_no_memory_holds_are_only_a_truncated_file() -> None:
    header = bytes([0, 0, 14, 8]) + struct.pack(">I", 2**32 - 1) * 8
    refused(header, "is truncated: it has 36 bytes")


def test_a_damaged_gzip_file_takes_no_memory_that_it_only_claims() -> None:
    data = zipped(PLAIN)[:-4] + b"\xff\xff\xff\xff"  # says that four gigabytes are in it
    tracemalloc.start()
    try:
        refused(data, "is a damaged gzip file")
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()


# Pairs


def test_images_get_a_channel_and_labels_are_int32(tmp_path: Path) -> None:
    paths = [tmp_path / "images", tmp_path / "labels"]
    paths[0].write_bytes(zipped(idx(IMAGES)))
    paths[1].write_bytes(idx(LABELS))
    found = read_pair(paths, "train")
    assert list(found) == ["image", "label"]
    assert (found["image"].dtype, found["label"].dtype) == (np.uint8, np.int32)
    np.testing.assert_array_equal(found["image"], IMAGES.reshape(5, 4, 3, 1))
    np.testing.assert_array_equal(found["label"], LABELS)


def test_pairs_are_read_from_a_zip_archive(tmp_path: Path) -> None:
    path = tmp_path / "both.zip"
    write_zip(path, {"a/images.gz": zipped(idx(IMAGES)), "a/labels.gz": zipped(idx(LABELS))})
    found = read_zipped_pair([path], ["a/images.gz", "a/labels.gz"])
    np.testing.assert_array_equal(found["image"][..., 0], IMAGES)
    np.testing.assert_array_equal(found["label"], LABELS)


def paired(images: np.ndarray, labels: np.ndarray) -> Any:
    return pair((idx(images), Path("images.gz")), (idx(labels), Path("labels.gz")))


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (LABELS, IMAGES, "images.gz holds uint8[5]; images are uint8 of 3 axes. Are the files"),
        (IMAGES, IMAGES, "labels.gz holds uint8[5, 4, 3]; labels are uint8 of 1 axes. Are the"),
        (IMAGES[0], LABELS, "images.gz holds uint8[4, 3]; images are uint8 of 3 axes."),
        (IMAGES.astype("f4"), LABELS, "images.gz holds float32[5, 4, 3]; images are uint8"),
        (IMAGES, LABELS.astype("i4"), "labels.gz holds int32[5]; labels are uint8 of 1 axes."),
        (IMAGES, LABELS.astype("i1"), "labels.gz holds int8[5]; labels are uint8 of 1 axes."),
    ],
)
def test_arrays_that_are_no_images_and_labels_are_refused(
    images: np.ndarray, labels: np.ndarray, message: str
) -> None:
    with pytest.raises(DatasetError, match="^" + re.escape(message)):
        paired(images, labels)


def test_counts_that_differ_are_named_with_both_files() -> None:
    message = (
        r"^images\.gz has 5 images, and labels\.gz has 4 labels; the two files do not belong "
        r"together\."
    )
    with pytest.raises(DatasetError, match=message):
        paired(IMAGES, LABELS[:4])


def test_damage_in_a_zip_archive_names_the_archive_and_the_member(tmp_path: Path) -> None:
    path = tmp_path / "both.zip"
    write_zip(path, {"images.gz": zipped(idx(IMAGES)), "labels.gz": zipped(idx(LABELS)[:-1])})
    with pytest.raises(DatasetError, match=r"both\.zip/labels\.gz is truncated"):
        read_zipped_pair([path], ["images.gz", "labels.gz"])
