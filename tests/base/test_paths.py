"""Arguments that are paths, wherever they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cereal
from cereal import MNISTDataset, RangeSource, save_arrays, select
from cereal.base.paths import as_path


def test_a_path_is_a_string_or_a_path_and_its_home_is_found() -> None:
    assert as_path("a/b", "path", "f") == as_path(Path("a/b"), "path", "f") == Path("a/b")
    assert as_path("~/b", "path", "f") == Path.home() / "b"


@pytest.mark.parametrize("path", [3, None, "", b"data", ["data"]])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(cereal.PipelineError, match=r"^save_arrays: `path` must be a path, such"):
        save_arrays(path, {"a": np.zeros(2)})
    if path is not None:
        with pytest.raises(cereal.PipelineError, match="`cache_dir` must be a path, such as"):
            MNISTDataset(cache_dir=path)
        with pytest.raises(cereal.PipelineError, match=r"^select: `cache` must be a path, such"):
            select(RangeSource(4), lambda x: x > 1, cache=path)
