"""`convert`: what a user types, and that the folder holds what the source gives, in index order."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    ConcatSource,
    DataLoader,
    DatasetSource,
    DiskSampleSource,
    HostFilterTransform,
    HostMapTransform,
    IterableSource,
    MapTransform,
    MemmapSource,
    RangeSource,
    SliceSource,
    ZipSource,
    convert,
    pad_collate,
    split,
)
from cereal.testing import check_resume, check_source

N = 23
IMAGES = np.random.default_rng(0).integers(0, 256, (N, 5, 4), np.uint8)


class Photos:
    """A dataset as users have them: images, numbers, tokens, text and bytes."""

    def __init__(self, n: int = N) -> None:
        self.n, self.reads = n, 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.n:
            raise IndexError(index)
        self.reads += 1
        return {
            "image": IMAGES[index],
            "label": index % 3,
            "tokens": np.arange(index % 5, dtype=np.int32) + index,
            "caption": "é" * (index % 4) + str(index),
            "raw": bytes(range(index)),
        }


class Plain(Photos):
    """The same without what is ragged."""

    def __getitem__(self, index: int) -> Any:
        found = super().__getitem__(index)
        return {"image": found["image"], "label": found["label"]}


def elements(source: Any) -> list[Any]:
    """All elements of a source, in index order."""
    loader = DataLoader([source, HostMapTransform(lambda e: {"n": np.int32(0)}), BatchTransform(1)])
    del loader  # it can stand in a loader
    return [_read(source, index) for index in range(len(source))]


def _read(source: Any, index: int) -> Any:
    from cereal.order.rows import routed_at

    return source._produce(routed_at(source, np.array([index]))).element(0)


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected) or np.ndim(expected) == 0, (found, expected)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, str | bytes):
        assert found == expected
    else:
        np.testing.assert_array_equal(found, expected)
        assert np.shape(found) == np.shape(expected)


def test_a_slow_dataset_is_paid_for_once(tmp_path: Path) -> None:
    folder, dataset = tmp_path / "photos", Plain()
    convert(DatasetSource(dataset, ordering="shuffle"), folder, progress=False)
    assert sorted(os.listdir(folder)) == ["image.npy", "label.npy", "tree.json"]
    assert os.listdir(tmp_path) == ["photos"]
    np.testing.assert_array_equal(np.load(folder / "image.npy"), IMAGES)
    before = dataset.reads
    loader = DataLoader([MemmapSource(folder, ordering="sequential"), BatchTransform(N)])
    batch, _ = next(iter(loader))
    np.testing.assert_array_equal(batch["image"], IMAGES)
    np.testing.assert_array_equal(batch["label"], np.arange(N) % 3)
    assert batch["label"].dtype == np.int32
    assert dataset.reads == before


def test_it_returns_the_folder_as_a_source_that_stands_in_a_list(tmp_path: Path) -> None:
    stages = [convert(Plain(), tmp_path / "photos", progress=False), BatchTransform(N)]
    batch, mask = next(iter(DataLoader(stages)))
    assert isinstance(stages[0], MemmapSource)
    check_source(stages[0])
    np.testing.assert_array_equal(batch["image"], IMAGES)
    assert mask.all()


def test_text_bytes_and_ragged_arrays_come_back_as_they_were(tmp_path: Path) -> None:
    source = convert(Photos(), tmp_path / "photos", progress=False)
    assert len(source) == N
    for index, found in enumerate(elements(source)):
        assert_same(found, Photos()[index])
        assert found["tokens"].dtype == np.int32
        assert type(found["caption"]) is str
        assert type(found["raw"]) is bytes


def test_ragged_columns_are_values_and_offsets(tmp_path: Path) -> None:
    convert(Photos(), tmp_path / "photos", progress=False)
    tokens = np.load(tmp_path / "photos" / "tokens.npy")
    offsets = np.load(tmp_path / "photos" / "tokens.offsets.npy")
    lengths = np.arange(N) % 5
    assert offsets.tolist() == [0, *np.cumsum(lengths)]
    assert tokens.tolist() == [i + k for i in range(N) for k in range(i % 5)]
    text = np.load(tmp_path / "photos" / "caption.npy").tobytes().decode()
    assert text == "".join("é" * (i % 4) + str(i) for i in range(N))


def test_ragged_columns_are_padded_by_a_collate(tmp_path: Path) -> None:
    only = HostMapTransform(lambda element: {"tokens": element["tokens"]})
    source = convert([Photos(), only], tmp_path / "tokens", progress=False)
    stages = [source, BatchTransform(N, collate=pad_collate(max_length=6))]
    batch, _ = next(iter(DataLoader(stages)))
    assert batch["lengths"].tolist() == [i % 5 for i in range(N)]
    assert batch["tokens"][3].tolist() == [3, 4, 5, 0, 0, 0]
    with pytest.raises(cereal.PipelineError, match=r"different lengths \(0 to 4\).*pad_collate"):
        DataLoader([source, BatchTransform(4)])


def test_a_ragged_folder_is_shuffled_and_resumed_like_any_source(tmp_path: Path) -> None:
    convert(Photos(), tmp_path / "photos", progress=False)
    stages = [
        MemmapSource(tmp_path / "photos"),
        HostMapTransform(lambda e: {"label": e["label"], "first": len(e["caption"])}),
        BatchTransform(4, pad_last_batch=True),
    ]
    check_resume(DataLoader(stages, workers=0))


def test_a_list_of_stages_converts_what_comes_out_of_it(tmp_path: Path) -> None:
    stages = [
        Photos(),
        HostFilterTransform(lambda element: element["label"] != 1),
        HostMapTransform(lambda element: element["image"].astype(np.float32) / 255),
    ]
    source = convert(stages, tmp_path / "some", progress=False)
    kept = [index for index in range(N) if index % 3 != 1]
    assert len(source) == len(kept)
    np.testing.assert_array_equal(
        np.load(tmp_path / "some" / "array.npy"), IMAGES[kept].astype(np.float32) / 255
    )


def test_an_element_may_be_one_array_a_text_or_a_tuple(tmp_path: Path) -> None:
    words = ["a", "bb", "", "cccc"]
    assert elements(convert([words], tmp_path / "words", progress=False)) == words
    pairs = [(np.arange(3), [k, 2.5]) for k in range(4)]
    found = elements(convert([pairs], tmp_path / "pairs", progress=False))
    assert [element[1].tolist() for element in found] == [[k, 2.5] for k in range(4)]


def test_lists_of_numbers_are_ragged_arrays_and_may_be_empty(tmp_path: Path) -> None:
    texts = [{"ids": []}, {"ids": [5, 7]}, {"ids": [1, 2, 3]}, {"ids": []}]
    found = elements(convert([texts], tmp_path / "texts", progress=False))
    assert [element["ids"].tolist() for element in found] == [[], [5, 7], [1, 2, 3], []]
    assert {element["ids"].dtype for element in found} == {np.dtype(np.int32)}


def test_arrays_of_one_length_are_not_ragged(tmp_path: Path) -> None:
    convert([[np.arange(3.0) + k for k in range(5)]], tmp_path / "x", progress=False)
    assert sorted(os.listdir(tmp_path / "x")) == ["array.npy", "tree.json"]
    assert json.loads((tmp_path / "x" / "tree.json").read_text())["version"] == 1
    assert np.load(tmp_path / "x" / "array.npy").shape == (5, 3)


def test_numbers_are_those_that_the_loader_would_give(tmp_path: Path) -> None:
    wide = [{"i": np.int64(k), "f": 0.1 * k, "b": k > 1} for k in range(3)]
    convert([wide], tmp_path / "x", progress=False)
    dtypes = {path.stem: np.load(path).dtype for path in (tmp_path / "x").glob("*.npy")}
    assert dtypes == {"i": np.int32, "f": np.float32, "b": np.bool_}


def test_arrays_in_memory_ranges_and_compiled_stages_are_converted(tmp_path: Path) -> None:
    arrays = ArraySampleSource({"x": np.arange(12.0).reshape(6, 2)}, ordering="shuffle")
    convert(arrays, tmp_path / "a", progress=False)
    assert np.load(tmp_path / "a" / "x.npy").tolist() == np.arange(12.0).reshape(6, 2).tolist()
    convert([RangeSource(7), MapTransform(lambda x: x * x)], tmp_path / "b", progress=False)
    assert np.load(tmp_path / "b" / "array.npy").tolist() == [k * k for k in range(7)]
    stages = [
        DatasetSource(list(range(9))),
        HostMapTransform(lambda x: x + 1),
        MapTransform(lambda x: x * 2),
        cereal.FilterTransform(lambda x: x > 4),
    ]
    convert(stages, tmp_path / "c", progress=False)
    assert np.load(tmp_path / "c" / "array.npy").tolist() == [6, 8, 10, 12, 14, 16, 18]


def test_a_function_may_return_the_same_buffer_every_time(tmp_path: Path) -> None:
    buffer = np.zeros(4, np.float32)

    def fill(index: int) -> Any:
        buffer[:] = index
        return buffer[: 1 + index % 4] if index > 5 else buffer

    source = convert(DiskSampleSource(9, fill), tmp_path / "x", workers=0, progress=False)
    assert [element[0] for element in elements(source)] == list(range(9))


def test_an_iterator_of_unknown_length_is_read_to_its_end(tmp_path: Path) -> None:
    def make() -> Any:
        return ({"n": k, "name": f"number {k}"} for k in range(300))

    source = convert(IterableSource(make), tmp_path / "x", progress=False)
    assert len(source) == 300
    assert _read(source, 299) == {"n": 299, "name": "number 299"}


def test_parts_and_combinations_are_converted_and_made_of_what_was_converted(
    tmp_path: Path,
) -> None:
    data = DatasetSource(Photos())
    both = ConcatSource([SliceSource(data, slice(3, 9)), data])
    source = convert(both, tmp_path / "both", progress=False)
    expected = [*range(3, 9), *range(N)]
    assert [element["raw"] for element in elements(source)] == [bytes(range(k)) for k in expected]
    train, test = split(source, (0.75, 0.25))
    again = convert(train, tmp_path / "train", progress=False)
    assert len(again) == len(train)
    assert len(again) + len(test) == len(expected)
    pairs = ZipSource({"a": again, "b": SliceSource(source, slice(0, len(again)))})
    found = elements(convert(pairs, tmp_path / "pairs", progress=False))
    assert [element["b"]["caption"] for element in found] == [
        Photos()[k]["caption"] for k in expected[: len(again)]
    ]


@pytest.mark.parametrize("workers", [0, 3])
def test_workers_change_nothing(workers: int, tmp_path: Path) -> None:
    convert(Photos(), tmp_path / "x", workers=workers, progress=False)
    convert(Photos(), tmp_path / "y", workers=1, worker_type="thread", progress=False)
    for path in (tmp_path / "y").iterdir():
        if path.suffix == ".npy":
            assert path.read_bytes() == (tmp_path / "x" / path.name).read_bytes()


@pytest.mark.slow
def test_processes_change_nothing(tmp_path: Path) -> None:
    convert(Photos(), tmp_path / "x", workers=2, worker_type="process", progress=False)
    convert(Photos(), tmp_path / "y", workers=0, progress=False)
    for path in (tmp_path / "y").iterdir():
        assert path.read_bytes() == (tmp_path / "x" / path.name).read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["x", "y"]


def test_progress_is_shown_in_elements(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    convert(Plain(), tmp_path / "x")
    said = capfd.readouterr().err
    assert f"{N}/{N}" in said
    assert "element" in said


def test_the_source_inside_jit_after_a_conversion(tmp_path: Path) -> None:
    source = convert(Plain(), tmp_path / "x", progress=False)
    loader = DataLoader([source, BatchTransform(4)])
    step = jax.jit(lambda loader, state: loader.next_batch(state))
    batch, _, _ = step(loader, loader.init_state(0))
    np.testing.assert_array_equal(batch["image"], IMAGES[:4])
