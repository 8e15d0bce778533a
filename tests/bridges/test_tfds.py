"""TFDS: its data sources first in a loader's list, and tf.data through `IterableSource`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cereal
from cereal import BatchTransform, DataLoader, DatasetSource, IterableSource, PipelineError

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
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # else it talks
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its own imports
    tf = import_module("tensorflow")
    tfds = import_module("tensorflow_datasets")

WANTED = {"image": IMAGES[..., None], "label": LABELS}


def examples() -> Iterator[tuple[int, Any]]:
    for i in range(N):
        yield i, {"image": IMAGES[i][..., None], "label": i}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A dataset in files, in the format for random access and in that of tf.data."""
    folder: Path = tmp_path_factory.mktemp("tfds")
    tfds.disable_progress_bar()
    image, label = tfds.features.Image(shape=(5, 6, 1)), tfds.features.ClassLabel(num_classes=N)
    return {
        file_format: tfds.dataset_builders.store_as_tfds_dataset(
            name=file_format,
            version="1.0.0",
            features=tfds.features.FeaturesDict({"image": image, "label": label}),
            split_datasets={"train": examples()},
            data_dir=folder,
            file_format=file_format,
            disable_shuffling=True,
        )
        for file_format in ("array_record", "tfrecord")
    }


@pytest.fixture
def source(stored: dict[str, Any]) -> Any:
    return stored["array_record"].as_data_source(split="train")


@pytest.fixture
def stream(stored: dict[str, Any]) -> Any:
    return stored["tfrecord"].as_dataset(split="train")


# Random access


def test_a_bare_data_source_gives_its_elements(source: Any) -> None:
    check_values(source, WANTED)


def test_a_shuffled_epoch_is_complete(source: Any) -> None:
    shuffled = DatasetSource(source, ordering="shuffle")
    check_shuffled(shuffled, WANTED, lambda found: found["label"])


def test_it_goes_on_in_the_middle_of_an_epoch(source: Any) -> None:
    check_resume(lambda: source, WANTED)


def test_it_is_read_inside_of_jit(source: Any) -> None:
    check_in_jit(source, WANTED)


def test_batches_are_those_of_tfds(source: Any, stream: Any) -> None:
    own = list(tfds.as_numpy(stream.batch(5)))
    ours = list(DataLoader([source, BatchTransform(5)]))
    assert len(own) == len(ours) == 2
    for theirs, (batch, _) in zip(own, ours, strict=True):
        equal(batch, {**theirs, "label": theirs["label"].astype(np.int32)})


def test_read_once_it_trains_in_one_program(source: Any) -> None:
    loader = DataLoader([source, cereal.CacheTransform("device"), BatchTransform(5)])
    body = lambda carry, batch, mask: (carry, batch["label"])  # noqa: E731
    _, _, found = loader.scan_epoch(loader.init_state(0), 0, body)
    assert found.reshape(-1).tolist() == LABELS.tolist()


def test_it_becomes_arrays_in_one_call(source: Any) -> None:
    equal(cereal.dataset_to_jax(source), WANTED)


def test_the_whole_as_arrays_is_a_pipelines_data(stored: dict[str, Any]) -> None:
    whole = tfds.as_numpy(stored["tfrecord"].as_dataset(split="train", batch_size=-1))
    loader = loader_of(whole, workers=None)
    assert "ArraySampleSource" in repr(loader)
    equal(rows(loader), WANTED)


# tf.data


@pytest.mark.parametrize("length", [None, N])
def test_a_stream_as_numpy_is_read_and_resumes(stream: Any, length: int | None) -> None:
    def source() -> Any:
        return IterableSource(lambda: tfds.as_numpy(stream), length=length)

    check_values(source(), WANTED)
    check_resume(source, WANTED)
    check_in_jit(source(), WANTED)


@pytest.mark.parametrize("method", ["as_numpy_iterator", "__iter__"])
def test_tf_data_is_read_without_tfds(stream: Any, method: str) -> None:
    check_values(IterableSource(lambda: getattr(stream, method)()), WANTED)


def test_its_own_batches_are_batched_again(stream: Any) -> None:
    pairs = IterableSource(lambda: tfds.as_numpy(stream.batch(2)), length=N // 2)
    loader = DataLoader([pairs, BatchTransform(5)])
    ((batch, _),) = loader
    np.testing.assert_array_equal(batch["label"], LABELS.reshape(5, 2))


def test_a_bare_stream_is_told_where_to_go(stream: Any) -> None:
    with pytest.raises(PipelineError, match="IterableSource"):
        loader_of(stream)
    with pytest.raises(PipelineError, match="IterableSource"):
        loader_of(tfds.as_numpy(stream))


def test_text_is_refused_by_name() -> None:
    words = tf.data.Dataset.from_tensor_slices({"text": ["a", "bb"], "label": [0, 1]})
    with pytest.raises(PipelineError, match=r"element\['text'\]` is a Python object"):
        loader_of(IterableSource(words.as_numpy_iterator))
