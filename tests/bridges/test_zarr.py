"""Zarr stores, written by zarr, in formats 2 and 3."""

from __future__ import annotations

import os
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal import BatchTransform, DataLoader, HostMapTransform, PipelineError, ZarrSource
from cereal.testing import check_loader as check_all_ways
from cereal.testing import check_source

from .checks import (
    IMAGES,
    LABELS,
    N,
    check_in_jit,
    check_resume,
    check_shuffled,
    check_values,
    rows,
)

pytestmark = pytest.mark.bridges
zarr = import_module("zarr")

WANTED = {
    "image": IMAGES,
    "inner": {"flag": LABELS % 3 == 0, "half": LABELS.astype(np.float16) / 2},
    "label": LABELS,
}


def put(group: Any, name: str, values: np.ndarray, **options: Any) -> None:
    made = group.create_array(name, shape=values.shape, dtype=values.dtype, **options)
    made[...] = values


def fill(group: Any) -> None:
    put(group, "image", IMAGES, chunks=(3, 5, 2))
    put(group, "label", LABELS.astype(np.int64), chunks=(4,))
    inner = group.create_group("inner")
    put(inner, "flag", LABELS % 3 == 0, chunks=(N,))
    put(inner, "half", LABELS.astype(np.float16) / 2, chunks=(1,))
    put(group, "scalar", np.array(3.0))


