"""Programs round by how much they compute at once, machines each in its way: no difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tests.cache.hidden import HOW, N, batches

from cereal import (
    ArraySampleSource,
    CacheTransform,
    DataLoader,
    MapTransform,
    PipelineError,
    RangeSource,
)
from cereal.cache import check as cache_check


def normalised() -> list[Any]:
    """Floats that a program rounds according to how many it computes at once."""
    rows = np.random.default_rng(0).normal(size=(N, 512)).astype(np.float32)
    stage = MapTransform(lambda x: (x - x.mean()) / x.std())
    return [ArraySampleSource(rows, ordering="sequential"), stage]


def test_floats_of_programs_of_any_size_are_no_difference(tmp_path: Path) -> None:
    sizes = (40, 7, 1, 13)
    found = [batches([*normalised(), CacheTransform(tmp_path)], size)[:N] for size in sizes]
    assert len(list(tmp_path.iterdir())) == 1
    assert all((each == found[0]).all() for each in found)


@pytest.mark.parametrize("upper", ["host", "device", "folder"])
def test_floats_of_programs_above_another_cache_are_no_difference(
    upper: str, tmp_path: Path
) -> None:
    def stages() -> list[Any]:
        first = CacheTransform(tmp_path / "upper" if upper == "folder" else upper)
        return [*normalised(), first, CacheTransform(tmp_path / "lower")]

    for size in (8, 1):
        batches(stages(), size)
    assert len(list((tmp_path / "lower").iterdir())) == 1


CHANGES = {"rounding": (1e-6, True), "more than rounding": (1e-2, False)}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("change", CHANGES)
def test_rounding_is_a_difference_only_on_the_same_machine(
    how: str, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    factor, (by, opens) = tmp_path / "factor", CHANGES[change]
    factor.write_text("1.0")

    def stages() -> list[Any]:
        def fn(x: Any) -> Any:
            return (x + np.arange(1, 4, dtype=np.float32)) * np.float32(factor.read_text())

        return [RangeSource(N), HOW[how](fn), CacheTransform(tmp_path / "cache")]

    list(DataLoader(stages()))
    factor.write_text(str(1 + by))
    with pytest.raises(PipelineError, match="element 0 in its files"):
        DataLoader(stages())
    monkeypatch.setattr(cache_check, "_machine", lambda: "another one")
    if opens:
        DataLoader(stages())
    else:
        with pytest.raises(PipelineError, match="element 0 in its files"):
            DataLoader(stages())


ALIKE = [
    (np.array([1, 2], np.float32), np.array([1, 2.0001], np.float32), True),
    (np.array([1, 2], np.float32), np.array([1, 2.01], np.float32), False),
    (np.array([1, np.nan], np.float32), np.array([1, 2], np.float32), False),
    (np.array([np.inf, 1], np.float32), np.array([-np.inf, 1], np.float32), False),
    (np.zeros(99, np.uint8), np.array([1] + [0] * 98, np.uint8), True),
    (np.zeros(99, np.uint8), np.array([255] + [0] * 98, np.uint8), False),
    (np.zeros(99, np.uint8), np.ones(99, np.uint8), False),
    (np.array(3), np.array(4), False),
    (np.array([True]), np.array([False]), False),
    (np.array([1j], np.complex64), np.array([1.0001j], np.complex64), True),
    (np.array([1j], np.complex64), np.array([1], np.complex64), False),
    (np.ones(2, jnp.bfloat16), np.full(2, 1.01, jnp.bfloat16), True),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other", "alike"), ALIKE)
def test_what_another_machine_may_round_to(one: Any, other: Any, alike: bool) -> None:
    assert cache_check._alike(one, other) is alike
    assert cache_check._alike(other, one) is alike
    assert cache_check._alike(one, one.copy())
