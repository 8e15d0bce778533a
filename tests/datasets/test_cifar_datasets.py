"""CIFAR-10 and CIFAR-100: one content in three forms, and clear words for the rest."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from tests.datasets.files import (
    assert_arrays,
    assert_holds,
    planes,
    python2_batch,
    random_images,
    random_labels,
    records,
    with_own_hashes,
    write_tar,
)

import cereal
from cereal import (
    BatchTransform,
    CIFAR10Dataset,
    CIFAR100Dataset,
    DataLoader,
    DatasetError,
    PipelineError,
)

N = 10  # two for each batch of training
IMAGES = {"train": random_images(N, 32, 32, 3, seed=1), "test": random_images(3, 32, 32, 3, seed=2)}
LABELS = {"train": random_labels(N, 10, seed=1), "test": random_labels(3, 10, seed=2)}
COARSE = {"train": random_labels(N, 20, seed=3), "test": random_labels(3, 20, seed=4)}
BATCHES = {
    **{f"data_batch_{k + 1}": ("train", slice(2 * k, 2 * k + 2)) for k in range(5)},
    "test_batch": ("test", slice(0, 3)),
}


def expected(split: str, *, coarse: bool = False) -> dict[str, np.ndarray]:
    more = {"coarse_label": COARSE[split]} if coarse else {}
    return {"image": IMAGES[split], "label": LABELS[split], **more}


def write_binary(cache: Path, turned: bool = False) -> Path:
    """CIFAR-10's archive of records; `turned` has its images upside down."""
    path = cache / "cifar10" / "cifar-10-binary.tar.gz"
    path.parent.mkdir(exist_ok=True)
    members = {"cifar-10-batches-bin/batches.meta.txt": b"airplane\n"}
    for name, (split, part) in BATCHES.items():
        images = IMAGES[split][part, ::-1] if turned else IMAGES[split][part]
        members[f"cifar-10-batches-bin/{name}.bin"] = records(images, LABELS[split][part])
    write_tar(path, members)
    return path


def write_pickled(cache: Path, protocol: int | None = None) -> Path:
    """CIFAR-10's archive of pickles, by Python 2, or by Python 3 in some protocol."""
    path = cache / "cifar10" / "cifar-10-python.tar.gz"
    path.parent.mkdir(exist_ok=True)
    members = {"cifar-10-batches-py/readme.html": b"<html>"}
    for name, (split, part) in BATCHES.items():
        images, labels = IMAGES[split][part], LABELS[split][part]
        batch = {"data": planes(images), "labels": labels.tolist()}
        data = python2_batch(images, labels=labels)
        data = data if protocol is None else pickle.dumps(batch, protocol)
        members[f"cifar-10-batches-py/{name}"] = data
    write_tar(path, members)
    return path


def write_loose(cache: Path) -> None:
    (cache / "cifar10").mkdir(exist_ok=True)
    for name, (split, part) in BATCHES.items():
        data = records(IMAGES[split][part], LABELS[split][part])
        (cache / "cifar10" / f"{name}.bin").write_bytes(data)


def write_hundred(cache: Path, form: str) -> None:
    folder = cache / "cifar100"
    folder.mkdir(exist_ok=True)
    members = {}
    for split in IMAGES:
        images, labels, coarse = IMAGES[split], LABELS[split], COARSE[split]
        members[f"cifar-100-binary/{split}.bin"] = records(images, coarse, labels)
        pickled = python2_batch(images, fine_labels=labels, coarse_labels=coarse)
        members[f"cifar-100-python/{split}"] = pickled
    chosen = {name: data for name, data in members.items() if form in name}
    write_tar(folder / f"cifar-100-{form}.tar.gz", chosen)


WRITERS = {"binary": write_binary, "pickled": write_pickled, "loose": write_loose}


# Values


@pytest.mark.parametrize("split", IMAGES)
@pytest.mark.parametrize("form", WRITERS)
def test_every_form_of_cifar10_holds_the_same(form: str, split: Any, tmp_path: Path) -> None:
    WRITERS[form](tmp_path)
    found = CIFAR10Dataset(split, tmp_path, verify=False)
    assert_holds(found, expected(split))
    assert repr(found) == f"CIFAR10Dataset({split!r}): {len(IMAGES[split])} elements"


