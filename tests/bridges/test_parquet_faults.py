"""Parquet files that are wrong, or asked for wrongly: each error says what, where, and the fix."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from cereal import BatchTransform, DataLoader, ParquetSource, PipelineError

from .test_arrow import table
from .test_parquet import numbers, read, write

pytestmark = pytest.mark.bridges
pa, pq = import_module("pyarrow"), import_module("pyarrow.parquet")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return Path(write(tmp_path, "rows.parquet", table(), 4))


def test_files_that_are_not_there_are_named_with_those_that_are(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", numbers(3))
    with pytest.raises(PipelineError, match=r"'.*b\.parquet' does not exist; in .* 'a\.parquet'"):
        ParquetSource(tmp_path / "b.parquet")
    with pytest.raises(PipelineError, match=r"no file matches .*x\*\.parquet'; in .*'a\.parquet'"):
        ParquetSource(tmp_path / "x*.parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(PipelineError, match=r"has no files that end in \.parquet.* is empty"):
        ParquetSource(tmp_path / "empty")
    with pytest.raises(PipelineError, match="which is no file; cereal reads files: copy"):
        ParquetSource("s3://bucket/a.parquet")
    with pytest.raises(PipelineError, match="is named twice"):
        ParquetSource([tmp_path, tmp_path / "a.parquet"])
    for wrong in ([], 3, None):
        with pytest.raises(PipelineError, match=r"`paths` is an empty list|`paths` must be a path"):
            ParquetSource(wrong)  # type: ignore[arg-type]


def test_columns_that_are_not_there_are_named_with_those_that_are(path: Path) -> None:
    with pytest.raises(PipelineError, match=r"no column 'colour'; it has 'label', 'x'"):
        ParquetSource(path, ["colour"])
    with pytest.raises(PipelineError, match=r"the column 'inner' of .*no column 'f'.*'flag'"):
        ParquetSource(path, ["inner.f"])
    with pytest.raises(PipelineError, match=r"'label' of type int64, in which there is no 'f'"):
        ParquetSource(path, ["label.f"])
    with pytest.raises(PipelineError, match="`columns` must be a list of names"):
        ParquetSource(path, [])
    with pytest.raises(PipelineError, match="a dict of `columns` has a name"):
        ParquetSource(path, {"x": 3})  # type: ignore[dict-item]
    with pytest.raises(PipelineError, match=r"'x' does not have one number in each row"):
        ParquetSource(path, {"a": ["label", "x"]})


@pytest.mark.parametrize(
    ("fill", "message"),
    [
        ({"y": 0}, r"`fill` names 'y', and a\.parquet has no such column; it has 'x'"),
        ({"x": "a"}, r"`fill=\{'x': 'a'\}` is no value of that column, whose type is double"),
        ({"x": None}, "is no value of that column"),
        ({"r": 0}, r"is no value of that column, whose type is list"),
        (0, "`fill` must be a dict"),
    ],
)
def test_wrong_fills_are_refused(tmp_path: Path, fill: Any, message: str) -> None:
    path = write(tmp_path, "a.parquet", pa.table({"x": [1.0], "r": [[1]]}))
    with pytest.raises(PipelineError, match=message):
        ParquetSource(path, fill=fill)


def test_a_part_of_an_array_must_not_be_missing(tmp_path: Path) -> None:
    path = write(tmp_path, "a.parquet", pa.table({"a": [1, 2], "b": [1, None]}))
    with pytest.raises(PipelineError, match=r"'b', a part of 'x', has missing.*fill=\{'b': 0\}"):
        read(ParquetSource(path, {"x": ["a", "b"]}))
    source = ParquetSource(path, {"x": ["a", "b"]}, "sequential", fill={"b": 0})
    assert read(source)["x"].tolist() == [[1, 1], [2, 0]]


def test_files_with_different_columns_are_named_with_the_column(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", pa.table({"x": [1], "y": [1]}))
    write(tmp_path, "b.parquet", pa.table({"x": [1.0], "y": [2]}))
    with pytest.raises(PipelineError, match=r"'x' is int64 in '.*a\.p.*' and double in '.*b\.p"):
        ParquetSource(tmp_path)
    assert read(ParquetSource(tmp_path, ["y"], "sequential"))["y"].tolist() == [1, 2]
    write(tmp_path, "b.parquet", pa.table({"y": [2]}))
    with pytest.raises(PipelineError, match=r"a\.parquet' has 'x', and '.*b\.parquet' has not"):
        ParquetSource(tmp_path)


def test_a_file_that_was_cut_off_is_named(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(PipelineError, match=r"rows\.parquet' is no whole Parquet file: .*cut off"):
        ParquetSource(path)
    path.write_bytes(b"")
    with pytest.raises(PipelineError, match=r"rows\.parquet' is no whole Parquet file"):
        ParquetSource(path)


def test_a_damaged_row_group_is_named(tmp_path: Path) -> None:
    path = Path(write(tmp_path, "a.parquet", numbers(5000), 2500))
    damaged = bytearray(path.read_bytes())
    damaged[4 : len(damaged) // 2 - 500] = b"\xff" * (len(damaged) // 2 - 504)
    path.write_bytes(damaged)
    with pytest.raises(PipelineError, match=r"row group 0 of '.*a\.parquet' cannot be read"):
        read(ParquetSource(path, ordering="sequential"))


def test_a_file_that_changes_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "a.parquet", numbers(100), 10)
    source = ParquetSource(path, ordering="sequential", cache_bytes=0)
    with DataLoader([source, BatchTransform(5)], workers=0) as loader:
        loader.batch_at(0, 0)
        write(tmp_path, "a.parquet", numbers(200), 10)
        with pytest.raises(PipelineError, match=r"a\.parquet' has changed since the source was"):
            loader.batch_at(0, 5)
        os.remove(path)
        with pytest.raises(PipelineError, match=r"a\.parquet' is gone"):
            loader.batch_at(0, 5)


def test_what_pyarrow_has_opened_already_is_refused_with_the_line_to_write(path: Path) -> None:
    data = import_module("pyarrow.dataset").dataset(str(path))
    with pytest.raises(PipelineError, match=r"SystemDataset .*`ParquetSource\(dataset.files\)`"):
        DataLoader([data, BatchTransform(2)])
    assert len(ParquetSource(data.files)) == 10
    with (
        pq.ParquetFile(path) as file,
        pytest.raises(PipelineError, match=r"Source\(path\)`"),
    ):
        DataLoader([file, BatchTransform(2)])
