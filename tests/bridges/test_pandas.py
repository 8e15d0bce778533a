"""Frames of pandas, first in a loader's list."""

from __future__ import annotations

import datetime
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from cereal import (
    ArraySampleSource,
    BatchTransform,
    BlockShuffle,
    DataLoader,
    DatasetSource,
    HostFilterTransform,
    PipelineError,
    dataset_to_jax,
)
from cereal.order.rows import host_rows_at
from cereal.testing import check_loader as check_all_ways
from cereal.testing import check_source

from .checks import LABELS, N, check_in_jit, check_resume, check_shuffled, check_values, equal, rows

pytestmark = pytest.mark.bridges
pd = import_module("pandas")
pa = import_module("pyarrow")

WANTED = {
    "arrow": LABELS.astype(np.int8),
    "color": LABELS % 2,
    "flag": LABELS % 3 == 0,
    "label": LABELS,
    "null": LABELS.astype(np.float32),
    "sparse": LABELS,
    "x": (LABELS / 4).astype(np.float32),
}


def frame() -> Any:
    return pd.DataFrame(
        {
            "label": LABELS.astype(np.int64),
            "x": LABELS / 4,
            "flag": LABELS % 3 == 0,
            "color": pd.Categorical.from_codes(LABELS % 2, ["red", "blue", "green"]),
            "null": pd.array(LABELS, dtype="Float64"),
            "arrow": pd.array(LABELS, dtype=pd.ArrowDtype(pa.int8())),
            "sparse": pd.arrays.SparseArray(LABELS),
        },
        index=[f"row {i}" for i in range(N)],
    )


def test_a_frame_is_its_rows_by_every_road() -> None:
    check_values(frame(), WANTED)
    check_resume(frame, WANTED)
    check_in_jit(frame(), WANTED)
    source = DatasetSource(frame(), ordering="shuffle")
    check_shuffled(source, WANTED, lambda found: found["label"])
    check_source(source)
    check_all_ways(DataLoader([source, BatchTransform(3)]))
    assert source.classes == {"color": ("red", "blue", "green")}


def test_worker_processes_read_it() -> None:
    with DataLoader([frame(), BatchTransform(5)], workers=2, worker_type="process") as loader:
        equal(rows(loader), WANTED)


def test_a_frame_becomes_arrays() -> None:
    equal(dataset_to_jax(frame()), WANTED)
    found = ArraySampleSource(dataset_to_jax(frame()), ordering="sequential")
    equal(rows(DataLoader([found, BatchTransform(5)])), WANTED)
    with pytest.raises(PipelineError, match=r"dataset_to_jax: `dataset\['t'\]` is a Python object"):
        dataset_to_jax(pd.DataFrame({"t": ["a"], "n": [1]}))
    holed = pd.DataFrame({"n": pd.array([1, None], dtype="Int64")})
    with pytest.raises(PipelineError, match=r"`dataset\['n'\]` has no value in row 1"):
        dataset_to_jax(holed)
    with pytest.raises(PipelineError, match=rf"`dataset\['n'\]`: the integer {2**40} does not fit"):
        dataset_to_jax(pd.DataFrame({"n": [1, 2**40]}))


def test_frames_in_the_place_of_arrays_are_refused_with_the_shorter_way() -> None:
    with pytest.raises(PipelineError, match=r"of pandas; put it first .*`dataset_to_jax\(frame\)`"):
        ArraySampleSource(frame())
    with pytest.raises(PipelineError, match=r"`data\['a'\]` is a Series of pandas"):
        DataLoader([{"a": frame()["label"]}, BatchTransform(3)])


def test_numbers_are_not_copied_and_later_writes_change_nothing() -> None:
    data = pd.DataFrame(np.arange(20, dtype=np.float32).reshape(10, 2), columns=["a", "b"])
    source = DatasetSource(data)
    part = source.data.table._parts[0]
    assert np.shares_memory(part.values, data["a"].to_numpy())
    data.loc[0, "a"] = 99
    assert rows(DataLoader([source, BatchTransform(5)]))["a"].tolist() == list(range(0, 20, 2))


