"""BufferTransform against cyreal's, whose meaning it has."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import numpy as np
import pytest

import cereal

pytestmark = pytest.mark.bridges

DATA = {"x": np.arange(23, dtype=np.int32), "y": np.arange(46, dtype=np.float32).reshape(23, 2)}


def cyreals(options: dict[str, Any], steps: int) -> list[tuple[Any, Any]]:
    sources: Any = importlib.import_module("cyreal.sources")
    transforms: Any = importlib.import_module("cyreal.transforms")
    source = transforms.BufferTransform(**options)(sources.ArraySource(DATA, ordering="sequential"))
    state, found, step = source.init_state(jax.random.key(0)), [], jax.jit(source.next)
    for _ in range(steps):
        batch, mask, state = step(state)
        found.append((batch, mask))
    return found


def ours(options: dict[str, Any], steps: int) -> list[tuple[Any, Any]]:
    source = cereal.ArraySampleSource(DATA, ordering="sequential")
    loader = cereal.DataLoader([source, cereal.BufferTransform(**options)])
    return list(loader.iterate(loader.init_state(jax.random.key(0)), steps=steps))


@pytest.mark.parametrize(
    ("capacity", "prefill", "size"), [(5, 1, 1), (5, 3, 2), (7, 7, 7), (30, 4, 3), (1, 1, 1)]
)
def test_sequential_samples_are_the_same(capacity: int, prefill: int, size: int) -> None:
    options = {"capacity": capacity, "prefill": prefill, "sample_size": size}
    for one, other in zip(ours(options, 60), cyreals(options, 60), strict=True):
        mask = np.asarray(one[1])
        np.testing.assert_array_equal(mask, other[1])
        for name in DATA:  # (padding is of real elements here, and of zeros there)
            np.testing.assert_array_equal(
                np.asarray(one[0][name])[mask], np.asarray(other[0][name])[mask]
            )


@pytest.mark.parametrize("write_mode", ["fifo", "reservoir"])
def test_what_is_random_has_the_same_shape_and_range(write_mode: str) -> None:
    options = {"capacity": 9, "prefill": 6, "sample_size": 3, "mode": "shuffled"}
    options |= {"write_mode": write_mode}
    for number, (one, other) in enumerate(
        zip(ours(options, 40), cyreals(options, 40), strict=True)
    ):
        np.testing.assert_array_equal(one[1], other[1])
        assert jax.tree.map(np.shape, one[0]) == jax.tree.map(np.shape, other[0])
        seen = {step % 23 for step in range(number + 1)}
        assert set(np.asarray(one[0]["x"])[np.asarray(one[1])].tolist()) <= seen