@pytest.fixture(params=["2", "3", "zip"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "zip":
        store = zarr.storage.ZipStore(tmp_path / "data.zip", mode="w")
        fill(zarr.open_group(store, mode="w"))
        store.close()
        return tmp_path / "data.zip"
    fill(zarr.open_group(tmp_path / "data.zarr", mode="w", zarr_format=int(request.param)))
    return tmp_path / "data.zarr"


def take(source: Any, indices: Any) -> list[Any]:
    return source.data.table.take(np.asarray(indices))


def test_its_arrays_are_rows(path: Path) -> None:
    check_values(ZarrSource(path, ordering="sequential"), WANTED)


def test_by_every_road(tmp_path: Path) -> None:
    path = tmp_path / "data.zarr"
    fill(zarr.open_group(path, mode="w"))

    def source(ordering: str = "sequential") -> Any:
        return ZarrSource(path, ordering=ordering)

    check_resume(source, WANTED)
    check_in_jit(source(), WANTED)
    check_shuffled(source("shuffle"), WANTED, lambda found: found["label"])
    check_source(source("shuffle"))
    check_all_ways(DataLoader([source("shuffle"), BatchTransform(3)]))
    stages = [source(), BatchTransform(5)]
    with DataLoader(stages, workers=2, worker_type="process") as loader:
        assert rows(loader)["label"].tolist() == LABELS.tolist()


def test_some_of_it_is_chosen(path: Path) -> None:
    some = ZarrSource(path, ["label", "inner/flag"], index_key="at")
    assert sorted(some.element_spec()) == ["at", "inner", "label"]
    assert sorted(ZarrSource(path, "inner").element_spec()) == ["flag", "half"]
    assert ZarrSource(path, "image").element_spec().shape == (5, 6)
    with pytest.raises(PipelineError, match=r"names 'labels'.*did you mean 'label'\?"):
        ZarrSource(path, ["labels"])
    with pytest.raises(PipelineError, match=r"'scalar' of 'data\.\w+' has no rows"):
        ZarrSource(path, ["scalar"])


def test_an_array_by_itself(tmp_path: Path) -> None:
    made = zarr.create_array(tmp_path / "a.zarr", shape=(N,), dtype="i4", chunks=(4,))
    made[...] = LABELS
    check_values(ZarrSource(tmp_path / "a.zarr", ordering="sequential"), LABELS)


def test_arrays_of_different_lengths_are_named(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "a.zarr", mode="w")
    put(group, "x", np.zeros(3))
    put(group, "y", np.zeros(4))
    with pytest.raises(PipelineError, match=r"one length, but a\.zarr has 'x' 3, 'y' 4.*keys="):
        ZarrSource(tmp_path / "a.zarr")


def test_chunks_are_decoded_once_and_together(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "a.zarr", mode="w")
    put(group, "x", np.arange(2000.0).reshape(1000, 2), chunks=(100, 1))
    table = ZarrSource(tmp_path / "a.zarr").data.table
    assert table.blocks.tolist() == [100] * 10
    calls: list[Any] = []
    read = table.read
    table.read = lambda array, pieces: calls.append(list(pieces)) or read(array, pieces)
    order = np.random.default_rng(0).permutation(1000)
    for begin in range(0, 1000, 50):
        (x,) = table.take(order[begin : begin + 50])
        np.testing.assert_array_equal(x[:, 1], 2 * order[begin : begin + 50] + 1)
    assert sum(map(len, calls)) == 10
    assert len(calls) < 4


# Types


@pytest.mark.parametrize("version", [2, 3])
def test_numbers_text_and_times(version: int, tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=version)
    put(group, "big", LABELS.astype(">i2"), chunks=(4,))
    put(group, "times", LABELS.astype("M8[s]"), chunks=(4,))
    words = group.create_array("words", shape=(N,), dtype="str", chunks=(4,))
    words[...] = np.array(["ab"[: i % 3] for i in range(N)], object)
    source = ZarrSource(tmp_path / "a.zarr", ordering="sequential")
    big, times, text = take(source, [5, 1])
    assert (big.dtype, big.tolist()) == (np.int16, [5, 1])
    assert times == [np.datetime64(5, "s"), np.datetime64(1, "s")]
    assert text == ["ab", "a"]
    with pytest.raises(PipelineError, match=r"element\['times'\]` is a Python object.*a time"):
        DataLoader([source, BatchTransform(2)])
    numbers = HostMapTransform(lambda e: {"big": e["big"], "length": len(e["words"])})
    found = rows(DataLoader([source, numbers, BatchTransform(N)]))
    assert found["length"].tolist() == [i % 3 for i in range(N)]


def test_records_are_dicts(tmp_path: Path) -> None:
    records = np.zeros(N, [("b", "f4"), ("a", "i4")])
    records["a"], records["b"] = LABELS, LABELS / 2
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2)
    put(group, "r", records, chunks=(4,))
    wanted = {"r": {"a": LABELS, "b": (LABELS / 2).astype(np.float32)}}
    check_values(ZarrSource(tmp_path / "a.zarr", ordering="sequential"), wanted)


def test_chunks_within_shards(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "a.zarr", mode="w")
    put(group, "x", np.arange(100.0), chunks=(5,), shards=(50,))
    source = ZarrSource(tmp_path / "a.zarr")
    assert source.data.table.blocks.tolist() == [5] * 20
    assert take(source, [99, 0, 51])[0].tolist() == [99, 0, 51]


# What cannot be read


def test_stores_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.zarr").write_text("no store")
    zarr.open_group(tmp_path / "nothing.zarr", mode="w")
    for name, pattern in {
        "missing": "missing' does not exist",
        "empty": "is no Zarr store",
        "text.zarr": "is no Zarr store",
        "nothing.zarr": "has no arrays",
    }.items():
        with pytest.raises(PipelineError, match=pattern):
            ZarrSource(tmp_path / name)


def test_a_chunk_that_is_damaged_is_an_error(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "a.zarr", mode="w")
    put(group, "x", np.arange(100), chunks=(10,))
    source = ZarrSource(tmp_path / "a.zarr")
    (tmp_path / "a.zarr" / "x" / "c" / "5").write_bytes(b"no chunk")
    with pytest.raises(PipelineError, match=r"'x' of 'a\.zarr' cannot be read between rows 50"):
        take(source, [55])


@pytest.mark.parametrize("version", [2, 3])
def test_a_store_that_changes_is_an_error(version: int, tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=version)
    put(group, "x", np.arange(100), chunks=(10,))
    time.sleep(0.02)  # the clock of files is a coarse one
    source = ZarrSource(tmp_path / "a.zarr")
    assert take(source, [3])[0].tolist() == [3]
    time.sleep(0.02)
    group["x"][50:60] = 0  # the file of a chunk of zeros is deleted
    group["x"][70:80] = 1
    for index in (55, 75):
        with pytest.raises(PipelineError, match="was written after the source was built"):
            take(source, [index])
    name = "zarr.json" if version == 3 else ".zarray"
    os.utime(tmp_path / "a.zarr" / "x" / name, ns=(1, 1))
    with pytest.raises(PipelineError, match="has changed since the source was built"):
        take(source, [3])
