"""A write that stops between two columns: the next call goes on with whole elements."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cereal
from cereal import convert
from cereal.conversion import chunks
from cereal.conversion.column_files import ColumnFiles, Columns
from cereal.sources.files.npy_file import NpyFile

N = 400
DATA = {"a": np.arange(N, dtype=np.int32), "b": np.arange(N, dtype=np.float32) * 2}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
@pytest.mark.parametrize("at", [1, 2, 7, 8])
def test_it_goes_on_with_whole_elements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, error: BaseException
) -> None:
    monkeypatch.setattr(chunks, "_MOST_ELEMENTS", 8)
    source = cereal.ArraySampleSource(DATA, ordering="sequential")
    append, calls = ColumnFiles.append, []

    def stops(self: Any, *args: Any) -> None:
        calls.append(args)
        if len(calls) == at:
            raise error
        append(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(ColumnFiles, "append", stops)
        with pytest.raises((KeyboardInterrupt, cereal.PipelineError)):
            convert(source, tmp_path / "out", workers=0, progress=False)
    check_all(source, tmp_path / "out")


def check_all(source: Any, folder: Path) -> None:
    convert(source, folder, workers=0, progress=False)
    for name, values in DATA.items():
        np.testing.assert_array_equal(np.load(folder / f"{name}.npy"), values)


@pytest.mark.parametrize("stream", [False, True])
def test_an_interrupt_after_all_columns_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(chunks, "_MOST_ELEMENTS", 8)
    elements = cereal.ArraySampleSource(DATA, ordering="sequential")
    source: Any = cereal.IterableSource(numbers) if stream else elements
    append, calls = Columns.append, []

    def stops(self: Any, chunk: Any) -> None:
        append(self, chunk)
        calls.append(chunk)
        if len(calls) == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Columns, "append", stops)
        with pytest.raises(KeyboardInterrupt):
            convert(source, tmp_path / "out", workers=0, progress=False)
    check_all(source, tmp_path / "out")


def numbers() -> Iterator[dict[str, Any]]:
    yield from ({"a": DATA["a"][at], "b": DATA["b"][at]} for at in range(N))


def test_a_file_on_a_full_disk_is_closed_without_another_error(tmp_path: Path) -> None:
    file = NpyFile(tmp_path / "x.npy", np.dtype(np.uint8), 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        file.append(np.zeros(2000, np.uint8))  # waits in memory
        with pytest.raises(OSError, match="too large"):
            file.sync()
        file.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
