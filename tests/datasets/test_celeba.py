"""CelebA: photos by index out of the archive, with their attributes, from any thread."""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from tests.datasets.files import (
    TITLES,
    jpeg,
    smooth_images,
    with_own_hashes,
    write_celeba,
    write_zip,
)

import cereal
from cereal import BatchTransform, CelebADataset, DataLoader, DatasetError, PipelineError
from cereal.testing import check_resume

N = 10
SPLITS = [0, 0, 1, 0, 2, 0, 2, 0, 0, 1]
NUMBERS = {"train": 0, "valid": 1, "test": 2}
IMAGES = smooth_images(N, 18, 14)
PHOTOS = [jpeg(image) for image in IMAGES]
MARKS = np.where(np.random.default_rng(0).random((N, len(TITLES))) < 0.5, -1, 1)
MEMBER = "img_align_celeba/{:06}.jpg"


def pixels(photo: bytes) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(photo)))


def indices_of(split: str) -> list[int]:
    return [index for index, number in enumerate(SPLITS) if number == NUMBERS[split]]


def expected(split: str) -> dict[str, np.ndarray]:
    chosen = indices_of(split)
    images = np.stack([pixels(PHOTOS[index]) for index in chosen])
    return {"image": images, "attributes": (MARKS[chosen] == 1).astype(np.int32)}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    write_celeba(tmp_path / "celeba", PHOTOS, SPLITS, MARKS)
    return tmp_path


def faces(cache: Path, split: Any = "train") -> CelebADataset:
    return CelebADataset(split, cache, verify=False)


# Values


@pytest.mark.parametrize("split", NUMBERS)
def test_elements_are_the_photos_of_the_split(split: Any, cache: Path) -> None:
    found, wanted = faces(cache, split), expected(split)
    assert len(found) == len(wanted["image"])
    for index in (*range(len(found)), -1, -len(found), np.int64(1)):
        element = found[int(index)]
        assert element.keys() == {"image", "attributes"}
        for name, value in element.items():
            assert value.dtype == wanted[name].dtype
            np.testing.assert_array_equal(value, wanted[name][index])
    for index in (len(found), -len(found) - 1):
        with pytest.raises(IndexError, match="out of"):
            found[index]
    assert sum(1 for _ in found) == len(found)  # type: ignore[arg-type]
    assert repr(found) == f"CelebADataset({split!r}): {len(found)} elements"


def test_photos_look_as_they_did_before_they_were_compressed(cache: Path) -> None:
    found = faces(cache).as_array_dict()["image"].astype(int)
    assert np.abs(found - IMAGES[indices_of("train")]).max() < 16


def test_all_photos_make_arrays_of_their_own(cache: Path) -> None:
    dataset = faces(cache)
    arrays = dataset.as_array_dict()
    for name, array in expected("train").items():
        assert (arrays[name].dtype, arrays[name].flags.writeable) == (array.dtype, True)
        np.testing.assert_array_equal(arrays[name], array)
        arrays[name][...] = 9
    np.testing.assert_array_equal(dataset[0]["attributes"], expected("train")["attributes"][0])
    with pytest.raises(ValueError, match="read-only"):
        dataset[0]["attributes"][...] = 9


def test_attributes_are_named_and_elements_described(cache: Path) -> None:
    dataset = faces(cache)
    assert dataset.classes == TITLES
    spec = dataset.element_spec()
    assert (spec["image"].shape, spec["image"].dtype) == ((18, 14, 3), np.uint8)
    assert (spec["attributes"].shape, spec["attributes"].dtype) == ((3,), np.int32)


def test_photos_may_be_grey_or_lie_in_another_folder(tmp_path: Path) -> None:
    grey = IMAGES[0, ..., 0]
    write_celeba(tmp_path / "celeba", [jpeg(grey)], [2], MARKS[:1])
    write_zip(tmp_path / "celeba" / "img_align_celeba.zip", {"000001.jpg": jpeg(grey)}, 8)
    image = faces(tmp_path, "test")[0]["image"]
    np.testing.assert_array_equal(image, np.stack([pixels(jpeg(grey))] * 3, axis=-1))


