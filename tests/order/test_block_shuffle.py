"""BlockShuffle: each element once an epoch, in runs of neighbours, the same in NumPy and JAX."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.slowly import quickly, slowly

import cereal
from cereal import BlockShuffle
from cereal.order.ordering import as_order
from cereal.order.position import Remainder
from cereal.order.rows import Plan
from cereal.pipeline.state import make_words

pytestmark = pytest.mark.optimized

KEY = (3, 5)
LAST_EPOCH = 2**32 - 1

words = st.integers(0, LAST_EPOCH)
sizes = st.integers(1, 70)


def order_at(
    order: BlockShuffle, position: Any, n: int, epoch: int = 0, key: tuple[int, int] = KEY
) -> np.ndarray:
    """The indices at these positions of an epoch, in NumPy."""
    position = np.asarray(position, np.int64)
    epochs, column = np.array([epoch], np.uint32), np.zeros(position.shape, np.int64)
    pair = (np.uint32(key[0]), np.uint32(key[1]))
    return np.asarray(order.index(pair, epochs, column, position, n))


def epoch_of(order: BlockShuffle, n: int, epoch: int = 0, key: tuple[int, int] = KEY) -> np.ndarray:
    return order_at(order, np.arange(n), n, epoch, key)


def epochs_of(order: BlockShuffle, n: int, epochs: int) -> np.ndarray:
    """[epochs, n]: the orders of the first epochs."""
    column, position = np.indices((epochs, n))
    pair = (np.uint32(KEY[0]), np.uint32(KEY[1]))
    return np.asarray(order.index(pair, np.arange(epochs, dtype=np.uint32), column, position, n))


# Each element once


@pytest.mark.parametrize("n", quickly(range(1, 14), 1, 4, 13))
def test_every_small_order_visits_each_index_once(n: int) -> None:
    for size in range(1, 16):
        for together in (1, 2, 3, 20):
            order = BlockShuffle(size, together=together)
            found = np.sort(epochs_of(order, n, 3))
            assert (found == np.arange(n)).all(), (n, size, together)


@settings(max_examples=200)
@given(n=st.integers(1, 300), size=sizes, together=sizes, key=st.tuples(words, words), epoch=words)
def test_any_length_block_key_and_epoch_visit_each_index_once(
    n: int, size: int, together: int, key: tuple[int, int], epoch: int
) -> None:
    order = BlockShuffle(size, together=together)
    np.testing.assert_array_equal(np.sort(epoch_of(order, n, epoch, key)), np.arange(n))


@pytest.mark.parametrize(("size", "together"), [(1, 1), (1000, 16), (333, 7), (99_999, 2)])
def test_long_orders_visit_each_index_once(size: int, together: int) -> None:
    order = BlockShuffle(size, together=together)
    np.testing.assert_array_equal(np.sort(epoch_of(order, 100_003)), np.arange(100_003))


@pytest.mark.parametrize("n", [2**30 + 1, 2**31 - 1, 2**32 + 5, 2**40])
@pytest.mark.parametrize(("size", "together"), [(1, 1), (1000, 3), (2**20, 16), (2**29, 3)])
def test_orders_too_long_to_write_out_repeat_nothing_and_stay_in_range(
    n: int, size: int, together: int
) -> None:
    drawn = np.random.default_rng(0).integers(0, n, 2000)
    position = np.unique(np.r_[drawn, np.arange(300), n - 1 - np.arange(300)])
    index = order_at(BlockShuffle(size, together=together), position, n, LAST_EPOCH)
    assert index.min() >= 0
    assert index.max() < n
    assert np.unique(index).size == position.size


def test_positions_of_any_shape_and_sequence_have_the_indices_of_the_whole_order() -> None:
    order, n = BlockShuffle(4, together=3), 30
    whole = epoch_of(order, n)
    position = np.random.default_rng(0).integers(0, n, (5, 2, 3))
    np.testing.assert_array_equal(order_at(order, position, n), whole[position])


# Runs


def blocks_open(index: np.ndarray, size: int) -> int:
    """The most blocks that are begun and not finished at any position."""
    block = index // size
    first = {int(b): int(np.flatnonzero(block == b)[0]) for b in np.unique(block)}
    last = {int(b): int(np.flatnonzero(block == b)[-1]) for b in np.unique(block)}
    return max(sum(first[b] <= at <= last[b] for b in first) for at in range(len(index)))


@settings(max_examples=60)
@given(n=st.integers(1, 80), size=st.integers(1, 30), epoch=words)
def test_one_block_at_a_time_is_a_run_of_positions(n: int, size: int, epoch: int) -> None:
    index = epoch_of(BlockShuffle(size), n, epoch)
    changes = np.count_nonzero(np.diff(index // size))
    assert changes == -(-n // size) - 1
    assert blocks_open(index, size) == 1


@settings(max_examples=60)
@given(n=st.integers(1, 80), size=st.integers(1, 20), together=st.integers(1, 8), epoch=words)
def test_no_more_blocks_are_open_than_are_read_together(
    n: int, size: int, together: int, epoch: int
) -> None:
    index = epoch_of(BlockShuffle(size, together=together), n, epoch)
    assert blocks_open(index, size) <= together


def test_as_many_blocks_as_said_are_read_together() -> None:
    index = epoch_of(BlockShuffle(20, together=3), 120)
    assert blocks_open(index, 20) == 3
    assert blocks_open(epoch_of(BlockShuffle(1, together=120), 120), 20) == 6


@settings(max_examples=60)
@given(n=st.integers(2, 80), size=st.integers(1, 20), together=st.integers(1, 8), epoch=words)
def test_elements_of_a_block_stay_within_the_blocks_read_together(
    n: int, size: int, together: int, epoch: int
) -> None:
    place = np.argsort(epoch_of(BlockShuffle(size, together=together), n, epoch))
    for start in range(0, n, size):
        assert np.ptp(place[start : start + size]) < together * size


def test_the_elements_of_a_block_and_the_blocks_are_shuffled() -> None:
    index = epoch_of(BlockShuffle(50), 500)
    blocks = index[::50] // 50
    assert sorted(blocks.tolist()) == list(range(10))
    assert (blocks != np.arange(10)).any()
    for slot in range(10):
        run = index[slot * 50 : (slot + 1) * 50] % 50
        assert (run != np.arange(50)).any()
    inside = {tuple(index[slot * 50 : (slot + 1) * 50] % 50) for slot in range(10)}
    assert len(inside) == 10, "two blocks are shuffled alike"


@pytest.mark.parametrize(("n", "size"), [(13, 3), (10, 4), (7, 6)])
def test_the_short_last_block_stands_in_every_place_in_some_epoch(n: int, size: int) -> None:
    blocks, rest = -(-n // size), n % size
    begins = set()
    for index in epochs_of(BlockShuffle(size), n, 80):
        (places,) = np.nonzero(index // size == blocks - 1)
        assert len(places) == rest
        begins.add(int(places[0]))
    assert begins == {slot * size for slot in range(blocks)}


def test_blocks_of_the_whole_data_and_more_are_one_block() -> None:
    for together in (1, 4):
        whole = epoch_of(BlockShuffle(13, together=together), 13)
        for size in (14, 1000, 2**70):
            more = BlockShuffle(size, together=together)
            np.testing.assert_array_equal(epoch_of(more, 13), whole)


# Epochs and keys


@pytest.mark.parametrize(("size", "together"), [(1, 1), (5, 1), (5, 4), (100, 1)])
def test_every_epoch_and_every_key_has_an_order_of_its_own(size: int, together: int) -> None:
    order = BlockShuffle(size, together=together)
    keys = [(0, 0), (0, 1), (1, 0), (LAST_EPOCH, 0)]
    epochs = [0, 1, 2, LAST_EPOCH]
    orders = {tuple(epoch_of(order, 100, epoch, key)) for key in keys for epoch in epochs}
    assert len(orders) == 16


def test_an_order_is_that_of_its_key_and_epoch_alone() -> None:
    order, n = BlockShuffle(4, together=2), 21
    epochs = np.array([7, 3, LAST_EPOCH], np.uint32)
    column, position = np.repeat([0, 1, 2], n), np.tile(np.arange(n), 3)
    mixed = np.random.default_rng(0).permutation(3 * n)
    pair = (np.uint32(KEY[0]), np.uint32(KEY[1]))
    index = np.asarray(order.index(pair, epochs, column[mixed], position[mixed], n))
    for number, epoch in enumerate(epochs):
        alone = epoch_of(order, n, int(epoch))
        lanes = column[mixed] == number
        np.testing.assert_array_equal(index[lanes], alone[position[mixed][lanes]])


def test_the_orders_of_this_version() -> None:
    # Runs are restored by the order: to change this digest is a breaking change.
    digest = hashlib.sha256()
    for n, size, together in [(1, 1, 1), (13, 3, 1), (13, 3, 2), (1000, 64, 4), (50, 99, 9)]:
        for epoch in (0, 1, LAST_EPOCH):
            index = epoch_of(BlockShuffle(size, together=together), n, epoch)
            digest.update(index.astype("<i8").tobytes())
    assert digest.hexdigest()[:16] == "dae65d01756262f7"


# NumPy and JAX


def assert_numpy_is_jax(plan: Plan, steps: int, starts: list[tuple[int, int]]) -> None:
    compiled = jax.jit(partial(plan.rows_for, steps=steps))
    for epoch, offset in starts:
        words = make_words(KEY, epoch, offset)
        exact, end = plan.rows_for(words, steps)
        rows, after = compiled(jnp.asarray(words))
        np.testing.assert_array_equal(rows.index, exact.index)
        np.testing.assert_array_equal(rows.epoch, exact.epoch)
        assert (rows.valid is None) == (exact.valid is None)
        if exact.valid is not None:
            np.testing.assert_array_equal(rows.valid, exact.valid)
        np.testing.assert_array_equal(after, end)


PLANS: list[tuple[int, int, int, tuple[int, ...], Remainder]] = [
    (13, 3, 1, (5,), "wrap"),
    (13, 3, 2, (4,), "pad"),
    (13, 5, 2, (2, 3), "drop"),
    (13, 100, 1, (), "wrap"),
    (13, 1, 4, (30,), "wrap"),
    (1, 1, 1, (2,), "pad"),
    (12, 4, 99, (5,), "drop"),
]


@pytest.mark.parametrize(("n", "size", "together", "lanes", "rule"), quickly(PLANS, *PLANS[1:6:2]))
@pytest.mark.usefixtures("strict_jax")
def test_jax_and_numpy_agree_across_epochs(
    n: int, size: int, together: int, lanes: tuple[int, ...], rule: Remainder
) -> None:
    plan = Plan(BlockShuffle(size, together=together), n, lanes, rule)
    starts = [(0, 0), (0, n - 1), (7, n // 2), (LAST_EPOCH, n // 3)]
    assert_numpy_is_jax(plan, 7, starts)


def test_jax_and_numpy_agree_with_64_bit_types_on() -> None:
    plan = Plan(BlockShuffle(3, together=2), 14, (5,), "wrap")
    with jax.enable_x64(True):
        assert_numpy_is_jax(plan, 4, [(0, 0), (LAST_EPOCH, 9)])


@pytest.mark.parametrize(
    ("size", "together"), [slowly(1000, 3), (2**31 - 2, 5), slowly(2**16, 2**14)]
)
def test_jax_and_numpy_agree_at_the_ends_of_the_longest_epochs(size: int, together: int) -> None:
    n = 2**31 - 1
    plan = Plan(BlockShuffle(size, together=together), n, (50,), "wrap")
    starts = [(0, n - 75), (5, n // 2), (6, size - 60), (LAST_EPOCH, n - 75)]
    assert_numpy_is_jax(plan, 2, [(epoch, max(offset, 0)) for epoch, offset in starts])


@pytest.mark.parametrize("together", [2**32 - 1, 2**32, 2**70])
def test_more_blocks_together_than_any_data_has_are_all_of_them(together: int) -> None:
    plan = Plan(BlockShuffle(3, together=together), 13, (13,), "wrap")
    few = Plan(BlockShuffle(3, together=5), 13, (13,), "wrap")
    words = make_words(KEY, 0, 0)
    expected = few.rows_for(words, 1)[0].index
    np.testing.assert_array_equal(plan.rows_for(words, 1)[0].index, expected)
    assert_numpy_is_jax(plan, 1, [(0, 0)])


# What it is, and what it refuses


def test_it_is_random_and_says_its_name() -> None:
    order = as_order(BlockShuffle(np.int64(3)), 13, "Test")  # type: ignore[arg-type]
    assert order.random
    assert order.length(13) == 13
    assert order.name == "BlockShuffle(3)"
    assert BlockShuffle(3, together=4).name == "BlockShuffle(3, together=4)"


@pytest.mark.parametrize("value", [0, -1, 2.0, True, False, "4", np.float32(4), np.True_])
def test_sizes_that_are_no_positive_integers_are_refused(value: Any) -> None:
    message = r"^BlockShuffle: `{}` must be an integer of at least 1, got .*`BlockShuffle\(1024\)`"
    with pytest.raises(cereal.PipelineError, match=message.format("block_size")):
        BlockShuffle(value)
    with pytest.raises(cereal.PipelineError, match=message.format("together")):
        BlockShuffle(4, together=value)


def test_none_is_no_number_of_blocks_together() -> None:
    with pytest.raises(cereal.PipelineError, match="`together` must be an integer of at least 1"):
        BlockShuffle(4, together=None)  # type: ignore[arg-type]


def test_together_is_named() -> None:
    with pytest.raises(TypeError, match="positional"):
        BlockShuffle(4, 2)  # type: ignore[misc]


def test_the_class_in_place_of_an_order_is_refused_with_the_line_to_write() -> None:
    message = r"the class BlockShuffle, not an instance: write `BlockShuffle\(\.\.\.\)`"
    with pytest.raises(cereal.PipelineError, match=r"^RangeSource: .*" + message):
        cereal.RangeSource(5, ordering=BlockShuffle)
    with pytest.raises(cereal.PipelineError, match=r"^ArraySampleSource: .*" + message):
        cereal.ArraySampleSource(np.arange(5), ordering=BlockShuffle)
