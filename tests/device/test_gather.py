from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding
from tests.slowly import slowly

import cereal
from cereal.device import gather
from cereal.device.gather import take_rows
from cereal.testing import check_loader, check_source

pytestmark = pytest.mark.optimized

INDICES = np.array([4, 0, 4, 9], np.int32)


def pinned(data: Any) -> jax.Array:
    there = SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    return jax.device_put(data, there)


DATA = [
    np.arange(10, dtype=np.float32),
    np.arange(10 * 64, dtype=np.uint8).reshape(10, 8, 8),
    np.arange(10 * 6, dtype=np.uint16).reshape(10, 6),
    np.arange(10 * 3, dtype=np.int32).reshape(10, 3) > 14,
]


@pytest.mark.parametrize("data", DATA, ids=lambda data: f"{data.dtype}{data.shape}")
def test_rows_are_those_of_numpy_wherever_the_array_lies(data: np.ndarray) -> None:
    for array in (jnp.asarray(data), pinned(data)):
        for take in (take_rows, jax.jit(take_rows)):
            rows = take(array, jnp.asarray(INDICES))
            assert rows.sharding.memory_kind == jnp.zeros(()).sharding.memory_kind
            assert rows.dtype == data.dtype
            np.testing.assert_array_equal(rows, data[INDICES])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16, jnp.bfloat16])
def test_narrow_rows_gathered_as_words_are_the_same(dtype: Any) -> None:
    data = jnp.arange(10 * 16).reshape(10, 2, 8).astype(dtype)
    rows = gather._take_words(data, jnp.asarray(INDICES))
    assert rows.dtype == dtype
    np.testing.assert_array_equal(rows, np.asarray(data)[INDICES])


def test_only_large_batches_of_narrow_rows_of_whole_words_are_gathered_as_words() -> None:
    rows = gather._WORDS_FROM_BYTES // 64
    narrow = jnp.zeros((2, 64), jnp.uint8)
    assert gather._as_words(narrow, rows)
    assert not gather._as_words(narrow, rows - 1)
    assert not gather._as_words(jnp.zeros((2, 63), jnp.uint8), 2 * rows)
    assert not gather._as_words(jnp.zeros((2, 64), jnp.float32), rows)
    assert not gather._as_words(jnp.zeros((2, 64), jnp.bool_), rows)
    assert not gather._as_words(jnp.zeros((2, 64), jnp.int4), 2 * rows)


@pytest.mark.parametrize(
    "data", [slowly(DATA[0]), DATA[1]], ids=lambda data: f"{data.dtype}{data.shape}"
)
def test_pinned_host_memory_serves_next_jit_scan_and_vmap(data: np.ndarray) -> None:
    source = cereal.ArraySampleSource({"x": pinned(data)}, ordering=[4, 0, 4, 9, 1])
    (leaf,) = jax.tree.leaves(source.data)
    assert leaf.sharding.memory_kind == "pinned_host"
    check_source(source)
    loader = cereal.DataLoader([source, cereal.BatchTransform(4)])
    check_loader(loader)
    np.testing.assert_array_equal(loader.batch_at(0, 0)[0]["x"], data[INDICES])


def test_indices_of_batches_mapped_over_keys_read_pinned_memory() -> None:
    source = cereal.ArraySampleSource(pinned(DATA[1]), ordering="shuffle")
    loader = cereal.DataLoader([source, cereal.BatchTransform(4)])
    keys = jax.random.split(jax.random.key(0), 3)
    batches, _, _ = jax.vmap(loader.next_batch)(jax.vmap(loader.init_state)(keys))
    for lane, key in enumerate(keys):
        np.testing.assert_array_equal(batches[lane], DATA[1][loader.indices_at(key, 0)])
