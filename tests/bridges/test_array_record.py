"""ArrayRecord files, written by their library."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.sources.record_files import example

from cereal import ArrayRecordSource, BatchTransform, DataLoader, DatasetError, PipelineError
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
from .decoders import as_floats

pytestmark = pytest.mark.bridges
array_record = import_module("array_record.python.array_record_module")

FEATURES = {"image": ((5, 6), "uint8"), "label": ((), "int64")}
WANTED = {"image": IMAGES, "label": LABELS}
EXAMPLES = [example({"image": IMAGES[i].tobytes(), "label": i}) for i in range(N)]
FLOATS = np.arange(N * 4, dtype=np.float32).reshape(N, 4)


def write(path: Path, records: Iterable[bytes], options: str = "") -> Path:
    writer = array_record.ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    return path


@pytest.fixture(params=["group_size:1", "group_size:4,uncompressed", "group_size:100,brotli"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write(tmp_path / "ten.array_record", EXAMPLES, request.param)


@pytest.fixture
def floats(tmp_path: Path) -> Path:
    return write(tmp_path / "floats.array_record", [row.tobytes() for row in FLOATS])


def test_its_records_are_read_by_every_road(path: Path) -> None:
    check_values(ArrayRecordSource(path, FEATURES, "sequential"), WANTED)
    check_resume(lambda: ArrayRecordSource(path, FEATURES, "sequential"), WANTED)
    check_in_jit(ArrayRecordSource(path, FEATURES, "sequential"), WANTED)
    shuffled = ArrayRecordSource(path, FEATURES)
    check_shuffled(shuffled, WANTED, lambda found: found["label"])


def test_it_is_a_source_as_any_other(floats: Path) -> None:
    shuffled = ArrayRecordSource(floats, ((4,), "float32"))
    check_source(shuffled)
    check_all_ways(DataLoader([shuffled, BatchTransform(3)]))


@pytest.mark.parametrize("decode", [as_floats, ((4,), "float32")])
@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_workers_read_it(floats: Path, decode: Any, worker_type: Any) -> None:
    made = ArrayRecordSource(floats, decode, "sequential")
    with DataLoader([made, BatchTransform(5)], workers=2, worker_type=worker_type) as loader:
        np.testing.assert_array_equal(rows(loader), FLOATS)


def test_several_files_are_numbered_through(tmp_path: Path) -> None:
    for part, (begin, end) in enumerate([(0, 3), (3, 4), (4, N)]):
        write(tmp_path / f"train-{part}", EXAMPLES[begin:end])
    made = ArrayRecordSource(tmp_path / "train-*", FEATURES, "sequential", index_key="i")
    found = rows(DataLoader([made, BatchTransform(5)]))
    assert found["label"].tolist() == found["i"].tolist() == LABELS.tolist()


# What is wrong


def test_what_is_no_array_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.array_record"
    path.write_bytes(b"nothing of that kind" * 100)
    with pytest.raises(DatasetError, match=r"x\.array_record' is damaged, or no ArrayRecord file"):
        ArrayRecordSource(path)


def test_a_truncated_file_is_refused(floats: Path) -> None:
    floats.write_bytes(floats.read_bytes()[:-1000])
    with pytest.raises(DatasetError, match="damaged"):
        ArrayRecordSource(floats)


def test_damaged_data_is_an_error_of_its_element(tmp_path: Path) -> None:
    some = [bytes([i]) * 3000 for i in range(N)]
    path = write(tmp_path / "x", some, "group_size:1,uncompressed")
    content = bytearray(path.read_bytes())
    content[content.index(b"\x06" * 100) + 50] ^= 1
    path.write_bytes(content)
    made = ArrayRecordSource(path, ((3000,), "uint8"), "sequential")
    with pytest.raises(DatasetError, match=r"record 6 of '.*x' cannot be read") as caught:
        rows(DataLoader([made, BatchTransform(5)], workers=0))
    assert caught.value.element.index == 6  # type: ignore[attr-defined]
    left = rows(DataLoader([made, BatchTransform(5)], workers=0, on_error="skip"))
    assert left[:, 0].tolist() == [i for i in range(N) if i != 6]


def test_a_file_that_changes_is_refused(floats: Path) -> None:
    made = ArrayRecordSource(floats, ((4,), "float32"), "sequential")
    os.utime(floats, ns=(1, 1))
    with pytest.raises(PipelineError, match="has changed since"):
        rows(DataLoader([made, BatchTransform(5)]))


def test_records_of_another_size_are_named(floats: Path) -> None:
    with pytest.raises(DatasetError, match=r"record 0 of .* has 16 bytes, where uint8\[3\] has 3"):
        ArrayRecordSource(floats, ((3,), "uint8"))
    with pytest.raises(DatasetError, match=r"is no tf\.train\.Example"):
        ArrayRecordSource(floats, FEATURES)
