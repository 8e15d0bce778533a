"""BlockShuffle against what its definition says of random orders of blocks, and of elements.

Each statistic below is computed from the orders of many epochs of one fixed key, and is a normal
deviate: about N(0, 1) if blocks, and elements within `together` blocks, are in true random order.
It must be small for BlockShuffle and huge for an order with a defect.

By itself each element is as likely to land at any position as in a true shuffle, so mean
displacement is that of a shuffle for any block size. Locality shows in pairs: neighbours in the
data stay near each other, and meet in a batch more often.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from cereal import BlockShuffle

pytestmark = pytest.mark.slow  # golden digests pin the order itself

KEY = (0x01234567, 0x89ABCDEF)
LIMIT = 4.9  # two-sided p = 1e-6
CERTAIN = 12.0  # p < 1e-32

Maker = Callable[[int, int, int, int], np.ndarray]  # n, block size, together, epochs


def block_shuffle(
    n: int, size: int, together: int, epochs: int, *, key: tuple[int, int] = KEY
) -> np.ndarray:
    """[epochs, n]: the orders of successive epochs."""
    column, position = np.indices((epochs, n))
    order, pair = BlockShuffle(size, together=together), (np.uint32(key[0]), np.uint32(key[1]))
    return np.asarray(order.index(pair, np.arange(epochs, dtype=np.uint32), column, position, n))


# Orders with a defect, each a true shuffle but for it.


def made(
    n: int, size: int, together: int, epochs: int, *, blocks: bool = True, inside: bool = True
) -> np.ndarray:
    rng = np.random.default_rng(0)
    orders = []
    for _ in range(epochs):
        parts = np.split(np.arange(n), range(size, n, size))
        if blocks:
            parts = [parts[number] for number in rng.permutation(len(parts))]
        groups = [
            np.concatenate(parts[at : at + together]) for at in range(0, len(parts), together)
        ]
        orders.append(np.concatenate([rng.permutation(g) if inside else g for g in groups]))
    return np.stack(orders)


blocks_in_data_order = partial(made, blocks=False)
elements_in_data_order = partial(made, inside=False)


def short_block_last(n: int, size: int, together: int, epochs: int) -> np.ndarray:
    whole = n // size * size
    rest = np.tile(np.arange(whole, n), (epochs, 1))
    return np.concatenate([made(whole, size, together, epochs), rest], axis=1)


def the_same_every_other_epoch(n: int, size: int, together: int, epochs: int) -> np.ndarray:
    return np.repeat(made(n, size, together, -(-epochs // 2)), 2, axis=0)[:epochs]


def alike_in_all_groups(n: int, size: int, together: int, epochs: int) -> np.ndarray:
    """Blocks are shuffled, but elements of all groups by one permutation."""
    rng = np.random.default_rng(0)
    orders, group = made(n, size, together, epochs, inside=False), size * together
    shape = (epochs, n // group, group)
    inner = np.stack([rng.permutation(group) for _ in range(epochs)])[:, None, :]
    return np.take_along_axis(orders.reshape(shape), np.broadcast_to(inner, shape), 2).reshape(
        epochs, n
    )


# Deviates.


def deviate_of_mean(values: np.ndarray, mean: float) -> float:
    return (float(values.mean()) - mean) / math.sqrt(float(values.var()) / values.size + 1e-30)


def deviate_of_cells(codes: np.ndarray, cells: int) -> float:
    """Of a chi-square over equally likely cells, by Wilson and Hilferty."""
    _, counts = np.unique(codes, return_counts=True)
    assert len(counts) <= cells
    freedom, spread = cells - 1, 2 / (9 * (cells - 1))
    value = float((counts.astype(float) ** 2).sum()) * cells / codes.size - codes.size
    return ((value / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


def coded(*columns: np.ndarray) -> np.ndarray:
    """Rows of small numbers as one number each."""
    table = np.concatenate(columns, axis=1)
    return table @ (table.max() + 1) ** np.arange(table.shape[1])


# Which orders there are.


def first_block(make: Maker, *, n: int, size: int, together: int) -> float:
    index = make(n, size, together, 20_000)
    return deviate_of_cells(index[:, 0] // size, n // size)


def landing(make: Maker, *, n: int, size: int, together: int) -> float:
    """An element lands at every position equally often."""
    place = np.argsort(make(n, size, together, 6_000), axis=1)
    return deviate_of_cells(place[:, n // 3], n)


def orders_of_blocks(make: Maker, *, blocks: int) -> float:
    index = make(2 * blocks, 2, 1, 20_000)
    return deviate_of_cells(coded(index[:, ::2] // 2), math.factorial(blocks))


def orders_in_a_block(make: Maker, *, slot: int) -> float:
    index = make(9, 3, 1, 20_000)[:, 3 * slot : 3 * slot + 3] % 3
    return deviate_of_cells(coded(index), 6)


def orders_in_two_blocks(make: Maker) -> float:
    """Two blocks of an epoch are shuffled independently."""
    return deviate_of_cells(coded(make(6, 3, 1, 30_000) % 3), 36)


def all_orders(make: Maker, *, size: int, together: int, orders: int) -> float:
    return deviate_of_cells(coded(make(4, size, together, 20_000)), orders)


def place_of_short_block(make: Maker, *, n: int, size: int) -> float:
    index = make(n, size, 1, 10_000)
    first = np.argmax(index // size == n // size, axis=1)
    return deviate_of_cells(first, n // size + 1)


def an_epoch_and_the_next(make: Maker) -> float:
    """All pairs of orders of three blocks."""
    index = make(6, 2, 1, 40_000)[:, ::2] // 2
    return deviate_of_cells(coded(index[::2], index[1::2]), 36)


def coincidences(make: Maker, *, together: int) -> float:
    """Positions at which an epoch and the next agree, one on the average."""
    index = make(60, 5, together, 4_000)
    return deviate_of_mean(np.count_nonzero(index[::2] == index[1::2], axis=1), 1)


# How far elements travel, and which meet.


def displacement(index: np.ndarray) -> np.ndarray:
    """Of each epoch: the mean of |position - index| / n."""
    n = index.shape[1]
    return np.abs(index - np.arange(n)).mean(axis=1) / n


def of_a_shuffle(n: int) -> float:
    return (n * n - 1) / (3 * n * n)


def travel(make: Maker, *, blocks: int, size: int, together: int, epochs: int) -> float:
    n = blocks * size
    return deviate_of_mean(displacement(make(n, size, together, epochs)), of_a_shuffle(n))


def meetings(index: np.ndarray, batch: int) -> np.ndarray:
    """Of each epoch: the share of neighbours in the data that are in one batch."""
    place = np.argsort(index, axis=1) // batch
    return (place[:, 1:] == place[:, :-1]).mean(axis=1)


def expected_meetings(n: int, size: int, together: int, batch: int) -> float:
    """Exactly, if `together` divides the blocks and the batch divides what is read together."""
    blocks, group = n // size, size * together
    in_group = (batch - 1) / (group - 1)
    across = (together - 1) / (blocks - 1) * in_group
    return (blocks * (size - 1) * in_group + (blocks - 1) * across) / (n - 1)


def neighbours(make: Maker, *, n: int, size: int, together: int, batch: int) -> float:
    found = meetings(make(n, size, together, 1_000), batch)
    return deviate_of_mean(found, expected_meetings(n, size, together, batch))


# Each statistic, and an order that has the defect that it sees.
STATISTICS: dict[str, tuple[Callable[[Maker], float], Maker]] = {
    "first block": (partial(first_block, n=20, size=4, together=1), blocks_in_data_order),
    "first block of two": (partial(first_block, n=24, size=4, together=2), blocks_in_data_order),
    "landing": (partial(landing, n=30, size=5, together=1), blocks_in_data_order),
    "landing of two blocks": (partial(landing, n=30, size=5, together=2), blocks_in_data_order),
    "landing of four of six": (partial(landing, n=30, size=5, together=4), blocks_in_data_order),
    "orders of 2 blocks": (partial(orders_of_blocks, blocks=2), blocks_in_data_order),
    "orders of 3 blocks": (partial(orders_of_blocks, blocks=3), blocks_in_data_order),
    "orders of 4 blocks": (partial(orders_of_blocks, blocks=4), blocks_in_data_order),
    "orders in the first block": (partial(orders_in_a_block, slot=0), elements_in_data_order),
    "orders in the last block": (partial(orders_in_a_block, slot=2), elements_in_data_order),
    "orders in two blocks": (orders_in_two_blocks, alike_in_all_groups),
    "all orders of 2 blocks of 2": (
        partial(all_orders, size=2, together=1, orders=8),
        elements_in_data_order,
    ),
    "all orders of 4 blocks of 1": (
        partial(all_orders, size=1, together=1, orders=24),
        blocks_in_data_order,
    ),
    "all orders of 2 blocks together": (
        partial(all_orders, size=2, together=2, orders=24),
        elements_in_data_order,
    ),
    "all orders of one block": (
        partial(all_orders, size=9, together=3, orders=24),
        elements_in_data_order,
    ),
    "place of the short block of 10": (
        partial(place_of_short_block, n=10, size=3),
        short_block_last,
    ),
    "place of the short block of 5": (
        partial(place_of_short_block, n=5, size=3),
        short_block_last,
    ),
    "an epoch and the next": (an_epoch_and_the_next, the_same_every_other_epoch),
    "coincidences": (partial(coincidences, together=1), the_same_every_other_epoch),
    "coincidences of 4 blocks": (partial(coincidences, together=4), the_same_every_other_epoch),
    "travel of 10 blocks": (
        partial(travel, blocks=10, size=10, together=1, epochs=2_000),
        blocks_in_data_order,
    ),
    "travel of 100 blocks, 16 together": (
        partial(travel, blocks=100, size=5, together=16, epochs=200),
        blocks_in_data_order,
    ),
    "neighbours of a block": (
        partial(neighbours, n=120, size=20, together=1, batch=10),
        elements_in_data_order,
    ),
    "neighbours of 3 blocks": (
        partial(neighbours, n=48, size=4, together=3, batch=4),
        blocks_in_data_order,
    ),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_blocks_and_their_elements_are_in_random_order(name: str) -> None:
    statistic, _ = STATISTICS[name]
    assert abs(statistic(block_shuffle)) < LIMIT


@pytest.mark.parametrize("name", STATISTICS)
def test_an_order_with_a_defect_is_told_from_it(name: str) -> None:
    statistic, defective = STATISTICS[name]
    assert abs(statistic(defective)) > CERTAIN


def test_the_next_key_has_unrelated_orders() -> None:
    one = block_shuffle(60, 5, 2, 4_000)
    for key in ((KEY[0], KEY[1] + 1), (KEY[0] + 1, KEY[1])):
        other = block_shuffle(60, 5, 2, 4_000, key=key)
        agree = np.count_nonzero(one == other, axis=1)
        assert abs(deviate_of_mean(agree, 1)) < LIMIT


# In figures: blocks of a thousandth, a hundredth and a tenth of the data.
SHARES = [(1000, 1, 4, 40), (1000, 16, 4, 40), (100, 1, 8, 150), (100, 16, 8, 150)]
SHARES += [(10, 1, 10, 1500), (10, 16, 10, 1500)]


@pytest.mark.parametrize(("blocks", "together", "size", "epochs"), SHARES)
def test_elements_travel_as_far_as_in_a_shuffle(
    blocks: int, together: int, size: int, epochs: int
) -> None:
    index = block_shuffle(blocks * size, size, together, epochs)
    assert abs(displacement(index).mean() / (1 / 3) - 1) < 0.03


@pytest.mark.parametrize(("blocks", "together", "size", "epochs"), SHARES)
def test_elements_of_blocks_in_data_order_do_not(
    blocks: int, together: int, size: int, epochs: int
) -> None:
    index = blocks_in_data_order(blocks * size, size, together, min(epochs, 10))
    travelled = displacement(index).mean() / (1 / 3)
    # 16 of 10 blocks are all of them, and a true shuffle.
    assert abs(travelled - 1) < 0.1 if together > blocks else travelled < 0.2


@pytest.mark.parametrize("blocks", [10, 100])
def test_in_a_single_epoch_blocks_travel_as_in_a_shuffle_of_as_many(blocks: int) -> None:
    # So few blocks, so large the spread: 6 % of the mean for 100 blocks, 20 % for 10.
    found = displacement(block_shuffle(blocks * 8, 8, 1, 1_000)).std()
    spread = math.sqrt((blocks + 1) * (2 * blocks**2 + 7) / 45) / blocks**2
    assert 0.9 < found / spread < 1.1


@pytest.mark.parametrize(("blocks", "together", "size", "epochs"), SHARES)
def test_neighbours_in_a_block_stay_within_what_is_read_together(
    blocks: int, together: int, size: int, epochs: int
) -> None:
    index = block_shuffle(blocks * size, size, together, min(epochs, 40))
    place = np.argsort(index, axis=1).reshape(len(index), blocks, size)
    apart = np.abs(np.diff(place, axis=2))
    assert apart.max() < together * size
    if together < blocks:
        assert apart.max() > together * size / 2  # they use all of it


def test_neighbours_meet_in_a_batch_as_often_as_what_is_read_together_is_small() -> None:
    n, size, batch = 1600, 16, 16
    found = {t: meetings(block_shuffle(n, size, t, 40), batch).mean() for t in (1, 4, 10, 100)}
    shuffled = (batch - 1) / (n - 1)  # 0.9 %
    assert found[1] == (size - 1) * (n // size) / (n - 1)  # a batch is a block
    for together in (4, 10, 100):
        expected = expected_meetings(n, size, together, batch)
        assert abs(found[together] / expected - 1) < 0.1
    assert found[4] > 20 * shuffled
    assert abs(found[100] / shuffled - 1) < 0.1


def test_blocks_read_together_bring_the_classes_of_sorted_data_into_each_batch() -> None:
    # 10 classes one after another, 10 blocks each: 16 random blocks have 8.4 of the classes.
    n, size, batch, classes = 3200, 32, 32, 10

    def classes_in_a_batch(together: int) -> float:
        label = block_shuffle(n, size, together, 20) * classes // n
        batches = np.sort(label.reshape(-1, batch), axis=1)
        return float((np.count_nonzero(np.diff(batches, axis=1), axis=1) + 1).mean())

    def expected(blocks: int) -> float:
        return classes * (1 - math.comb(90, blocks) / math.comb(100, blocks))

    assert classes_in_a_batch(1) == 1
    assert expected(4) * 0.95 < classes_in_a_batch(4) <= expected(4) * 1.02
    assert expected(16) * 0.85 < classes_in_a_batch(16) <= expected(16)