# In a loader


@pytest.mark.parametrize("workers", [0, 2])
def test_photos_stream_from_disk_in_any_order(cache: Path, workers: int) -> None:
    wanted = expected("train")
    for ordering in ("sequential", "shuffle"):
        source = CelebADataset.make_disk_source(
            "train", ordering, prefetch_size=4, cache_dir=cache, verify=False
        )
        loader = DataLoader([source, BatchTransform(2)], workers=workers)
        for step, (batch, _) in enumerate(loader.iterate(loader.init_state(5))):
            for name, array in batch.items():
                np.testing.assert_array_equal(array, wanted[name][loader.indices_at(5, step)])


def test_streaming_goes_on_where_it_stopped(cache: Path) -> None:
    source = CelebADataset.make_disk_source("train", cache_dir=cache, verify=False)
    check_resume(DataLoader([source, BatchTransform(4)]), epochs=1)


def test_the_dataset_may_stand_first_in_a_loader_and_become_jax_arrays(cache: Path) -> None:
    batches = [batch for batch, _ in DataLoader([faces(cache), BatchTransform(3)])]
    found = np.concatenate([batch["image"] for batch in batches])
    np.testing.assert_array_equal(found, expected("train")["image"])
    arrays = cereal.dataset_to_jax(faces(cache, "test"))
    np.testing.assert_array_equal(arrays["attributes"], expected("test")["attributes"])


def test_the_dataset_may_be_sent_elsewhere(cache: Path) -> None:
    for dumps in (pickle.dumps, cloudpickle.dumps):
        copy = pickle.loads(dumps(faces(cache, "test")))
        np.testing.assert_array_equal(copy[1]["image"], expected("test")["image"][1])


# Bad input


def refused(cache: Path, message: str, read: Callable[[CelebADataset], Any] | None = None) -> None:
    """The error names who was asked, the file and what is wrong with it."""

    def run() -> None:
        dataset = faces(cache)
        if read is not None:
            read(dataset)

    with pytest.raises(DatasetError, match=message):
        run()


def edited(path: Path, old: str, new: str) -> Path:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return path


@pytest.mark.parametrize("split", ["val", "Train", None])
def test_an_unknown_split_is_refused_with_those_that_there_are(split: Any, tmp_path: Path) -> None:
    says = rf": unknown split {split!r}; CelebA has 'train', 'valid', 'test'\.$"
    with pytest.raises(PipelineError, match="^CelebADataset" + says):
        CelebADataset(split, tmp_path)
    with pytest.raises(PipelineError, match="^CelebADataset.*" + says):
        CelebADataset.make_disk_source(split, cache_dir=tmp_path)


def test_a_photo_that_is_missing_is_named(cache: Path) -> None:
    path = cache / "celeba" / "img_align_celeba.zip"
    write_zip(path, {MEMBER.format(k + 1): PHOTOS[k] for k in range(N) if k != 5})
    says = r"^CelebADataset: .*celeba\.zip has no image '000006\.jpg'; fetch it again\.$"
    refused(cache, says)
    assert len(faces(cache, "test")) == 2  # it is of another split


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("000002.jpg", "'000002.jpg'"),
        ("000002.jpg 3", "'000002.jpg 3'"),
        ("000002.jpg 0 0", "'000002.jpg 0 0'"),
        ("000002.jpg zero", "'000002.jpg zero'"),
        ("", "''"),
        ("x" * 500, "'" + "x" * 59),
    ],
)
def test_a_line_of_the_partition_that_is_malformed_is_shown(
    cache: Path, line: str, shown: str
) -> None:
    path = edited(cache / "celeba" / "list_eval_partition.txt", "000002.jpg 0", line)
    refused(cache, re.escape(f"{path}, line 2: {shown} is no name and number of a split."))


def test_a_partition_without_the_split_is_refused(cache: Path) -> None:
    path = cache / "celeba" / "list_eval_partition.txt"
    for text in ("", "000001.jpg 1\n"):
        path.write_text(text)
        refused(cache, re.escape(f"{path} names no image of the split 'train'."))


