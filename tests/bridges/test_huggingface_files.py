"""Hugging Face datasets on disk: derived ones, worker processes, files that change."""

from __future__ import annotations

import os
import pickle
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal import BatchTransform, DataLoader, DatasetSource, HostMapTransform, PipelineError
from cereal.reading.bridges.recognise import recognised
from cereal.testing import check_loader as check_all_ways
from cereal.testing import check_source

from .checks import check_resume, check_shuffled, check_values, equal, loaded, loader_of, rows

pytestmark = pytest.mark.bridges
datasets = import_module("datasets")

N = 60
IMAGES = np.random.default_rng(0).integers(0, 256, (N, 4, 5), np.uint8)
LABELS = np.arange(N, dtype=np.int32)
PICTURES = np.random.default_rng(1).integers(0, 256, (N, 3, 2), np.uint8)
WANTED = {"image": IMAGES, "label": LABELS, "picture": PICTURES}


def made() -> Any:
    kinds = {
        "image": datasets.Array2D((4, 5), "uint8"),
        "label": datasets.Value("int64"),
        "picture": datasets.Image(),
    }
    columns = {"image": list(IMAGES), "label": LABELS, "picture": list(PICTURES)}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))


@pytest.fixture(autouse=True)
def quiet(tmp_path: Path) -> Any:
    datasets.disable_progress_bars()
    datasets.config.IN_MEMORY_MAX_SIZE = 0


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """On disk, in two files of many pieces of seven rows."""
    monkeypatch.setattr(datasets.config, "DEFAULT_MAX_BATCH_SIZE", 7)
    made().save_to_disk(tmp_path / "data", num_shards=2)
    return datasets.load_from_disk(tmp_path / "data")


def at(order: Any) -> Any:
    return {name: column[order] for name, column in WANTED.items()}


def test_it_lies_in_pieces(stored: Any) -> None:
    assert len(stored.data.table.to_batches()) > 8
    assert len(stored.cache_files) == 2


def test_it_is_read_by_every_road(stored: Any) -> None:
    check_values(stored, WANTED)
    check_resume(lambda: stored, WANTED)
    source = DatasetSource(stored, ordering="shuffle")
    check_source(source)
    check_all_ways(DataLoader([source, BatchTransform(8)]))
    found = rows(loader_of(source))
    equal(found, at(found["label"]))
    assert sorted(found["label"].tolist()) == list(range(N))


def test_what_the_library_derives_is_read_in_its_order(stored: Any) -> None:
    order = np.random.default_rng(2).permutation(N)[:40]
    shuffled = stored.shuffle(seed=1)
    odd = stored.filter(lambda e: e["label"] % 2 == 1)
    derived = {
        "chosen rows": (stored.select(order), at(order)),
        "rows that follow": (stored.select(range(20, 50)), at(slice(20, 50))),
        "shuffled": (shuffled, at(np.array(shuffled["label"][:]))),
        "filtered": (odd, at(LABELS % 2 == 1)),
        "a part of shuffled": (shuffled.select([3, 1]), at(np.array(shuffled["label"][:])[[3, 1]])),
        "split": (stored.train_test_split(0.5, shuffle=False)["test"], at(slice(30, 60))),
        "two": (datasets.concatenate_datasets([stored, stored]), at(np.tile(LABELS, 2))),
        "a shard": (stored.shard(3, 1, contiguous=True), at(slice(20, 40))),
        "flattened": (shuffled.flatten_indices(), at(np.array(shuffled["label"][:]))),
    }
    for name, (dataset, wanted) in derived.items():
        found = rows(loader_of(dataset, workers=0))
        assert found["label"].tolist() == wanted["label"].tolist(), name
        equal(found, wanted)
        moved = pickle.loads(pickle.dumps(recognised(dataset, "here")))
        np.testing.assert_array_equal(moved.take(np.array([1, 0]))[0], wanted["image"][[1, 0]])


