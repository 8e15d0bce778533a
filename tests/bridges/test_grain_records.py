"""Grain's sources of ArrayRecord files, first in a loader's list."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cereal
from cereal import BatchTransform, DataLoader, DatasetSource

from .checks import N, check_in_jit, check_resume, check_values, rows
from .decoders import as_floats

pytestmark = pytest.mark.bridges
grain = import_module("grain")
FLOATS = np.arange(N * 4, dtype=np.float32).reshape(N, 4)


@pytest.fixture
def records(tmp_path: Path) -> str:
    path = tmp_path / "ten.array_record"
    writer = import_module("array_record.python.array_record_module").ArrayRecordWriter(str(path))
    for row in FLOATS:
        writer.write(row.tobytes())
    writer.close()
    return str(path)


def test_a_source_of_array_records_is_read_from_its_files(records: str) -> None:
    source = grain.sources.ArrayRecordDataSource(records)
    for dataset in (source, grain.MapDataset.source(source)):
        made = DatasetSource(dataset)
        assert type(made.data.table).__name__ == "RecordTable"
        loader = DataLoader([made, cereal.HostMapTransform(as_floats), BatchTransform(5)])
        np.testing.assert_array_equal(rows(loader), FLOATS)


def test_maps_over_such_a_source_are_read_in_batches(records: str) -> None:
    def dataset() -> Any:
        source = grain.sources.ArrayRecordDataSource([f"{records}[6:10]", f"{records}[1:5]"])
        return grain.MapDataset.source(source).seed(1).map(as_floats).map(lambda x: x + 1)

    wanted = FLOATS[[6, 7, 8, 9, 1, 2, 3, 4]] + 1
    np.testing.assert_array_equal(np.stack([dataset()[i] for i in range(8)]), wanted)
    assert type(DatasetSource(dataset()).data.table).__name__ == "RecordTable"
    check_values(dataset(), wanted)
    check_resume(dataset, wanted)
    check_in_jit(dataset(), wanted)


def test_worker_processes_read_such_a_source(records: str) -> None:
    source = grain.sources.ArrayRecordDataSource(records)
    dataset = grain.MapDataset.source(source).map(as_floats)
    with DataLoader([dataset, BatchTransform(5)], workers=2, worker_type="process") as loader:
        np.testing.assert_array_equal(rows(loader), FLOATS)


class Decoded(grain.sources.ArrayRecordDataSource):
    """A user's source: its elements are what it says, not the records of its files."""

    def __getitem__(self, index: Any) -> Any:
        return as_floats(super().__getitem__(index)) * 2

    __getitems__ = None  # type: ignore[assignment]


def test_a_source_that_a_user_has_made_of_it_is_asked_itself(records: str) -> None:
    for dataset in (Decoded(records), grain.MapDataset.source(Decoded(records))):
        loader = DataLoader([dataset, BatchTransform(5)])
        np.testing.assert_array_equal(rows(loader), FLOATS * 2)


def test_other_datasets_over_such_a_source_are_grain_s_own(records: str) -> None:
    source = grain.sources.ArrayRecordDataSource(records)
    dataset = grain.MapDataset.source(source).map(as_floats).seed(0).shuffle()
    loader = DataLoader([dataset, BatchTransform(5)])
    wanted = np.stack([dataset[i] for i in range(N)])
    np.testing.assert_array_equal(rows(loader), wanted)
