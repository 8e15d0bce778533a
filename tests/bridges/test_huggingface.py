"""Hugging Face datasets, first in a loader's list."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cereal
from cereal import (
    BatchTransform,
    DataLoader,
    DatasetSource,
    HostMapTransform,
    IterableSource,
    PipelineError,
    pad_collate,
)

from .checks import (
    IMAGES,
    LABELS,
    N,
    check_in_jit,
    check_resume,
    check_shuffled,
    check_values,
    equal,
    loader_of,
    rows,
)

pytestmark = pytest.mark.bridges
datasets = import_module("datasets")

VECTORS = np.arange(N * 3, dtype=np.float32).reshape(N, 3)


def vectors() -> Any:
    return datasets.Dataset.from_dict({"x": VECTORS.tolist(), "label": LABELS})


def images() -> Any:
    label = datasets.ClassLabel(num_classes=N)
    features = datasets.Features({"image": datasets.Image(), "label": label})
    columns = {"image": list(IMAGES), "label": LABELS}
    return datasets.Dataset.from_dict(columns, features=features)


def arrays() -> Any:
    grid = datasets.Array2D(shape=IMAGES.shape[1:], dtype="uint8")
    features = datasets.Features({"image": grid, "label": datasets.Value("int32")})
    columns = {"image": list(IMAGES), "label": LABELS}
    return datasets.Dataset.from_dict(columns, features=features)


IN_VECTORS = {"x": VECTORS, "label": LABELS}
IN_IMAGES = {"image": IMAGES, "label": LABELS}
IN_ARRAYS = {"image": IMAGES.astype(np.int32), "label": LABELS}  # its own reading widens integers
DATASETS: dict[str, tuple[Callable[[], Any], Any]] = {
    "lists": (vectors, IN_VECTORS),
    "lists as numpy": (lambda: vectors().with_format("numpy"), IN_VECTORS),
    "lists as torch": (lambda: _with_torch(vectors()), IN_VECTORS),
    "images": (images, IN_IMAGES),
    "images as numpy": (lambda: images().with_format("numpy"), IN_IMAGES),
    "arrays as numpy": (lambda: arrays().with_format("numpy"), IN_ARRAYS),
}


def _with_torch(dataset: Any) -> Any:
    return dataset.with_format("torch")


@pytest.mark.parametrize("name", DATASETS)
def test_a_bare_dataset_gives_its_elements(name: str) -> None:
    make, wanted = DATASETS[name]
    check_values(make(), wanted)


@pytest.mark.parametrize("name", DATASETS)
def test_a_shuffled_epoch_is_complete(name: str) -> None:
    make, wanted = DATASETS[name]
    source = DatasetSource(make(), ordering="shuffle")
    check_shuffled(source, wanted, lambda found: found["label"])


@pytest.mark.parametrize("name", ["lists", "images as numpy"])
def test_it_goes_on_in_the_middle_of_an_epoch(name: str) -> None:
    check_resume(*DATASETS[name])


@pytest.mark.parametrize("name", ["lists", "lists as numpy", "images", "images as numpy"])
def test_it_is_read_inside_of_jit(name: str) -> None:
    make, wanted = DATASETS[name]
    check_in_jit(make(), wanted)


def test_batches_are_those_of_its_own_iteration() -> None:
    dataset = images().with_format("numpy")
    own, ours = list(dataset.iter(5)), list(DataLoader([dataset, BatchTransform(5)]))
    assert len(own) == len(ours) == 2
    for theirs, (batch, _) in zip(own, ours, strict=True):
        equal(batch, {**theirs, "label": theirs["label"].astype(np.int32)})


def test_jax_arrays_are_elements_outside_of_jit() -> None:
    check_values(vectors().with_format("jax"), IN_VECTORS)


def test_what_the_library_derives_is_a_dataset_too() -> None:
    derived = vectors().select(range(2, 8)).rename_column("x", "y")
    equal(rows(loader_of(derived)), {"y": VECTORS[2:8], "label": LABELS[2:8]})


@pytest.mark.parametrize("name", ["x", "label"])
@pytest.mark.parametrize("form", [None, "numpy"])
def test_a_column_is_a_dataset_of_its_values(name: str, form: str | None) -> None:
    check_values(vectors().with_format(form)[name], IN_VECTORS[name])


@pytest.mark.parametrize("name", DATASETS)
def test_it_becomes_arrays_in_one_call(name: str) -> None:
    make, wanted = DATASETS[name]
    equal(cereal.dataset_to_jax(make()), wanted)


def test_read_once_it_trains_in_one_program() -> None:
    loader = DataLoader([images(), cereal.CacheTransform("device"), BatchTransform(5)])
    body = lambda carry, batch, mask: (carry, batch)  # noqa: E731
    _, _, found = loader.scan_epoch(loader.init_state(0), 0, body)
    np.testing.assert_array_equal(found["image"].reshape(IMAGES.shape), IMAGES)
    assert found["label"].reshape(-1).tolist() == LABELS.tolist()


def test_the_guides_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    guide = Path(__file__).parents[2] / "docs" / "formats.md"
    section = guide.read_text().partition("## Hugging Face\n")[2].partition("\n## ")[0]
    (block,) = re.findall(r"^```py\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"np": np, **vars(cereal)}
    exec(compile(block, str(guide), "exec"), names)
    ((batch, _),) = names["batches"]
    assert batch["ids"].tolist() == [[3, 1, 0, 0], [4, 0, 0, 0], [1, 5, 9, 0]]


# Text, and rows of different lengths

WORDS = ["a", "bb", "ccc", "dddd"]


def texts() -> Any:
    return datasets.Dataset.from_dict({"text": WORDS, "label": [0, 1, 2, 3]})


def test_text_is_refused_by_the_name_of_its_column() -> None:
    with pytest.raises(PipelineError, match=r"element\['text'\]` is a Python object"):
        loader_of(texts())


def test_text_becomes_tokens_in_a_host_stage() -> None:
    def encode(element: Any) -> Any:
        return {"tokens": [ord(letter) for letter in element["text"]]}

    collate = pad_collate(max_length=4)
    loader = DataLoader([texts(), HostMapTransform(encode), BatchTransform(4, collate=collate)])
    ((batch, _),) = loader
    wanted = [[ord(c) for c in word] + [0] * (4 - len(word)) for word in WORDS]
    assert batch["tokens"].tolist() == wanted
    assert batch["lengths"].tolist() == [1, 2, 3, 4]


def test_without_its_text_it_is_read_as_it_is() -> None:
    assert rows(loader_of(texts().remove_columns("text")))["label"].tolist() == [0, 1, 2, 3]


# What only iterates


@pytest.mark.parametrize("length", [None, N])
@pytest.mark.parametrize("form", [None, "numpy"])
def test_an_iterable_dataset_made_for_each_epoch_resumes(form: Any, length: Any) -> None:
    dataset = vectors().with_format(form)

    def source() -> Any:
        return IterableSource(lambda: dataset.to_iterable_dataset(num_shards=2), length=length)

    check_values(source(), IN_VECTORS)
    check_resume(source, IN_VECTORS)
    check_in_jit(source(), IN_VECTORS)


@pytest.mark.parametrize("length", [None, N])
def test_one_iterable_dataset_serves_every_epoch_and_loader(length: int | None) -> None:
    dataset = vectors().to_iterable_dataset(num_shards=2)  # its `load_state_dict` lasts

    def source() -> Any:
        return IterableSource(lambda: dataset, length=length)

    check_values(source(), IN_VECTORS)
    check_resume(source, IN_VECTORS)
    check_values(source(), IN_VECTORS)


# What is wrong


def test_a_dict_of_splits_is_told_to_be_one_of_them() -> None:
    splits = datasets.DatasetDict({"train": vectors(), "test": vectors()})
    with pytest.raises(PipelineError, match=r"(?s)DatasetDict.*one of.*train"):
        loader_of(splits)


def test_a_class_is_told_to_be_an_instance() -> None:
    with pytest.raises(PipelineError, match=r"stage 0 is the class Dataset, not an instance"):
        loader_of(datasets.Dataset)


def test_a_missing_value_is_an_error_of_its_element() -> None:
    dataset = datasets.Dataset.from_dict({"x": [0, 1, 2, 3, 4, None]})
    batches = loader_of(dataset).iterate()
    next(batches)
    with pytest.raises(PipelineError, match=r"\{x: None\}, where \{x: int32\[\]\}") as caught:
        next(batches)
    assert caught.value.element.index == 5  # type: ignore[attr-defined]
    batches.close()
