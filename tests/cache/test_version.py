"""A version is part of a cache's name, and stands in for what has no digest."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cache.hidden import batches, hidden

from cereal import (
    CacheTransform,
    DataLoader,
    HostMapTransform,
    PipelineError,
    RangeSource,
)


def test_what_has_no_digest_is_refused_without_a_version(tmp_path: Path, number: Path) -> None:
    lock = threading.Lock()

    def stages(version: Any) -> list[Any]:
        def locked(x: Any) -> Any:
            with lock:
                return x * hidden(number)

        cache = CacheTransform(tmp_path / "cache", version=version)
        return [RangeSource(1, 9), HostMapTransform(locked), cache]

    with pytest.raises(
        PipelineError, match=r"a lock .*; write `CacheTransform\(folder, version=1\)`"
    ):
        DataLoader(stages(None))
    for _ in range(2):
        np.testing.assert_array_equal(batches(stages("a")), range(1, 9))
    number.write_text("2")
    with pytest.raises(PipelineError, match=r"CacheTransform\(.*, version='a'\): element 0 in"):
        DataLoader(stages("a"))


def test_every_version_has_a_cache_of_its_own(tmp_path: Path) -> None:
    for version in (None, 1, 2, "2024-01.b+x", 1):
        list(DataLoader([RangeSource(4), CacheTransform(tmp_path, version=version)]))
    names = sorted(path.name.partition("-")[2] for path in tmp_path.iterdir())
    assert names == ["", "1", "2", "2024-01.b+x"]


@pytest.mark.parametrize("version", ["", "a/b", "a b", 1.5, True, b"x"])
def test_a_version_that_is_no_name_is_refused(version: Any, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="`version` must be an integer, or a word"):
        CacheTransform(tmp_path, version=version)


@pytest.mark.parametrize("where", ["device", "host"])
def test_a_version_of_what_has_no_files_is_refused(where: str) -> None:
    with pytest.raises(PipelineError, match="`version=1` is part of the name of files, and"):
        CacheTransform(where, version=1)