@pytest.mark.parametrize("protocol", range(6))
def test_pickles_of_python_3_hold_the_same(protocol: int, tmp_path: Path) -> None:
    write_pickled(tmp_path, protocol)
    found = CIFAR10Dataset("train", tmp_path, verify=False).as_array_dict()
    assert_arrays(found, expected("train"))


@pytest.mark.parametrize("split", IMAGES)
@pytest.mark.parametrize("form", ["binary", "python"])
def test_every_form_of_cifar100_holds_the_same(form: str, split: Any, tmp_path: Path) -> None:
    write_hundred(tmp_path, form)
    found = CIFAR100Dataset(split, tmp_path, verify=False)
    assert_holds(found, expected(split, coarse=True))
    assert repr(found) == f"CIFAR100Dataset({split!r}): {len(IMAGES[split])} elements"


def test_classes_are_named_in_the_order_of_the_labels(tmp_path: Path) -> None:
    write_binary(tmp_path)
    write_hundred(tmp_path, "binary")
    ten = CIFAR10Dataset("test", tmp_path, verify=False).classes
    assert ten == (
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    )
    hundred = CIFAR100Dataset("test", tmp_path, verify=False).classes
    assert (len(hundred), list(hundred)) == (100, sorted(hundred))
    assert (hundred[0], hundred[1], hundred[99]) == ("apple", "aquarium_fish", "worm")


# Forms


def test_the_binary_archive_is_preferred(tmp_path: Path) -> None:
    write_pickled(tmp_path)
    write_loose(tmp_path)
    write_binary(tmp_path, turned=True)
    found = CIFAR10Dataset("test", tmp_path, verify=False).as_array_dict()
    np.testing.assert_array_equal(found["image"], IMAGES["test"][:, ::-1])


def test_a_form_that_is_there_in_part_is_not_taken(tmp_path: Path) -> None:
    write_loose(tmp_path)
    (tmp_path / "cifar10" / "data_batch_3.bin").unlink()
    write_pickled(tmp_path)
    assert_arrays(
        CIFAR10Dataset("train", tmp_path, verify=False).as_array_dict(), expected("train")
    )
    (tmp_path / "cifar10" / "cifar-10-python.tar.gz").unlink()
    assert_arrays(CIFAR10Dataset("test", tmp_path, verify=False).as_array_dict(), expected("test"))


def test_forms_that_differ_have_arrays_of_their_own_on_disk(tmp_path: Path) -> None:
    write_pickled(tmp_path)
    options: Any = {"split": "test", "ordering": "sequential", "cache_dir": tmp_path}
    old = CIFAR10Dataset.make_disk_source(**options, verify=False)
    write_binary(tmp_path, turned=True)
    new = CIFAR10Dataset.make_disk_source(**options, verify=False)
    for source, images in ((old, IMAGES["test"]), (new, IMAGES["test"][:, ::-1])):
        batch, _ = DataLoader([source, BatchTransform(3)]).batch_at(0, 0)
        np.testing.assert_array_equal(batch["image"], images)


def test_each_form_is_checked_by_its_own_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_pickled(tmp_path)
    monkeypatch.setattr(CIFAR10Dataset, "record", with_own_hashes(CIFAR10Dataset.record, tmp_path))
    assert_arrays(CIFAR10Dataset("test", tmp_path).as_array_dict(), expected("test"))
    with path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(
        DatasetError, match=r"(?s)^CIFAR10Dataset: .*cifar-10-python\.tar\.gz.*damag"
    ):
        CIFAR10Dataset("test", tmp_path)


# In a loader


