from __future__ import annotations

import warnings

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cereal.order.permutation import ROUNDS_64
from cereal.order.threefry import ORDER, STAGE, threefry

pytestmark = pytest.mark.optimized

# Threefry-2x32 with 20 rounds, from Random123's kat_vectors: key, counter, block.
KNOWN_ANSWERS = [
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]

words = st.integers(0, 2**32 - 1)


def as_numpy(pair: tuple[int, int]) -> tuple[np.uint32, np.uint32]:
    return np.uint32(pair[0]), np.uint32(pair[1])


def as_jax(pair: tuple[int, int]) -> tuple[jax.Array, jax.Array]:
    return jnp.uint32(pair[0]), jnp.uint32(pair[1])


def random_words(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, shape, dtype=np.uint32)


@pytest.mark.parametrize(("key", "counter", "block"), KNOWN_ANSWERS)
def test_numpy_gives_the_published_answers(
    key: tuple[int, int], counter: tuple[int, int], block: tuple[int, int]
) -> None:
    first, second = threefry(as_numpy(key), as_numpy(counter))
    assert (int(first), int(second)) == block


@pytest.mark.parametrize(("key", "counter", "block"), KNOWN_ANSWERS)
@pytest.mark.parametrize("jitted", [False, True])
def test_jax_gives_the_published_answers(
    key: tuple[int, int], counter: tuple[int, int], block: tuple[int, int], jitted: bool
) -> None:
    run = jax.jit(threefry) if jitted else threefry
    first, second = run(as_jax(key), as_jax(counter))
    assert (int(first), int(second)) == block


@settings(deadline=None, max_examples=50)
@given(st.tuples(words, words), st.integers(0, 2**32 - 1))
def test_numpy_and_jax_give_the_same_bits(key: tuple[int, int], seed: int) -> None:
    high, low = random_words(seed, 2, 64)
    on_host = threefry(as_numpy(key), (high, low))
    on_device = threefry(as_jax(key), (jnp.asarray(high), jnp.asarray(low)))
    np.testing.assert_array_equal(on_host[0], np.asarray(on_device[0]))
    np.testing.assert_array_equal(on_host[1], np.asarray(on_device[1]))


@settings(deadline=None, max_examples=50)
@given(st.tuples(words, words), st.integers(0, 2**32 - 1))
def test_numpy_gives_the_bits_of_jax_itself(key: tuple[int, int], seed: int) -> None:
    high, low = random_words(seed, 2, 64)
    blocks = jax.extend.random.threefry_2x32(
        jnp.asarray(key, jnp.uint32), jnp.concatenate([jnp.asarray(high), jnp.asarray(low)])
    )
    on_host = threefry(as_numpy(key), (high, low))
    np.testing.assert_array_equal(np.concatenate(on_host), np.asarray(blocks))


def test_a_block_does_not_depend_on_the_blocks_beside_it() -> None:
    # jax.extend.random.threefry_2x32 pads counters of odd length: that must not show.
    key = as_numpy((3, 4))
    high, low = random_words(0, 2, 7)
    for form in (np.asarray, jnp.asarray):
        together = threefry(key, (form(high), form(low)))
        for lane in range(7):
            alone = threefry(key, (form(high[lane : lane + 1]), form(low[lane : lane + 1])))
            assert int(alone[0][0]) == int(together[0][lane])
            assert int(alone[1][0]) == int(together[1][lane])


@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3), (0,), (4, 0), (2, 3, 4)])
def test_blocks_have_the_shape_and_type_of_the_counters(shape: tuple[int, ...]) -> None:
    high, low = random_words(1, *shape), random_words(2, *shape)
    high, low = np.asarray(high, np.uint32), np.asarray(low, np.uint32)
    on_host = threefry(as_numpy((5, 6)), (high, low))
    on_device = threefry(as_jax((5, 6)), (jnp.asarray(high), jnp.asarray(low)))
    for host, device in zip(on_host, on_device, strict=True):
        assert isinstance(host, np.ndarray)
        assert isinstance(device, jax.Array)
        assert host.shape == device.shape == shape
        assert host.dtype == device.dtype == np.uint32
        np.testing.assert_array_equal(host, np.asarray(device))


def test_counters_of_different_shapes_are_broadcast() -> None:
    high, low = random_words(3, 4, 1), random_words(4, 5)
    wide_high, wide_low = np.broadcast_arrays(high, low)
    full = threefry(as_numpy((7, 8)), (wide_high, wide_low))
    on_host = threefry(as_numpy((7, 8)), (high, low))
    on_device = threefry(as_jax((7, 8)), (jnp.asarray(high), jnp.asarray(low)))
    for expected, host, device in zip(full, on_host, on_device, strict=True):
        np.testing.assert_array_equal(host, expected)
        np.testing.assert_array_equal(np.asarray(device), expected)


def test_a_numpy_key_serves_jax_counters() -> None:
    counter = as_jax((1, 2))
    mixed = threefry(as_numpy((9, 10)), counter)
    assert isinstance(mixed[0], jax.Array)
    expected = threefry(as_numpy((9, 10)), as_numpy((1, 2)))
    assert [int(word) for word in mixed] == [int(word) for word in expected]


def test_scalars_that_overflow_do_not_warn() -> None:
    largest = as_numpy((2**32 - 1, 2**32 - 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        threefry(largest, largest)
        threefry(largest, (np.full(3, 2**32 - 1, np.uint32), np.full(3, 2**32 - 1, np.uint32)))


def test_the_arguments_are_left_as_they_were() -> None:
    high, low = random_words(5, 2, 10)
    before = high.copy(), low.copy()
    threefry(as_numpy((11, 12)), (high, low))
    np.testing.assert_array_equal(high, before[0])
    np.testing.assert_array_equal(low, before[1])


@pytest.mark.parametrize("bit", range(0, 128, 7))
def test_flipping_any_bit_of_key_or_counter_changes_half_the_bits(bit: int) -> None:
    high, low = random_words(6, 2, 4096)
    key = [np.uint32(13), np.uint32(14)]
    plain = threefry((key[0], key[1]), (high, low))
    inputs = [key[0], key[1], high, low]
    inputs[bit // 32] = inputs[bit // 32] ^ np.uint32(1 << bit % 32)
    flipped = threefry((inputs[0], inputs[1]), (inputs[2], inputs[3]))
    changed = sum(
        int(np.bitwise_count(one ^ other).sum()) for one, other in zip(plain, flipped, strict=True)
    )
    bits = 64 * 4096
    assert abs(2 * changed - bits) / bits**0.5 < 4.9


def test_the_purposes_of_counters_do_not_overlap() -> None:
    # Orders and stages share a key, so that the second words of their counters must differ.
    longest = 2 * ROUNDS_64  # rounds, and as many salts, of the 64-bit form
    assert int(STAGE) not in range(int(ORDER), int(ORDER) + longest)
    assert int(ORDER) & (2**24 - 1) == 0
