"""Elements that could not be read are no elements: they are never kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal import (
    BatchTransform,
    CacheTransform,
    DataLoader,
    HostMapTransform,
    PipelineError,
    RangeSource,
)


def test_what_is_missing_where_nobody_may_write_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = [RangeSource(8), CacheTransform(tmp_path), BatchTransform(4)]
    first: Any = DataLoader(stages)
    np.testing.assert_array_equal(first.batch_at(0, 1)[0], range(4, 8))
    first.source.source.store.save()
    monkeypatch.setattr(os, "access", lambda *_: False)
    loader = DataLoader(stages)
    np.testing.assert_array_equal(loader.batch_at(0, 1)[0], range(4, 8))
    with pytest.raises(PipelineError, match="element 0 is missing, and its files cannot be wri"):
        loader.batch_at(0, 0)


@pytest.mark.parametrize("where", ["host", "folder"])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_element_that_failed_is_masked_and_tried_again(
    where: str, workers: int, tmp_path: Path
) -> None:
    bad = tmp_path / "bad"
    bad.touch()

    def fn(x: Any) -> Any:
        if x == 2 and bad.exists():
            raise ValueError("this one")
        return x * 10

    cache = CacheTransform(tmp_path / "cache" if where == "folder" else where)
    stages = [RangeSource(8), HostMapTransform(fn), cache, BatchTransform(4)]
    loader = DataLoader(stages, workers=workers, on_error="skip")
    masks = [mask.tolist() for _, mask in loader.iterate(loader.init_state(0))]
    assert masks == [[True, True, False, True], [True] * 4]
    bad.unlink()
    pairs = list(loader.iterate(loader.init_state(1)))
    assert all(mask.all() for _, mask in pairs)
    np.testing.assert_array_equal(np.concatenate([b for b, _ in pairs]), 10 * np.arange(8))
