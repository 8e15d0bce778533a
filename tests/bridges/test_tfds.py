"""TFDS: its data sources first in a loader's list."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.bridges.quiet_tensorflow import tfds

import cereal
from cereal import BatchTransform, DataLoader, DatasetSource, PipelineError
from cereal.reading.structure import structure_of
from cereal.testing import check_source

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


def test_it_is_read_from_its_files_in_batches(source: Any) -> None:
    made = DatasetSource(source, ordering="shuffle")
    assert type(made.data.table).__name__ == "TFDSTable"
    assert made.classes == {"label": tuple(map(str, range(N)))}
    check_source(made)


def test_worker_processes_read_it(source: Any) -> None:
    with DataLoader([source, BatchTransform(5)], workers=2, worker_type="process") as loader:
        equal(rows(loader), WANTED)


def rich() -> Any:
    """Features of all kinds that cereal reads itself."""
    known = tfds.features
    return known.FeaturesDict(
        {
            "grey": known.Image(shape=(5, 6, 1)),
            "colour": known.Image(shape=(5, 6, 3)),
            "clear": known.Image(shape=(5, 6, 4)),
            "photo": known.Image(shape=(16, 16, 3), encoding_format="jpeg"),
            "sized": known.Image(shape=(None, None, 3)),
            "text": known.Text(),
            "flag": np.bool_,
            "small": np.uint8,
            "real": np.float64,
            "vector": known.Tensor(shape=(2, 3), dtype=np.float32),
            "whole": known.Tensor(shape=(2,), dtype=np.int32),
            "inner": {"deep": {"label": known.ClassLabel(names=["a", "b"])}, "n": np.int32},
            "numbers": known.Sequence(np.int64),
            "three": known.Sequence(np.float32, length=3),
        }
    )


def rich_examples() -> Iterator[tuple[int, Any]]:
    rng = np.random.default_rng(0)
    image = lambda *shape: rng.integers(0, 256, shape, np.uint8)  # noqa: E731
    for i in range(N):
        images = {"grey": image(5, 6, 1), "colour": image(5, 6, 3), "clear": image(5, 6, 4)}
        more = {"photo": image(16, 16, 3), "sized": image(3 + i, 4, 3), "text": f"number {i}"}
        numbers = {"flag": i % 2 == 0, "small": 200 + i, "real": i / 4, "whole": [i, -i]}
        nested = {"inner": {"deep": {"label": i % 2}, "n": -i}, "numbers": list(range(i))}
        vector = rng.normal(size=(2, 3)).astype(np.float32)
        last = {"vector": vector, "three": [i, i, 0.5]}
        yield i, {**images, **more, **numbers, **nested, **last}


def as_source(folder: Path, features: Any, some: Any, file_format: str = "array_record") -> Any:
    tfds.disable_progress_bar()
    made = tfds.dataset_builders.store_as_tfds_dataset(
        name="rich",
        version="1.0.0",
        features=features,
        split_datasets={"train": some},
        data_dir=folder,
        file_format=file_format,
        disable_shuffling=True,
    )
    return made.as_data_source(split="train")


def compare(found: Any, wanted: Any) -> None:
    """An element of ours with that of TFDS."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for key in wanted:
            compare(found[key], wanted[key])
    elif isinstance(wanted, bytes):
        assert found == wanted
    else:
        np.testing.assert_array_equal(found, wanted)
        assert np.shape(found) == np.shape(wanted)


@pytest.mark.parametrize("file_format", ["array_record", "parquet"])
def test_all_features_are_what_tfds_gives(tmp_path: Path, file_format: str) -> None:
    own = as_source(tmp_path, rich(), rich_examples(), file_format)
    table = DatasetSource(own).data.table
    assert type(table).__name__ == "TFDSTable"
    columns, structure = table.take(np.arange(N)), structure_of(table.form)
    for i in range(N):
        compare(structure.unflatten([column[i] for column in columns]), own[i])


def test_what_cereal_does_not_know_tfds_decodes(tmp_path: Path) -> None:
    packed = tfds.features.Tensor(shape=(2,), dtype=np.float64, encoding="zlib")
    features = tfds.features.FeaturesDict({"packed": packed, "label": np.int32})
    some = ((i, {"packed": np.array([i, 0.5]), "label": i}) for i in range(N))
    own = as_source(tmp_path, features, some)
    made = DatasetSource(own)
    assert type(made.data.table).__name__ == "RecordTable"
    wanted = {"label": LABELS, "packed": np.stack([LABELS, np.full(N, 0.5)], 1).astype(np.float32)}
    check_values(own, wanted)
    check_resume(lambda: own, wanted)


def test_a_sequence_of_dicts_is_decoded_by_tfds(tmp_path: Path) -> None:
    """As the objects of a picture are; such a feature has a dict of dtypes."""
    objects = tfds.features.Sequence({"box": tfds.features.BBoxFeature(), "label": np.int32})
    box = tfds.features.BBox(0.0, 0.25, 0.5, 1.0)
    some = ((i, {"objects": {"box": [box] * 2, "label": [i, 1]}}) for i in range(N))
    own = as_source(tmp_path, tfds.features.FeaturesDict({"objects": objects}), some)
    ((batch, _),) = DataLoader([DatasetSource(own, ordering="sequential"), BatchTransform(N)])
    assert batch["objects"]["label"][0].tolist() == LABELS.tolist()
    assert batch["objects"]["box"][1][3].tolist() == [0.0, 0.25, 0.5, 1.0]


def loader_of_all(*stages: Any) -> DataLoader[Any]:
    return DataLoader([*stages, BatchTransform(5)])


def test_decoders_and_methods_of_a_source_are_obeyed(stored: dict[str, Any]) -> None:
    builder, method = stored["array_record"], tfds.decode.DeserializeMethod.RAW_BYTES
    skipped = builder.as_data_source("train", decoders={"image": tfds.decode.SkipDecoding()})
    equal(rows(loader_of_all(skipped, cereal.DecodeImageTransform(mode="L"))), WANTED)
    raw = builder.as_data_source("train", deserialize_method=method)
    lengths = cereal.HostMapTransform(len)
    assert rows(loader_of_all(raw, lengths)).tolist() == [len(raw[i]) for i in range(N)]


def test_part_of_a_split_is_read(stored: dict[str, Any]) -> None:
    part = stored["array_record"].as_data_source("train[2:7]")
    assert rows(loader_of_all(part))["label"].tolist() == [2, 3, 4, 5, 6]


def test_a_dict_of_splits_is_an_error_that_names_them(stored: dict[str, Any]) -> None:
    for splits in (stored["array_record"].as_data_source(), stored["tfrecord"].as_dataset()):
        with pytest.raises(PipelineError, match=r"of datasets, not one of them: it has 'train'"):
            loader_of(splits)


def test_images_of_different_sizes_are_told_to_be_resized(tmp_path: Path) -> None:
    features = tfds.features.FeaturesDict({"image": tfds.features.Image()})
    some = ((i, {"image": np.zeros((3 + i, 4, 3), np.uint8)}) for i in range(N))
    own = as_source(tmp_path, features, some)
    with pytest.raises(PipelineError, match=r"of another size.*DecodeImageTransform\(size="):
        loader_of(own)
    resized = cereal.DecodeImageTransform(size=(4, 4))
    assert rows(loader_of_all(own, resized))["image"].shape == (N, 4, 4, 3)
