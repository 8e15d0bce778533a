"""MNIST and those made after it: the arrays in their files, and clear words when there are none."""

from __future__ import annotations

import inspect
import pickle
import re
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.datasets.files import (
    assert_arrays,
    assert_holds,
    emnist_names,
    idx,
    mnist_names,
    random_images,
    random_labels,
    with_own_hashes,
    write_emnist,
    write_mnist,
    write_zip,
    zipped,
)

import cereal
from cereal import (
    BatchTransform,
    DataLoader,
    DatasetError,
    DiskSampleSource,
    EMNISTDataset,
    FashionMNISTDataset,
    KMNISTDataset,
    MNISTDataset,
    MNISTDiskSource,
    PipelineError,
)

FAMILY = {MNISTDataset: "mnist", FashionMNISTDataset: "fashion_mnist", KMNISTDataset: "kmnist"}
COUNTS = dict(balanced=47, byclass=62, bymerge=47, digits=10, letters=27, mnist=10)  # noqa: C408
SIZES = {"train": 12, "test": 5}
IMAGES = {split: random_images(n, 28, 28, seed=n) for split, n in SIZES.items()}
LABELS = {split: random_labels(n, 10, seed=n) for split, n in SIZES.items()}


def expected(split: str) -> dict[str, np.ndarray]:
    return {"image": IMAGES[split].reshape(-1, 28, 28, 1), "label": LABELS[split]}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A folder that holds all of them."""
    for folder in FAMILY.values():
        for split in SIZES:
            write_mnist(tmp_path / folder, split, IMAGES[split], LABELS[split])
    return tmp_path


# Values


@pytest.mark.parametrize("dataset", FAMILY)
@pytest.mark.parametrize("split", SIZES)
def test_elements_are_those_in_the_files(dataset: Any, split: Any, cache: Path) -> None:
    found = dataset(split, cache, verify=False)
    assert_holds(found, expected(split))
    assert repr(found) == f"{dataset.__name__}({split!r}): {SIZES[split]} elements"
    assert found.split == split
    assert found[0]["image"].shape == (28, 28, 1)
    assert found[0]["label"].shape == ()


def test_files_need_not_be_zipped(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist", "test", IMAGES["test"], LABELS["test"], plain=True)
    assert_holds(MNISTDataset("test", tmp_path, verify=False), expected("test"))


def test_images_of_your_own_may_have_another_size(tmp_path: Path) -> None:
    images = random_images(3, 5, 7)
    write_mnist(tmp_path / "mnist", "train", images, np.array([0, 255, 3]))
    found = MNISTDataset(cache_dir=tmp_path, verify=False)
    assert_holds(found, {"image": images[..., None], "label": np.array([0, 255, 3], np.int32)})


def test_the_folder_may_be_text_or_come_from_the_environment(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(MNISTDataset("test", str(cache), verify=False)) == 5
    monkeypatch.setenv("CEREAL_DATA_DIR", str(cache))
    assert len(MNISTDataset("test", verify=False)) == 5
    monkeypatch.setenv("HOME", str(cache.parent))
    monkeypatch.setenv("CEREAL_DATA_DIR", f"~/{cache.name}")
    assert len(KMNISTDataset("test", verify=False)) == 5
    monkeypatch.delenv("CEREAL_DATA_DIR")
    assert len(MNISTDataset("test", f"~/{cache.name}", verify=False)) == 5


def test_training_is_the_split_unless_said_otherwise(cache: Path) -> None:
    assert MNISTDataset(cache_dir=cache, verify=False).split == "train"
    for dataset in (*FAMILY, EMNISTDataset):
        taken = inspect.signature(dataset.make_disk_source).parameters
        assert [
            name for name, each in taken.items() if each.kind is each.POSITIONAL_OR_KEYWORD
        ] == [*("split", "ordering", "prefetch_size", "cache_dir")]
        assert (taken["split"].default, taken["ordering"].default) == ("train", "shuffle")


def test_classes_are_named(cache: Path) -> None:
    digits = MNISTDataset("test", cache, verify=False).classes
    assert digits == tuple(string.digits)
    clothes = FashionMNISTDataset("test", cache, verify=False).classes
    assert (len(clothes), clothes[0], clothes[9]) == (10, "T-shirt/top", "Ankle boot")
    assert len(KMNISTDataset("test", cache, verify=False).classes) == 10


def test_hashes_are_asked_for_unless_said_otherwise(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MNISTDataset, "record", with_own_hashes(MNISTDataset.record, cache))
    assert_holds(MNISTDataset("test", cache), expected("test"))
    write_mnist(cache / "mnist", "test", IMAGES["test"][::-1], LABELS["test"])
    with pytest.raises(DatasetError, match=r"(?s)^MNISTDataset: .*images-idx3-ubyte\.gz.* damaged"):
        MNISTDataset("test", cache)
    assert len(MNISTDataset("test", cache, verify=False)) == 5
    assert len(MNISTDataset("train", cache)) == 12


# EMNIST


@pytest.fixture
def emnist(tmp_path: Path) -> dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]:
    """An archive of all subsets, which all differ."""
    names = [(subset, split) for subset in COUNTS for split in SIZES]
    parts = {
        name: (random_images(5, 28, 28, seed=seed), random_labels(5, 47, seed=seed))
        for seed, name in enumerate(names)
    }
    write_emnist(tmp_path / "emnist", parts)
    return parts


def test_every_subset_of_emnist_is_read(tmp_path: Path, emnist: Any) -> None:
    for (subset, split), (images, labels) in emnist.items():
        found = EMNISTDataset(split, tmp_path, subset=subset, verify=False)
        assert_arrays(found.as_array_dict(), {"image": images[..., None], "label": labels})
        says = f"EMNISTDataset({split!r}, subset={subset!r}): {len(images)} elements"
        assert repr(found) == says
    assert EMNISTDataset(cache_dir=tmp_path, verify=False).subset == "balanced"
    assert_holds(EMNISTDataset("train", tmp_path, verify=False), balanced(emnist))


def balanced(emnist: Any) -> dict[str, np.ndarray]:
    images, labels = emnist["balanced", "train"]
    return {"image": images[..., None], "label": labels}


def test_every_subset_of_emnist_has_a_source_on_disk(tmp_path: Path, emnist: Any) -> None:
    for (subset, split), (images, labels) in emnist.items():
        source = EMNISTDataset.make_disk_source(
            split, "sequential", cache_dir=tmp_path, subset=subset, verify=False
        )
        batch = source.take(jnp.arange(len(images)))
        assert_arrays(
            jax.tree.map(np.asarray, batch), {"image": images[..., None], "label": labels}
        )


@pytest.mark.parametrize(("subset", "count"), COUNTS.items())
def test_labels_of_emnist_name_their_characters(
    subset: Any, count: int, tmp_path: Path, emnist: Any
) -> None:
    classes = EMNISTDataset("test", tmp_path, subset=subset, verify=False).classes
    assert (len(classes), len(set(classes))) == (count, count)
    assert classes[1] == ("a" if subset == "letters" else "1")


@pytest.mark.parametrize("subset", ["Balanced", "all", None, 3, []])
@pytest.mark.parametrize("make", [EMNISTDataset, EMNISTDataset.make_disk_source])
def test_an_unknown_subset_is_refused_with_those_that_there_are(
    make: Callable[..., Any], subset: Any, tmp_path: Path
) -> None:
    owner = "EMNISTDataset" if make is EMNISTDataset else r"EMNISTDataset\.make_disk_source"
    says = rf"^{owner}: unknown subset {re.escape(repr(subset))}; EMNIST has 'balanced', 'byclass',"
    with pytest.raises(PipelineError, match=says + ".* 'mnist'"):
        make("train", cache_dir=tmp_path, subset=subset)


def test_a_member_that_emnist_lacks_is_named(tmp_path: Path) -> None:
    name = emnist_names("balanced", "train")[0]
    (tmp_path / "emnist").mkdir()
    write_zip(tmp_path / "emnist" / "gzip.zip", {name: zipped(idx(IMAGES["train"]))})
    says = r"^EMNISTDataset: .*gzip\.zip has no member 'gzip/emnist-balanced-train-labels-idx1-"
    with pytest.raises(DatasetError, match=says):
        EMNISTDataset("train", tmp_path, verify=False)


# In a loader


def test_a_dataset_may_stand_first_in_a_loader(cache: Path) -> None:
    dataset = MNISTDataset("train", cache, verify=False)
    loader = DataLoader([dataset, BatchTransform(4)])
    assert "ArraySampleSource" in repr(loader)
    batches = [batch for batch, _ in loader]
    found = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    assert_arrays(found, expected("train"))


def test_a_dataset_becomes_jax_arrays(cache: Path) -> None:
    found = cereal.dataset_to_jax(MNISTDataset("test", cache, verify=False))
    assert all(isinstance(array, jax.Array) for array in found.values())
    assert_arrays(jax.tree.map(np.asarray, found), expected("test"))


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_a_dataset_may_be_sent_elsewhere(dumps: Any, cache: Path, emnist: Any) -> None:
    copy = pickle.loads(dumps(MNISTDataset("test", cache, verify=False)))
    assert_arrays(copy.as_array_dict(), expected("test"))
    assert copy[0]["image"].shape == (28, 28, 1)
    other = pickle.loads(dumps(EMNISTDataset("train", cache, verify=False)))
    assert_arrays(other.as_array_dict(), balanced(emnist))


def test_workers_read_elements(cache: Path) -> None:
    dataset = MNISTDataset("train", cache, verify=False)
    source = DiskSampleSource(len(dataset), dataset.__getitem__, ordering="sequential")
    batches = [b for b, _ in DataLoader([source, BatchTransform(4)], workers=2)]
    np.testing.assert_array_equal(
        np.concatenate([batch["image"] for batch in batches]), expected("train")["image"]
    )


def test_the_disk_source_has_two_names(cache: Path) -> None:
    options: Any = {"split": "test", "ordering": "sequential", "cache_dir": cache, "verify": False}
    for source in (MNISTDiskSource(**options), MNISTDataset.make_disk_source(**options)):
        found = jax.tree.map(np.asarray, source.take(jnp.arange(5)))
        assert_arrays(found, expected("test"))
    assert len(MNISTDiskSource(cache_dir=cache, verify=False)) == 12


# Bad input


@pytest.mark.parametrize("split", ["validation", "Train", None, 0, []])
@pytest.mark.parametrize("dataset", [*FAMILY, EMNISTDataset])
def test_an_unknown_split_is_refused_with_those_that_there_are(
    dataset: Any, split: Any, tmp_path: Path
) -> None:
    says = rf": unknown split {re.escape(repr(split))}; .*MNIST.* has 'train', 'test'\.$"
    with pytest.raises(PipelineError, match=f"^{dataset.__name__}" + says):
        dataset(split, tmp_path)
    with pytest.raises(PipelineError, match=rf"^{dataset.__name__}\.make_disk_source" + says):
        dataset.make_disk_source(split, cache_dir=tmp_path)


def damaged(cache: Path, name: str, data: bytes, message: str) -> None:
    """Both ways to read say which file, and how it is damaged."""
    path = cache / "mnist" / name
    path.write_bytes(data)
    with pytest.raises(DatasetError, match=r"^MNISTDataset: " + re.escape(f"{path} ") + message):
        MNISTDataset("train", cache, verify=False)
    owner = r"^MNISTDataset\.make_disk_source: "
    with pytest.raises(DatasetError, match=owner + re.escape(f"{path} ") + message):
        MNISTDataset.make_disk_source("train", cache_dir=cache, verify=False)


def test_damaged_files_are_named(cache: Path) -> None:
    images, labels = mnist_names("train")
    whole = zipped(idx(IMAGES["train"]))
    damaged(cache, images, b"", "is no IDX file: it begins with nothing")
    damaged(
        cache, images, b"<!DOCTYPE html>", "is no IDX file: it begins with 3c21444f, .*a web pa"
    )
    damaged(cache, images, whole[: len(whole) // 2], "is a damaged gzip file")
    damaged(cache, images, zipped(idx(IMAGES["train"])[:-1]), "is truncated: it has 9,423 bytes")
    damaged(
        cache, images, zipped(idx(LABELS["train"].astype("u1"))), r"holds uint8\[12\]; images ar"
    )
    damaged(cache, images, zipped(idx(IMAGES["train"][1:])), "has 11 images, and .* has 12 labels")
    (cache / "mnist" / images).write_bytes(whole)
    damaged(cache, labels, whole, r"holds uint8\[12, 28, 28\]; labels are uint8 of 1 axes\.")
    assert len(MNISTDataset("test", cache, verify=False)) == 5


def test_files_without_elements_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist", "train", IMAGES["train"][:0], LABELS["train"][:0])
    with pytest.raises((DatasetError, PipelineError), match=r"is empty|no images|0 rows"):
        MNISTDataset.make_disk_source("train", cache_dir=tmp_path, verify=False)
    with pytest.raises((DatasetError, PipelineError), match=r"is empty|no images|0 rows"):
        DataLoader([MNISTDataset("train", tmp_path, verify=False), BatchTransform(2)])


@pytest.mark.parametrize("verify", [True, False])
def test_missing_files_are_named_with_where_to_put_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify: bool
) -> None:
    monkeypatch.setattr(MNISTDataset, "record", with_own_hashes(MNISTDataset.record, tmp_path))
    for owner, make in (
        ("MNISTDataset", MNISTDataset),
        ("MNISTDataset.make_disk_source", MNISTDataset.make_disk_source),
    ):
        with pytest.raises(DatasetError) as caught:
            make("test", cache_dir=tmp_path, verify=verify)
        message = str(caught.value)
        assert message.startswith(f"{owner}: t10k-images-idx3-ubyte.gz could not be fetched.")
        assert f"put these files into {tmp_path / 'mnist'}:" in message
        assert all(name in message for name in mnist_names("test"))
        assert "train-images" not in message
        assert "CEREAL_DATA_DIR" in message