def test_cifar_streams_from_disk(tmp_path: Path) -> None:
    write_hundred(tmp_path, "python")
    source = CIFAR100Dataset.make_disk_source("train", cache_dir=tmp_path, verify=False)
    loader = DataLoader([source, BatchTransform(4)])
    for step, (batch, _) in enumerate(loader.iterate(loader.init_state(3))):
        index = loader.indices_at(3, step)
        found = {name: np.asarray(array) for name, array in batch.items()}
        wanted = {name: array[index] for name, array in expected("train", coarse=True).items()}
        assert {name: array.tolist() for name, array in found.items()} == {
            name: array.tolist() for name, array in wanted.items()
        }


def test_a_dataset_may_be_sent_elsewhere(tmp_path: Path) -> None:
    write_binary(tmp_path)
    dataset = CIFAR10Dataset("train", tmp_path, verify=False)
    for dumps in (pickle.dumps, cloudpickle.dumps):
        assert_arrays(pickle.loads(dumps(dataset)).as_array_dict(), expected("train"))
    found = cereal.dataset_to_jax(dataset)
    np.testing.assert_array_equal(found["image"], IMAGES["train"])


# Bad input


@pytest.mark.parametrize("split", ["val", "Test", None])
@pytest.mark.parametrize("dataset", [CIFAR10Dataset, CIFAR100Dataset])
def test_an_unknown_split_is_refused_with_those_that_there_are(
    dataset: Any, split: Any, tmp_path: Path
) -> None:
    says = rf"^{dataset.__name__}: unknown split {split!r}; CIFAR-10+ has 'train', 'test'\.$"
    with pytest.raises(PipelineError, match=says):
        dataset(split, tmp_path)


def refused(tmp_path: Path, path: Path, message: str) -> None:
    begin = "(?s)^CIFAR10Dataset: " + re.escape(str(path))
    with pytest.raises(DatasetError, match=begin + message):
        CIFAR10Dataset("train", tmp_path, verify=False)
    begin = r"(?s)^CIFAR10Dataset\.make_disk_source: " + re.escape(str(path))
    with pytest.raises(DatasetError, match=begin + message):
        CIFAR10Dataset.make_disk_source("train", cache_dir=tmp_path, verify=False)


def test_an_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    path = write_binary(tmp_path)
    whole = path.read_bytes()
    for data in (b"", b"<!DOCTYPE html>", whole[:5000]):
        path.write_bytes(data)
        refused(tmp_path, path, " is a damaged archive")
    write_tar(path, {"cifar-10-batches-bin/data_batch_1.bin": bytes(3073)})
    refused(tmp_path, path, r" has no member 'cifar-10-batches-bin/data_batch_2\.bin'; is it anoth")
    names = [f"cifar-10-batches-bin/data_batch_{k}.bin" for k in range(1, 6)]
    write_tar(path, dict.fromkeys(names[:4], bytes(3073)) | {names[4]: bytes(3072)})
    refused(tmp_path, path, r"/cifar-10-batches-bin/data_batch_5\.bin has 3,072 bytes")


def test_pickles_that_are_programs_are_refused_by_name(tmp_path: Path) -> None:
    path = write_pickled(tmp_path)
    harm = tmp_path / "harm"
    program = f"cos\nsystem\n(S'touch {harm}'\ntR.".encode()
    names = [f"cifar-10-batches-py/data_batch_{k}" for k in range(1, 6)]
    write_tar(path, dict.fromkeys(names, program))
    refused(
        tmp_path, path, "/cifar-10-batches-py/data_batch_1 is a pickle that uses the name os.sys"
    )
    assert not harm.exists()


def test_a_loose_file_that_is_cut_is_named(tmp_path: Path) -> None:
    write_loose(tmp_path)
    path = tmp_path / "cifar10" / "data_batch_4.bin"
    path.write_bytes(path.read_bytes()[:-1])
    refused(tmp_path, path, " has 6,145 bytes, which are no whole records of 3073")


def test_missing_files_are_named_with_where_to_put_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CIFAR10Dataset, "record", with_own_hashes(CIFAR10Dataset.record, tmp_path))
    says = r"(?s)^CIFAR10Dataset: .*put these files into .*cifar10:\n  cifar-10-binary\.tar\.gz"
    with pytest.raises(DatasetError, match=says + ".*CEREAL_DATA_DIR"):
        CIFAR10Dataset("train", tmp_path)