def test_columns_are_renamed_chosen_joined_and_cast(stored: Any) -> None:
    plain = stored.remove_columns(["picture"]).rename_column("image", "x")
    more = datasets.Dataset.from_dict({"more": LABELS * 2})
    numbers = {"label": LABELS, "x": IMAGES}
    derived = {
        "renamed": (plain, numbers),
        "a format's columns": (stored.with_format(None, columns=["label"]), {"label": LABELS}),
        "joined": (
            datasets.concatenate_datasets([plain, more], axis=1),
            numbers | {"more": LABELS * 2},
        ),
        "cast": (
            plain.cast_column("label", datasets.Value("int8")),
            numbers | {"label": LABELS.astype(np.int8)},
        ),
    }
    for dataset, wanted in derived.values():
        equal(rows(loader_of(dataset, workers=0)), wanted)
        moved = pickle.loads(pickle.dumps(recognised(dataset, "here")))
        np.testing.assert_array_equal(moved.take(np.array([1, 0]))[0], wanted[min(wanted)][[1, 0]])


def test_many_files_are_read_as_one(tmp_path: Path) -> None:
    made().save_to_disk(tmp_path / "data", num_shards=20)
    dataset = datasets.load_from_disk(tmp_path / "data")
    assert len(dataset.cache_files) == 20
    source = DatasetSource(dataset, ordering="shuffle")
    found = rows(loader_of(source))
    equal(found, at(found["label"]))
    (tmp_path / "data" / "data-00019-of-00020.arrow").touch()
    with pytest.raises(PipelineError, match="has changed"):
        rows(loader_of(source))


def test_a_transform_and_chosen_columns_beside_a_format_are_the_librarys(stored: Any) -> None:
    calls = []

    def transform(batch: Any) -> Any:
        calls.append(len(batch["label"]))
        return {"double": [2 * x for x in batch["label"]]}

    found = rows(loader_of(stored.with_transform(transform), workers=0))
    assert found["double"].tolist() == (2 * LABELS).tolist()
    assert max(calls) == 4  # it gets batches
    both = stored.with_format("numpy", columns=["image"], output_all_columns=True)
    found = rows(loader_of(both.remove_columns("picture"), workers=0))
    equal(found, {"image": IMAGES.astype(np.int32), "label": LABELS})


def test_tables_as_elements_are_given_one_by_one(stored: Any) -> None:
    numbers = stored.select_columns(["label"])
    for form in ("pandas", "arrow", "polars"):
        dataset = numbers.with_format(form)
        take = HostMapTransform(lambda table: np.asarray(table["label"]).astype(np.int32))
        found = rows(DataLoader([dataset, take, BatchTransform(4, pad_last_batch=True)], workers=0))
        assert found.tolist() == LABELS[:, None].tolist()


def test_a_class_of_ones_own_keeps_its_elements(stored: Any) -> None:
    class Doubled(datasets.Dataset):
        def __getitem__(self, key: Any) -> Any:
            found = super().__getitem__(key)
            return found if isinstance(key, str) else {"label": 2 * np.asarray(found["label"])}

        def __getitems__(self, keys: Any) -> Any:
            return [self[key] for key in keys]

    dataset = Doubled(stored.data, info=stored.info)
    assert rows(loader_of(dataset, workers=0))["label"].tolist() == (2 * LABELS).tolist()


# Processes


def test_worker_processes_open_the_files(stored: Any) -> None:
    source = DatasetSource(stored.shuffle(seed=3), ordering="shuffle")
    loader = DataLoader([source, BatchTransform(5)], workers=2, worker_type="process")
    with loader:
        found = rows(loader)
        equal(found, at(found["label"]))
        assert sorted(found["label"].tolist()) == list(range(N))


def test_the_data_does_not_travel_nor_does_the_library(stored: Any) -> None:
    dataset = stored.select_columns(["image", "label"]).shuffle(seed=1)
    assert len(pickle.dumps(recognised(dataset, "here"))) < 4_000
    stages = [dataset, HostMapTransform(partial(loaded, "datasets")), BatchTransform(N)]
    with DataLoader(stages, workers=1, worker_type="process") as loader:
        found = rows(loader)
    assert sorted(found["label"].tolist()) == list(range(N))
    assert not found["loaded"].any()


def test_a_dataset_in_memory_travels_with_its_data() -> None:
    for form in (None, "torch"):
        dataset = made().with_format(form)
        loader = DataLoader([dataset, BatchTransform(20)], workers=1, worker_type="process")
        with loader:
            assert rows(loader)["label"].tolist() == LABELS.tolist()


# Files that change


def file_of(dataset: Any) -> Path:
    return Path(dataset.cache_files[0]["filename"])


