"""BlockShuffle() over data in blocks of different lengths: as BlockShuffle(size), and once each."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.slowly import slowly

import cereal
from cereal import BlockShuffle
from cereal.order.data_blocks import DataBlocks
from cereal.order.ordering import as_order
from cereal.order.rows import Plan

from .test_block_shuffle import KEY, LAST_EPOCH, assert_numpy_is_jax, epoch_of, epochs_of

pytestmark = pytest.mark.optimized

LENGTHS = [5, 2, 4, 1, 9]
lengths_of_blocks = st.lists(st.integers(1, 12), min_size=1, max_size=20)


def over(lengths: Any, together: int = 1) -> Any:
    return as_order(BlockShuffle(together=together), sum(lengths), "Test", np.asarray(lengths))


def numbers(lengths: Any) -> np.ndarray:
    """The block of each index."""
    return np.repeat(np.arange(len(lengths)), lengths)


@settings(max_examples=100)
@given(lengths=lengths_of_blocks, together=st.integers(1, 8), epoch=st.integers(0, LAST_EPOCH))
def test_each_index_comes_once_and_few_blocks_are_open(
    lengths: list[int], together: int, epoch: int
) -> None:
    n, block = sum(lengths), numbers(lengths)
    index = epoch_of(over(lengths, together), n, epoch)
    np.testing.assert_array_equal(np.sort(index), np.arange(n))
    found = block[index]
    first = {b: int(np.flatnonzero(found == b)[0]) for b in range(len(lengths))}
    last = {b: int(np.flatnonzero(found == b)[-1]) for b in range(len(lengths))}
    most = max(sum(first[b] <= at <= last[b] for b in first) for at in range(n))
    assert most <= together
    if together == 1:
        assert np.count_nonzero(np.diff(found)) == len(lengths) - 1


@pytest.mark.parametrize("together", [1, 2, 3, 99])
@pytest.mark.parametrize(("n", "size"), [(1, 1), (12, 3), (13, 3), (7, 6), (50, 99), (1000, 64)])
def test_blocks_of_one_length_have_the_order_of_that_size(n: int, size: int, together: int) -> None:
    lengths = [size] * (n // size) + ([n % size] if n % size else [])
    order = over(lengths, together)
    known = epochs_of(BlockShuffle(size, together=together), n, 5)
    np.testing.assert_array_equal(epochs_of(order, n, 5), known)


def test_blocks_come_in_every_order_and_are_shuffled_inside() -> None:
    order, block = over([3, 1, 2]), numbers([3, 1, 2])
    epochs = epochs_of(order, 6, 300)
    orders = {tuple(dict.fromkeys(block[index].tolist())) for index in epochs}
    assert len(orders) == 6
    inside = {tuple(index[np.isin(index, [0, 1, 2])].tolist()) for index in epochs}
    assert len(inside) == 6


def test_positions_and_epochs_are_computed_by_themselves() -> None:
    order, n = over(LENGTHS, 2), sum(LENGTHS)
    whole = epochs_of(order, n, 4)
    column, position = np.random.default_rng(0).integers(0, [[4], [n]], (2, 60))
    pair = (np.uint32(KEY[0]), np.uint32(KEY[1]))
    found = order.index(pair, np.arange(4, dtype=np.uint32), column, position, n)
    np.testing.assert_array_equal(found, whole[column, position])


def test_the_orders_of_this_version() -> None:
    # Runs are restored by the order: to change this digest is a breaking change.
    digest = hashlib.sha256()
    for lengths, together in [(LENGTHS, 1), (LENGTHS, 2), ([7], 1), (list(range(1, 90)), 4)]:
        for epoch in (0, 1, LAST_EPOCH):
            index = epoch_of(over(lengths, together), sum(lengths), epoch)
            digest.update(index.astype("<i8").tobytes())
    assert digest.hexdigest()[:16] == "7b4ff3bd5e997829"


@pytest.mark.parametrize(
    ("lengths", "together", "lanes", "rule"),
    [
        slowly(LENGTHS, 1, (5,), "wrap"),
        (LENGTHS, 2, (4,), "pad"),
        ([3, 8], 9, (2, 3), "drop"),
        ([4], 1, (30,), "wrap"),
        slowly(list(range(1, 90)), 4, (64,), "wrap"),
    ],
)
@pytest.mark.usefixtures("strict_jax")
def test_jax_and_numpy_agree(lengths: Any, together: int, lanes: Any, rule: Any) -> None:
    n = sum(lengths)
    plan = Plan(over(lengths, together), n, lanes, rule)
    assert_numpy_is_jax(plan, 7, [(0, 0), (7, n // 2), (LAST_EPOCH, n - 1)])


def test_jax_and_numpy_agree_with_64_bit_types_on_and_at_the_end_of_long_epochs() -> None:
    lengths = [2**30, 7, 2**30 - 8]
    plan = Plan(over(lengths, 2), 2**31 - 1, (50,), "wrap")
    assert_numpy_is_jax(plan, 2, [(0, 0), (5, 2**31 - 76), (6, 2**30 - 3)])
    with jax.enable_x64(True):
        plan = Plan(over(LENGTHS, 2), sum(LENGTHS), (5,), "wrap")
        assert_numpy_is_jax(plan, 2, [(0, 0), (LAST_EPOCH, 9)])


def test_its_name_tells_it_from_other_blocks() -> None:
    assert BlockShuffle().name == "BlockShuffle()"
    assert BlockShuffle(together=3).name == "BlockShuffle(together=3)"
    names = [over(lengths).name for lengths in (LENGTHS, LENGTHS[::-1], [21])]
    assert len(set(names)) == 3
    assert all(name.startswith("BlockShuffle(") for name in names)
    assert names[0].startswith("BlockShuffle(5 blocks, ")
    assert over(LENGTHS, 2).name == names[0][:-1] + ", together=2)"


def test_a_size_wins_over_the_blocks_of_the_data() -> None:
    order = as_order(BlockShuffle(3), sum(LENGTHS), "Test", np.asarray(LENGTHS))
    assert order.name == "BlockShuffle(3)"


def test_data_without_blocks_needs_a_size() -> None:
    message = r"^RangeSource: .*does not lie in blocks; give it a size, .*BlockShuffle\(1024\)"
    with pytest.raises(cereal.PipelineError, match=message):
        cereal.RangeSource(12, ordering=BlockShuffle())


def test_the_blocks_belong_to_data_of_one_length() -> None:
    order = over(LENGTHS)
    assert isinstance(order, DataBlocks)
    assert as_order(order, sum(LENGTHS), "Test") is order
    with pytest.raises(cereal.PipelineError, match=r"^Test: .* of 21 elements, .* there are 20"):
        as_order(order, 20, "Test")


def test_more_elements_than_programs_count_are_refused() -> None:
    with pytest.raises(cereal.PipelineError, match=r"^Test: `BlockShuffle\(\)` counts to 2147483"):
        over([2**31, 5])
