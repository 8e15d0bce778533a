"""What a cache refuses, and how it is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    CacheTransform,
    DataLoader,
    MixSource,
    PipelineError,
    RandomMapTransform,
    RangeSource,
)

WHERE = ["device", "host", "folder"]


def cache(where: str, tmp_path: Path) -> CacheTransform:
    return CacheTransform(tmp_path if where == "folder" else where)


@cereal.pytree_dataclass
class Walk(cereal.Source[Any]):
    steps_per_epoch: int = cereal.static_field(default=4)

    def element_spec(self) -> Any:
        return jax.ShapeDtypeStruct((), np.int32)

    def init_state(self, key: Any) -> Any:
        return jnp.int32(0)

    def next(self, state: Any) -> tuple[Any, Any, Any]:
        return state, jnp.bool_(True), state + 1


REFUSED: list[tuple[list[Any], str]] = [
    ([RangeSource(4), RandomMapTransform(lambda x, key: x)], "Move the random stage below"),
    ([RangeSource(4), BatchTransform(2)], "cannot keep batches; put it before the BatchTransform"),
    ([MixSource([RangeSource(4)])], "change from epoch to epoch.*cache its sources instead"),
    ([RangeSource(4), cereal.HostCallbackTransform(lambda b, mask: None)], "move that below"),
    ([Walk()], "cannot keep a stream"),
]


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(("stages", "why"), REFUSED)
def test_what_changes_from_epoch_to_epoch_is_refused(
    stages: list[Any], why: str, where: str, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match=why):
        DataLoader([*stages, cache(where, tmp_path)])


@pytest.mark.parametrize("where", [None, 3, b"device", ["host"]])
def test_a_place_that_is_no_place_is_refused(where: Any) -> None:
    with pytest.raises(PipelineError, match='must be "device", "host" or a folder, got'):
        CacheTransform(where)


def test_random_keys_on_the_host_are_refused_by_name() -> None:
    source = ArraySampleSource(jax.random.split(jax.random.key(0), 4))
    with pytest.raises(PipelineError, match="random key"):
        DataLoader([source, CacheTransform("host")])


@pytest.mark.parametrize("where", ["device", "host"])
def test_traced_data_is_refused_by_name(where: str) -> None:
    def first(fold: Any) -> Any:
        part, _ = cereal.kfold(RangeSource(8), 4, fold)
        loader = DataLoader([part, CacheTransform(where)])
        return loader.next_batch(loader.init_state(0))[0]

    with pytest.raises(PipelineError, match="traced"):
        jax.jit(first)(1)


def test_the_drawing_shows_the_stages_above_and_below() -> None:
    drawn = repr(DataLoader([RangeSource(8), CacheTransform("host"), BatchTransform(4)]))
    places = [drawn.index(name) for name in ("RangeSource(", "CacheTransform('host')", "Batch")]
    assert places == sorted(places)