def test_a_file_that_changes_or_goes_is_named(stored: Any) -> None:
    loader = loader_of(stored, workers=0)
    rows(loader)
    path = file_of(stored)
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(PipelineError, match=rf"{path.name}.*has changed since"):
        rows(loader)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    rows(loader)
    path.rename(path.with_suffix(".gone"))
    with pytest.raises(PipelineError, match=rf"{path.name}.*is gone"):
        rows(loader)


def test_a_process_does_not_open_another_file(stored: Any) -> None:
    data, path = pickle.dumps(recognised(stored, "here")), file_of(stored)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(PipelineError, match="has changed since"):
        pickle.loads(data).take(np.arange(2))


# Images in files of their own


def test_images_in_files_are_read_there(tmp_path: Path) -> None:
    pil = import_module("PIL.Image")
    exif = pil.Exif()
    exif[0x0112] = 6  # stored on its side
    paths = [str(tmp_path / f"{i}.{'png' if i % 2 else 'jpg'}") for i in range(6)]
    for path, pixels in zip(paths, PICTURES, strict=False):
        pil.fromarray(np.repeat(np.repeat(pixels, 8, 0), 8, 1)).save(path, exif=exif)
    dataset = datasets.Dataset.from_dict({"im": paths}).cast_column("im", datasets.Image())
    found = rows(loader_of(dataset))
    wanted = np.stack([np.asarray(dataset[i]["im"]) for i in range(6)])
    assert wanted.shape == (6, 16, 24)
    np.testing.assert_array_equal(found["im"], wanted)
    Path(paths[5]).unlink()
    with pytest.raises(FileNotFoundError) as caught:
        rows(loader_of(dataset))
    assert caught.value.element.index == 5  # type: ignore[attr-defined]


def test_images_that_differ_in_size_are_told_what_to_do() -> None:
    images = [np.zeros((4, 4), np.uint8)] * 3 + [np.zeros((4, 5), np.uint8)]
    features = datasets.Features({"im": datasets.Image()})
    dataset = datasets.Dataset.from_dict({"im": images}, features=features)
    with pytest.raises(PipelineError, match=r"uint8\[4,5\].*uint8\[4,4\].*resize them") as caught:
        rows(loader_of(dataset))
    assert caught.value.element.index == 3  # type: ignore[attr-defined]
    small = HostMapTransform(lambda e: np.asarray(e["im"].resize((3, 2))))
    assert rows(DataLoader([dataset, small, BatchTransform(4)])).shape == (4, 2, 3)


def test_images_as_bytes_stay_encoded(stored: Any) -> None:
    dataset = stored.cast_column("picture", datasets.Image(decode=False))
    with pytest.raises(PipelineError, match=r"element\['picture'\]\['bytes'\]` is a Python object"):
        loader_of(dataset)
    kind = HostMapTransform(lambda e: int(e["picture"]["bytes"][:4] == b"\x89PNG"))
    assert rows(DataLoader([dataset, kind, BatchTransform(N)])).tolist() == [1] * N


def test_a_broken_image_is_an_error_of_its_element() -> None:
    good = made()[0]["picture"]
    features = datasets.Features({"im": datasets.Image(), "n": datasets.Value("int32")})
    columns = {"im": [good, good, {"bytes": b"no image", "path": None}, good], "n": [0, 1, 2, 3]}
    dataset = datasets.Dataset.from_dict(columns, features=features)
    with pytest.raises(Exception, match="cannot identify image") as caught:
        rows(loader_of(dataset))
    assert caught.value.element.index == 2  # type: ignore[attr-defined]
    loader = DataLoader([dataset, BatchTransform(4)], on_error="skip")
    assert rows(loader)["n"].tolist() == [0, 1, 3]


def test_the_index_stands_beside_images() -> None:
    source = DatasetSource(made(), ordering="shuffle", index_key="at")
    found = rows(loader_of(source))
    assert found.pop("at").tolist() == found["label"].tolist()
    equal(found, at(found["label"]))


def test_a_column_of_images_is_a_dataset() -> None:
    check_values(made()["picture"], PICTURES)
    source = DatasetSource(made()["label"], ordering="shuffle")
    assert sorted(rows(loader_of(source)).tolist()) == list(range(N))


def test_shuffled_datasets_in_memory(stored: Any) -> None:
    del stored
    part = made().select(range(10))
    source = DatasetSource(part, ordering="shuffle")
    check_shuffled(source, at(slice(0, 10)), lambda found: found["label"])
