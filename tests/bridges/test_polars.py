"""Frames of Polars, first in a loader's list."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

from cereal import (
    BatchTransform,
    DataLoader,
    DatasetSource,
    HostMapTransform,
    PipelineError,
    dataset_to_jax,
)
from cereal.testing import check_loader as check_all_ways
from cereal.testing import check_source

from .checks import LABELS, N, check_in_jit, check_resume, check_shuffled, check_values, equal, rows

pytestmark = pytest.mark.bridges
pl = import_module("polars")

WANTED = {
    "array": np.stack([LABELS, LABELS], axis=1).astype(np.float32),
    "color": LABELS % 2,
    "flag": LABELS % 3 == 0,
    "inner": {"small": LABELS.astype(np.int8)},
    "label": LABELS,
    "list": np.stack([LABELS, LABELS], axis=1),
    "size": 1 - LABELS % 2,
    "x": (LABELS / 4).astype(np.float32),
}


def frame() -> Any:
    """In two chunks."""
    whole = pl.DataFrame(
        {
            "label": LABELS.astype(np.int64),
            "x": LABELS / 4,
            "flag": LABELS % 3 == 0,
            "color": pl.Series(["red", "blue"] * (N // 2), dtype=pl.Categorical),
            "size": pl.Series(["large", "small"] * (N // 2), dtype=pl.Enum(["small", "large"])),
            "list": [[i, i] for i in range(N)],
            "array": pl.Series([[i, i] for i in range(N)], dtype=pl.Array(pl.Float64, 2)),
            "inner": pl.Series(
                [{"small": i} for i in range(N)], dtype=pl.Struct({"small": pl.Int8})
            ),
        }
    )
    return pl.concat([whole[:4], whole[4:]], rechunk=False)


def test_a_frame_is_its_rows_by_every_road() -> None:
    check_values(frame(), WANTED)
    check_resume(frame, WANTED)
    check_in_jit(frame(), WANTED)
    source = DatasetSource(frame(), ordering="shuffle")
    check_shuffled(source, WANTED, lambda found: found["label"])
    check_source(source)
    check_all_ways(DataLoader([source, BatchTransform(3)]))
    assert source.classes == {"color": ("red", "blue"), "size": ("small", "large")}


def test_worker_processes_read_it() -> None:
    with DataLoader([frame(), BatchTransform(5)], workers=2, worker_type="process") as loader:
        equal(rows(loader), WANTED)


def test_a_frame_becomes_arrays() -> None:
    equal(dataset_to_jax(frame()), WANTED)
    with pytest.raises(PipelineError, match=r"`dataset\['r'\]`: its rows have different lengths"):
        dataset_to_jax(pl.DataFrame({"r": [[1], [2, 3]]}))


def test_text_and_times_reach_host_stages() -> None:
    data = pl.DataFrame({"t": ["a", "bb", None], "d": pl.Series([1, 2, 3]).cast(pl.Date)})
    with pytest.raises(PipelineError, match=r"element\['t'\]` is a Python object .*string"):
        DataLoader([data.select("t"), BatchTransform(2)])
    stage = HostMapTransform(lambda e: {"n": len(e["t"] or ""), "day": e["d"].day})
    found = rows(DataLoader([data, stage, BatchTransform(3)]))
    assert found["n"].tolist() == [1, 2, 0]
    assert found["day"].tolist() == [2, 3, 4]


def test_a_query_must_be_run_first() -> None:
    for take in (DatasetSource, dataset_to_jax, lambda x: DataLoader([x, BatchTransform(2)])):
        with pytest.raises(PipelineError, match=r"LazyFrame .*`frame.collect\(\)`.*ParquetSource"):
            take(frame().lazy())


def test_objects_are_refused_with_what_they_are() -> None:
    data = pl.DataFrame({"o": pl.Series([{1}, {2}], dtype=pl.Object)})
    with pytest.raises(PipelineError, match=r"column 'o' holds Python objects, the first a set"):
        DatasetSource(data)


def test_missing_values_are_named() -> None:
    with pytest.raises(PipelineError, match=r"element\['n'\]` is None, a missing"):
        rows(DataLoader([pl.DataFrame({"n": [1, None, 3]}), BatchTransform(3)]))


def test_a_frame_without_rows_is_refused() -> None:
    with pytest.raises(PipelineError, match="no rows"):
        DatasetSource(pl.DataFrame({"a": []}))
