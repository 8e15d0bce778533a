"""Stages of Python over whole batches: every process computes them whole, and keeps its part."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from tests.many_hosts.jobs import gathered
from tests.many_hosts.launch import launch

import cereal
from cereal import BatchTransform, DataLoader, DiskSampleSource, HostMapTransform, pad_collate

STAGES = ["collate", "a function of the batch"]


def pipeline(stage: str, size: int) -> list[Any]:
    texts = DiskSampleSource(40, lambda i: {"x": np.arange(i % 5 + 1)}, ordering="shuffle")
    if stage == "collate":
        return [texts, BatchTransform(size, pad_last_batch=True, collate=pad_collate(max_length=6))]
    numbers = DiskSampleSource(40, lambda i: {"x": np.float32(i)}, ordering="shuffle")
    ranks = HostMapTransform(lambda batch: {**batch, "rank": np.argsort(batch["x"])})
    return [numbers, BatchTransform(size, pad_last_batch=True), ranks]


def same_as_alone(stage: str, size: int) -> list[int]:
    """Compares all batches of an epoch with those of a loader without a mesh."""
    alone = DataLoader(pipeline(stage, size), workers=0)
    spread = DataLoader(pipeline(stage, size), workers=1, sharding=(cereal.mesh(data=-1), "data"))
    lanes = []
    pairs = zip(
        alone.iterate(alone.init_state(3)), spread.iterate(spread.init_state(3)), strict=True
    )
    for (batch, mask), given in pairs:
        found, real = gathered(given)
        np.testing.assert_array_equal(real[:size], mask)
        assert not real[size:].any()
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(b[:size], a), batch, found)
        lanes.append(len(real))
    spread.close()
    return lanes


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("size", "lanes"), [(8, [8] * 5), (10, [12] * 4)])
def test_one_process_gives_the_same_batches(stage: str, size: int, lanes: list[int]) -> None:
    assert same_as_alone(stage, size) == lanes


@pytest.mark.slow  # two processes
@pytest.mark.parametrize("stage", STAGES)
def test_two_processes_give_the_same_batches(stage: str) -> None:
    name = "tests.many_hosts.test_whole_batches:same_as_alone"
    assert launch(name, processes=2, devices=2, stage=stage, size=10) == [[12] * 4] * 2