def test_missing_values_are_named() -> None:
    color = pd.Categorical(["a", None, "b"])
    for column in (pd.array([1, None, 3], dtype="Int32"), color, pd.array([True, None, False])):
        holed = pd.DataFrame({"n": column})
        with pytest.raises(PipelineError, match=r"element\['n'\]` is None, a missing") as caught:
            rows(DataLoader([holed, BatchTransform(3)]))
        assert caught.value.element.index == 1  # type: ignore[attr-defined]
        there = HostFilterTransform(lambda e: e["n"] is not None)
        assert len(rows(DataLoader([holed, there, BatchTransform(3)]))["n"]) == 2
    floats = rows(DataLoader([pd.DataFrame({"n": [1.0, None]}), BatchTransform(2)]))["n"]
    assert np.isnan(floats[1])  # in NumPy's floats, what is missing is NaN


def test_text_times_and_objects_reach_host_stages() -> None:
    data = pd.DataFrame(
        {
            "t": ["a", None, "ccc"],
            "when": pd.to_datetime(["2020-01-01", "2020-01-02", None]),
            "o": [[1], None, {"k": 2}],
            "arrow": pd.array(["x", None, "z"], dtype=pd.ArrowDtype(pa.string())),
        }
    )
    batch = DatasetSource(data)._reader.read(host_rows_at(np.arange(3)))
    seen = [batch.element(i) for i in range(3)]
    assert [e["t"] for e in seen] == ["a", None, "ccc"]
    assert [e["when"] for e in seen] == [
        datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 2), None,
    ]  # fmt: skip
    assert [e["o"] for e in seen] == [[1], None, {"k": 2}]
    assert [e["arrow"] for e in seen] == ["x", None, "z"]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (["a", "b"], r"element\['c'\]` is a Python object .*pandas' type str"),
        ([[1], [2, 3]], r"element\['c'\]` is .* a column of objects, the first a list \(\[1\]\)"),
        (np.array([1, "x"], object), r"first a int \(1\); write `frame\['c'\] = pandas.to_numeric"),
        (np.array([None, None], object), "all values are missing"),
        (pd.to_datetime(["2020-01-01"] * 2), r"a time \(datetime64"),
        (pd.period_range("2020", periods=2), "pandas' type period"),
        (pd.interval_range(0, 2), "pandas' type interval"),
    ],
)
def test_columns_that_are_no_numbers_say_what_they_hold(column: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        DataLoader([pd.DataFrame({"c": column}), BatchTransform(2)])


def test_names_of_columns() -> None:
    numbered = pd.DataFrame(np.zeros((4, 2)))
    assert sorted(rows(DataLoader([numbered, BatchTransform(2)]))) == [0, 1]
    twice = pd.DataFrame(np.zeros((4, 2)), columns=["a", "a"])
    with pytest.raises(PipelineError, match="two columns called 'a'"):
        DatasetSource(twice)
    mixed = pd.DataFrame(np.zeros((4, 2)), columns=["a", 1])
    with pytest.raises(PipelineError, match=r"several types, 'a' and 1; .*astype\(str\)"):
        DatasetSource(mixed)
    with pytest.raises(PipelineError, match="no columns"):
        DatasetSource(pd.DataFrame(index=[1, 2]))
    with pytest.raises(PipelineError, match="the dataset has 0 elements"):
        DatasetSource(pd.DataFrame({"a": []}))


def test_a_frame_does_not_lie_in_blocks() -> None:
    with pytest.raises(PipelineError, match="does not lie in blocks; give it a size"):
        DatasetSource(frame(), ordering=BlockShuffle())
    source = DatasetSource(frame(), ordering=BlockShuffle(3))
    check_shuffled(source, WANTED, lambda found: found["label"])


def test_the_names_of_caches_change_with_the_values() -> None:
    def name(data: Any) -> str:
        return repr(DatasetSource(data).data.digest_of())

    other, lists = frame(), frame().assign(o=[[i] for i in range(N)])
    other.iloc[3, 1] = 7
    assert name(frame()) == name(frame())
    assert len({name(frame()), name(other), name(lists), name(frame()[["label"]])}) == 4
    assert name(lists) == name(frame().assign(o=[[i] for i in range(N)]))


@pytest.mark.parametrize("arrow", [False, True])
def test_the_names_of_caches_change_with_the_numbers_of_categories(arrow: bool) -> None:
    def name(order: str) -> str:
        codes = [order.index(letter) for letter in "aba"]
        column = pd.Categorical.from_codes(codes, list(order))
        if arrow:
            found = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(list(order)))
            column = pd.array(found, dtype=pd.ArrowDtype(found.type))
        return repr(DatasetSource(pd.DataFrame({"c": column})).data.digest_of())

    assert name("ab") == name("ab")
    assert name("ab") != name("ba")
