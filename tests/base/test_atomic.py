"""A file that is written atomically is whole or is not there."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal.base.atomic import write_atomically

BIG = 1 << 16


def writing(content: bytes) -> Callable[[Any], Any]:
    return lambda file: file.write(content)


def names_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_file_has_what_was_written(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.bin", writing(b"first"))
    assert (tmp_path / "a.bin").read_bytes() == b"first"
    assert names_in(tmp_path) == ["a.bin"]


def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    write_atomically(tmp_path / "deep" / "down" / "a.bin", writing(b"first"))
    assert (tmp_path / "deep" / "down" / "a.bin").read_bytes() == b"first"


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_atomically(path, writing(b"long content"))
    write_atomically(path, writing(b"short"))
    assert path.read_bytes() == b"short"
    assert names_in(tmp_path) == ["a.bin"]


def test_whoever_has_the_old_file_open_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_atomically(path, writing(b"old"))
    with open(path, "rb") as old:
        write_atomically(path, writing(b"new"))
        assert old.read() == b"old"
    assert path.read_bytes() == b"new"


def test_numpy_writes_into_it(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.npy", lambda file: np.save(file, np.arange(5)))
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), np.arange(5))


@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt, SystemExit])
def test_an_error_in_the_middle_leaves_nothing(error: type[BaseException], tmp_path: Path) -> None:
    def half(file: Any) -> None:
        file.write(b"x" * BIG)
        raise error("half way")

    with pytest.raises(error, match="half way"):
        write_atomically(tmp_path / "a.bin", half)
    assert names_in(tmp_path) == []


def test_an_error_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_atomically(path, writing(b"old"))
    with pytest.raises(ZeroDivisionError, match="division"):
        write_atomically(path, lambda file: file.write(b"x" * (1 // 0)))
    assert path.read_bytes() == b"old"
    assert names_in(tmp_path) == ["a.bin"]


def test_nobody_sees_half_of_it_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"

    def look_on_the_way(file: Any) -> None:
        file.write(b"x" * BIG)
        file.flush()
        assert not path.exists()
        file.write(b"x" * BIG)

    write_atomically(path, look_on_the_way)
    assert path.stat().st_size == 2 * BIG


def test_a_place_that_cannot_be_replaced_leaves_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inside").touch()
    with pytest.raises(OSError, match="folder"):
        write_atomically(tmp_path / "folder", writing(b"x"))
    assert names_in(tmp_path) == ["folder"]


def test_many_writers_of_one_file_leave_one_of_their_files(tmp_path: Path) -> None:
    path, gate = tmp_path / "a.bin", threading.Barrier(8)
    contents = [bytes([number]) * BIG for number in range(8)]
    seen: set[bytes] = set()

    def write(content: bytes) -> None:
        gate.wait()
        for _ in range(10):
            write_atomically(path, writing(content))
            seen.add(path.read_bytes())

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen <= set(contents)
    assert path.read_bytes() in contents
    assert names_in(tmp_path) == ["a.bin"]


def test_others_may_read_it_as_any_other_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_atomically(tmp_path / "a.bin", writing(b"x"))
    assert (tmp_path / "a.bin").stat().st_mode == (tmp_path / "plain").stat().st_mode
