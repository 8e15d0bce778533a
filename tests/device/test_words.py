from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from cereal.device.words import WordRows, pack, worth_packing

pytestmark = pytest.mark.optimized

N = 9
NARROW = [np.uint8, np.int8, np.uint16, np.int16]


def rows(dtype: Any, *shape: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return np.random.default_rng(0).integers(limits.min, limits.max, (N, *shape), dtype)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("shape", [(64,), (8, 8), (2, 4, 10), (1, 100)], ids=str)
def test_words_taken_apart_are_the_rows_they_were(dtype: Any, shape: tuple[int, ...]) -> None:
    data = rows(dtype, *shape)
    for packed in (pack(data), pack(jnp.asarray(data))):
        assert packed.words.dtype == jnp.uint32
        assert packed.shape == data.shape
        for indices in ([0], [8, 8, 3, 0]):
            taken = packed.take(jnp.array(indices))
            assert taken.dtype == dtype
            np.testing.assert_array_equal(taken, data[indices])


def test_indices_of_any_shape_are_taken() -> None:
    data = rows(np.uint8, 8, 8)
    indices = np.array([[0, 5, 1], [8, 8, 2]])
    taken = jax.jit(lambda packed, indices: packed.take(indices))(pack(data), indices)
    np.testing.assert_array_equal(taken, data[indices])
    one = jax.vmap(pack(data).take)(jnp.array([3, 4]))
    np.testing.assert_array_equal(one, data[[3, 4]])


def test_words_are_a_pytree_of_one_array_that_compares_by_shape_and_dtype() -> None:
    packed = pack(rows(np.uint8, 8, 8))
    assert [leaf.dtype for leaf in jax.tree.leaves(packed)] == [jnp.uint32]
    assert jax.tree.structure(packed) == jax.tree.structure(pack(rows(np.uint8, 8, 8) + 1))
    assert jax.tree.structure(packed) != jax.tree.structure(pack(rows(np.uint8, 64)))
    assert jax.tree.structure(packed) != jax.tree.structure(pack(rows(np.int8, 8, 8)))
    assert isinstance(jax.tree.map(lambda x: x, packed), WordRows)


@pytest.mark.parametrize(
    ("data", "worth"),
    [
        (rows(np.uint8, 16, 16), True),
        (rows(np.uint8, 28, 28), True),
        (rows(np.int16, 16, 16), True),
        (rows(np.uint8, 8, 8), False),  # short rows
        (rows(np.uint8, 784), False),  # one axis: gathered fast as it is
        (rows(np.uint8, 64, 64), False),  # long rows
        (rows(np.uint8, 32, 32, 3), False),  # the last axis is no whole number of words
        (rows(np.uint16, 16, 33), False),
        (rows(np.uint8), False),
        (rows(np.int32, 16, 16), False),  # wide enough already
        (np.zeros((N, 16, 16), np.float16), False),
        (np.zeros((N, 16, 16), np.bool_), False),
        (np.zeros((N, 16, 16), jnp.bfloat16), False),
        (jax.random.split(jax.random.key(0), N), False),
        (np.zeros((N, 16, 16), ">i2"), False),
    ],
)
def test_small_images_of_narrow_integers_are_worth_packing(data: Any, worth: bool) -> None:
    assert worth_packing(data) is worth
    if isinstance(data, np.ndarray) and data.dtype.isnative:
        assert worth_packing(jnp.asarray(data)) is worth


def test_arrays_that_are_spread_or_pinned_stay_as_they_are() -> None:
    data = np.zeros((8, 16, 16), np.uint8)
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    spread = jax.device_put(data, NamedSharding(mesh, PartitionSpec("data")))
    pinned = SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    assert not worth_packing(spread)
    assert not worth_packing(jax.device_put(data, pinned))


def test_numpy_data_is_copied_and_a_jax_array_is_seen_as_it_lies() -> None:
    data = np.zeros((N, 64), np.uint8)
    packed = pack(data)
    data[:] = 7
    assert not np.asarray(packed.words).any()
    array = jnp.zeros((N, 64), jnp.uint8)
    assert pack(array).words.unsafe_buffer_pointer() == array.unsafe_buffer_pointer()


@pytest.mark.parametrize("committed", [False, True])
def test_words_are_committed_where_the_array_was(committed: bool) -> None:
    array = jnp.zeros((N, 64), jnp.uint8)
    if committed:
        array = jax.device_put(array, jax.devices()[1])
    packed = pack(array)
    assert packed.words.devices() == array.devices()
    assert packed.words.committed == committed
