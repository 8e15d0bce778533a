"""The digits that come with the package."""

from __future__ import annotations

import pickle
import zipfile
from importlib import resources
from pathlib import Path
from typing import Any

import cloudpickle
import jax
import numpy as np
import pytest
from tests.datasets.files import assert_arrays, assert_holds

import cereal
from cereal.testing import check_source

FILE = resources.files("cereal.datasets") / "digits.npz"
SPLITS = {"train": 1_500, "test": 297}


def rows(split: Any) -> set[bytes]:
    data = cereal.DigitsDataset(split).as_array_dict()
    return {image.tobytes() for image in data["image"]}


@pytest.mark.parametrize(("split", "size"), SPLITS.items())
def test_images_are_bytes_and_labels_are_digits(split: Any, size: int) -> None:
    dataset = cereal.DigitsDataset(split)
    data = dataset.as_array_dict()
    assert len(dataset) == size
    assert (data["image"].shape, data["image"].dtype) == ((size, 8, 8, 1), np.uint8)
    assert (data["label"].shape, data["label"].dtype) == ((size,), np.int32)
    assert set(data["label"]) == set(range(10))
    assert (data["image"].min(), data["image"].max()) == (0, 255)
    assert len(np.unique(data["image"])) == 17


def test_the_splits_are_all_1797_digits_and_share_none() -> None:
    assert sum(SPLITS.values()) == 1_797
    assert not rows("train") & rows("test")


def test_every_digit_has_its_share_of_both_splits() -> None:
    for split, size in SPLITS.items():
        counts = np.bincount(cereal.DigitsDataset(split).as_array_dict()["label"])  # type: ignore[arg-type]
        assert counts.min() > size / 10 * 0.6


def test_images_look_like_their_labels() -> None:
    """The nearest mean of the other split knows four digits of five."""
    train, test = (cereal.DigitsDataset(split).as_array_dict() for split in ("train", "test"))
    means = np.stack([train["image"][train["label"] == digit].mean(0) for digit in range(10)])
    distance = ((test["image"][:, None].astype(float) - means) ** 2).sum((2, 3, 4))
    assert (distance.argmin(1) == test["label"]).mean() > 0.8


def test_training_is_the_split_unless_said_otherwise() -> None:
    assert cereal.DigitsDataset().split == "train"
    assert repr(cereal.DigitsDataset("test")) == "DigitsDataset('test'): 297 elements"


def test_elements_are_those_of_the_file() -> None:
    """Seventeen levels, as the authors counted them, spread over a byte."""
    with resources.as_file(FILE) as path, np.load(path) as stored:
        levels, labels = stored["image"], stored["label"]
    images = np.round(levels * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    for split, part in (("train", slice(0, 1_500)), ("test", slice(1_500, None))):
        expected = {"image": images[part], "label": labels[part].astype(np.int32)}
        assert_holds(cereal.DigitsDataset(split), expected)  # type: ignore[arg-type]


def test_classes_are_the_digits() -> None:
    assert cereal.DigitsDataset("test").classes == tuple("0123456789")


def test_no_file_is_read_or_written_elsewhere(tmp_path: Path) -> None:
    assert len(cereal.DigitsDataset("test", tmp_path)) == 297
    assert list(tmp_path.iterdir()) == []


def test_writing_into_the_arrays_changes_no_other_dataset() -> None:
    data = cereal.DigitsDataset("test").as_array_dict()
    data["image"][:] = 0
    assert cereal.DigitsDataset("test").as_array_dict()["image"].any()


def test_the_dataset_may_be_sent_elsewhere() -> None:
    dataset = cereal.DigitsDataset("test")
    for dumps in (pickle.dumps, cloudpickle.dumps):
        assert_arrays(pickle.loads(dumps(dataset)).as_array_dict(), dataset.as_array_dict())


def test_the_dataset_may_stand_first_in_a_loader() -> None:
    dataset = cereal.DigitsDataset("test")
    loader = cereal.DataLoader([dataset, cereal.BatchTransform(99)])
    batches = [batch for batch, _ in loader]
    found = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    assert_arrays(found, dataset.as_array_dict())
    assert_arrays(jax.tree.map(np.asarray, cereal.dataset_to_jax(dataset)), found)


def test_the_file_is_small_and_holds_no_pickle() -> None:
    with resources.as_file(FILE) as path:
        assert path.stat().st_size < 100_000
        assert zipfile.ZipFile(path).testzip() is None
        with np.load(path, allow_pickle=False) as stored:
            assert {name: stored[name].dtype.kind for name in stored.files} == {
                "image": "u",
                "label": "u",
            }


def test_the_arrays_are_a_source() -> None:
    data = cereal.DigitsDataset("test").as_array_dict()
    check_source(cereal.ArraySampleSource(data))


@pytest.mark.parametrize("split", ["validation", "Train", None, 0])
def test_an_unknown_split_is_refused_with_those_that_there_are(split: Any) -> None:
    message = rf"^DigitsDataset: unknown split {split!r}; digits has 'train', 'test'\.$"
    with pytest.raises(cereal.PipelineError, match=message):
        cereal.DigitsDataset(split)