@pytest.mark.parametrize("marks", [" 1 -1", " 1 -1  1  1", " 1 -1  0", " 1 -1  x", ""])
def test_a_row_of_attributes_that_is_malformed_is_shown(cache: Path, marks: str) -> None:
    path = cache / "celeba" / "list_attr_celeba.txt"
    lines = path.read_text().splitlines()
    lines[4] = f"000003.jpg {marks}".strip()
    path.write_text("\n".join(lines))
    says = f"{path}, line 5: {lines[4]!r} has no name and 3 times -1 or 1."
    refused(cache, re.escape(says))


def test_attributes_that_are_missing_are_named(cache: Path) -> None:
    path = edited(cache / "celeba" / "list_attr_celeba.txt", "000004.jpg", "400000.jpg")
    refused(cache, re.escape(f"{path} has no attributes of '000004.jpg'; fetch it again."))
    for text in ("", "10\n", "10\nBald Young\n"):
        path.write_text(text)
        refused(cache, re.escape(f"{path} has no attributes of '000001.jpg'; fetch it again."))


@pytest.mark.parametrize("name", ["list_eval_partition.txt", "list_attr_celeba.txt"])
@pytest.mark.parametrize(
    "data", [b"\x89PNG\r\n\x1a\n\xff\xfe", b"<!DOCTYPE html>\n<html>\n</html>"]
)
def test_a_list_that_is_something_else_is_named(cache: Path, name: str, data: bytes) -> None:
    (cache / "celeba" / name).write_bytes(data)
    refused(cache, f"^CelebADataset: .*{re.escape(name)}")


@pytest.mark.parametrize("data", [b"", b"<!DOCTYPE html>", b"PK\x03\x04 and no more"])
def test_an_archive_that_is_none_is_named(cache: Path, data: bytes) -> None:
    (cache / "celeba" / "img_align_celeba.zip").write_bytes(data)
    refused(cache, r"^CelebADataset: .*img_align_celeba\.zip is a damaged archive")


@pytest.mark.parametrize(
    "photo", [b"", b"no image", PHOTOS[1][: len(PHOTOS[1]) // 2], b"\x89PNG\r\n\x1a\n", b"GIF89a"]
)
def test_a_photo_that_is_none_is_named(cache: Path, photo: bytes) -> None:
    photos = [*PHOTOS[:1], photo, *PHOTOS[2:]]
    write_celeba(cache / "celeba", photos, SPLITS, MARKS)
    says = r"img_align_celeba\.zip: 'img_align_celeba/000002\.jpg' is no whole image; delete it"
    refused(cache, says, lambda dataset: dataset[1])
    refused(cache, says, lambda dataset: dataset.as_array_dict())
    assert faces(cache)[0]["image"].shape == (18, 14, 3)


def test_a_photo_of_another_size_is_named(cache: Path) -> None:
    photos = [*PHOTOS[:3], jpeg(smooth_images(1, 9, 9)[0]), *PHOTOS[4:]]
    write_celeba(cache / "celeba", photos, SPLITS, MARKS)
    refused(cache, r"000004\.jpg", lambda dataset: dataset.as_array_dict())


def test_a_photo_altered_in_the_archive_is_damaged(cache: Path) -> None:
    path = cache / "celeba" / "img_align_celeba.zip"
    data = path.read_bytes()
    path.write_bytes(data.replace(PHOTOS[1], PHOTOS[1][:-9] + b"123456789"))
    says = r"the member 'img_align_celeba/000002\.jpg' is damaged \(its checksum is wrong\)"
    refused(cache, says, lambda dataset: dataset[1])


def test_missing_files_are_named_with_where_to_put_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CelebADataset, "record", with_own_hashes(CelebADataset.record, tmp_path))
    says = (
        r"(?s)^CelebADataset: img_align_celeba\.zip .*put these files into .*celeba:\n  img_align_"
    )
    with pytest.raises(DatasetError, match=says + ".*list_eval_partition.*list_attr.*CEREAL_DATA"):
        CelebADataset("train", tmp_path)
