"""Bytes at any place of many files, by many threads, with few of them open."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from cereal import PipelineError
from cereal.reading.files import random_access as module
from cereal.reading.files.random_access import RandomAccess
from cereal.reading.files.watched import WatchedFile


@pytest.fixture
def files(tmp_path: Path) -> list[WatchedFile]:
    for number in range(8):
        (tmp_path / f"{number}").write_bytes(bytes([number]) * 100 + b"end")
    return [WatchedFile(tmp_path / f"{number}", "X") for number in range(8)]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_any_bytes_of_any_file(files: list[WatchedFile]) -> None:
    access = RandomAccess(files)
    assert access.read(3, 98, 3) == b"\x03\x03e"
    assert access.read(0, 0, 2) == b"\x00\x00"
    assert access.read(3, 100, 0) == b""


def test_behind_the_end_there_is_less(files: list[WatchedFile]) -> None:
    assert RandomAccess(files).read(1, 101, 50) == b"nd"


def test_a_read_in_pieces_is_put_together(files: list[WatchedFile], monkeypatch: Any) -> None:
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, at: read(file, min(size, 7), at))
    assert RandomAccess(files).read(2, 0, 103) == bytes([2]) * 100 + b"end"


def test_only_some_are_open_and_none_is_left_open(
    files: list[WatchedFile], monkeypatch: Any
) -> None:
    monkeypatch.setattr(module, "_MOST_OPEN", 3)
    before = descriptors()
    access = RandomAccess(files)
    for number in (*range(8), 1, *range(8)):
        assert access.read(number, 99, 1) == bytes([number])
        assert descriptors() <= before + 3
    del access
    gc.collect()
    assert descriptors() == before


def test_threads_share_them(files: list[WatchedFile], monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "_MOST_OPEN", 2)
    access, wrong = RandomAccess(files), []

    def read(seed: int) -> None:
        for step in range(400):
            number = (seed * 7 + step * 5) % 8
            if access.read(number, 50, 53) != bytes([number]) * 50 + b"end":
                wrong.append(number)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_file_that_has_changed_is_noticed(files: list[WatchedFile]) -> None:
    access = RandomAccess(files)
    Path(files[5].path).write_bytes(b"?")
    access.check([0, 1])
    with pytest.raises(PipelineError, match="5' has changed"):
        access.check([4, 5])
