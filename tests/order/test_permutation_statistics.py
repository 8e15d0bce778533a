"""The shuffled order against a true shuffle.

Each statistic below is computed from the orders of many epochs of one fixed key, and is a normal
deviate: about N(0, 1) if every order is equally likely. It must be small with the rounds that
`cereal` uses and huge with too few of them, which shows that it would see the defect.

With n elements and r rounds, what stays where it was, or beside what it was beside, is a share
of 2^-r. The samples are large enough to see it up to r = 4 (correlations), 6 to 12 (short
orders), and 19 to 20 (orders of 2^30).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from cereal.order import permutation
from cereal.order.permutation import ROUNDS, ROUNDS_64, permute, round_constants

pytestmark = pytest.mark.slow  # golden digests pin the order itself

KEY = (0x01234567, 0x89ABCDEF)
LIMIT = 4.9  # two-sided p = 1e-6
CERTAIN = 12.0  # p < 1e-32


def orders(
    n: int,
    epochs: int,
    rounds: int,
    *,
    first: int = 0,
    key: tuple[int, int] = KEY,
    position: np.ndarray | None = None,
) -> np.ndarray:
    """[epochs, positions]: the orders of successive epochs, at all positions or the given."""
    epoch = np.arange(first, first + epochs, dtype=np.uint32)
    constants = round_constants((np.uint32(key[0]), np.uint32(key[1])), epoch, n, rounds)
    position = np.arange(n) if position is None else position
    index = np.empty((epochs, position.size), np.int64)
    chunk = max(1, 2**16 // position.size)  # so many rows stay in the cache
    for start in range(0, epochs, chunk):
        column = np.arange(start, min(start + chunk, epochs))[:, None]
        tiled = np.broadcast_to(position, (column.size, position.size))
        index[start : start + chunk] = permute(tiled, column, constants, n)
    return index


# Deviates.


def deviate_of_mean(values: np.ndarray, mean: float, variance: float | None = None) -> float:
    """Of independent values that have this mean."""
    variance = float(values.var()) if variance is None else variance
    return (float(values.mean()) - mean) / math.sqrt(variance / values.size + 1e-30)


def deviate_of_chi_square(value: float, freedom: int) -> float:
    """By Wilson and Hilferty."""
    spread = 2 / (9 * freedom)
    return ((value / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


def deviate_of_count(count: int, mean: float) -> float:
    """Of a Poisson count, small means included: the signed root of its deviance."""
    deviance = mean - count + (count * math.log(count / mean) if count else 0.0)
    return math.copysign(math.sqrt(2 * deviance), count - mean)


def chi_square(counts: np.ndarray, expected: Any) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


# (a) All orders.


def all_orders(rounds: int, *, n: int) -> float:
    """Each of the n! orders is equally likely."""
    samples = 60_000
    code = orders(n, samples, rounds) @ n ** np.arange(n)
    counts = np.bincount(code, minlength=n**n)
    cells = math.factorial(n)
    assert np.count_nonzero(counts) <= cells
    # Codes that are no permutation never occur: they add nothing to the sum of squares.
    value = float((counts.astype(float) ** 2).sum()) * cells / samples - samples
    return deviate_of_chi_square(value, cells - 1)


# (b) Positions.


def landing(rounds: int, *, n: int, bins: int, samples: int) -> float:
    """Element i lands at each position equally often (both in bins)."""
    index = orders(n, samples, rounds)
    cell = np.arange(n) * bins // n * bins + index * bins // n
    counts = np.bincount(cell.ravel(), minlength=bins * bins)
    # A table of contingency with fixed margins, summed over the samples.
    value = chi_square(counts, samples * n / bins**2) * (n - 1) / n
    return deviate_of_chi_square(value, (bins - 1) ** 2)


def spread_of_a_run(rounds: int, *, n: int, run: int, bins: int) -> float:
    """A run of consecutive positions of a very long order covers the data evenly."""
    index = orders(n, 1, rounds, position=np.arange(run))[0]
    counts = np.bincount(index * bins // n, minlength=bins)
    return deviate_of_chi_square(chi_square(counts, run / bins), bins - 1)


# (c) Neighbours.


def neighbours(rounds: int, *, n: int, samples: int) -> float:
    """Positions p where order(p) and order(p + 1) are neighbours, 2 (n - 1) / n per order."""
    found = np.count_nonzero(np.abs(np.diff(orders(n, samples, rounds))) == 1, axis=1)
    mean = 2 * (n - 1) / n
    variance = 4 * (n - 2) ** 2 / (n * (n - 1)) + mean - mean**2
    return deviate_of_mean(found, mean, variance)


def pairs_that_keep_their_distance(
    rounds: int, *, n: int, distance: int, pairs: int, epochs: int = 1
) -> float:
    """Positions p where order(p) and order(p + d) are d apart (around the end), for huge n."""
    if distance == 1:
        index = orders(n, epochs, rounds, position=np.arange(pairs + 1))
        apart = np.abs(np.diff(index))
    else:
        near = orders(n, epochs, rounds, position=np.arange(pairs))
        apart = np.abs(near - orders(n, epochs, rounds, position=distance + np.arange(pairs)))
    found = np.count_nonzero((apart == distance) | (apart == n - distance))
    return deviate_of_count(int(found), epochs * pairs * (1 if 2 * distance == n else 2) / (n - 1))


# (d) Batches.


def classes_in_batches(rounds: int, *, n: int, batches: int, samples: int) -> float:
    """Counts of 10 classes, which lie in blocks, in each batch of 100, vary as they should."""
    classes, batch = 10, 100
    index = orders(n, samples, rounds, position=np.arange(batches * batch))
    cell = index * classes // n
    cell += classes * (np.arange(batches * batch) // batch) + classes * batches * np.arange(
        samples
    ).reshape(-1, 1)
    counts = np.bincount(cell.ravel(), minlength=samples * batches * classes)
    counts = counts.reshape(samples, batches * classes)
    value = ((counts - batch / classes) ** 2 / (batch / classes)).sum(axis=1)
    # The variance of hypergeometric counts, summed over the classes.
    return deviate_of_mean(value, batches * (classes - 1) * (n - batch) / (n - 1))


# (e) Pairs of orders.

Pair = Callable[[int, int, int], tuple[np.ndarray, np.ndarray]]


def an_epoch_and_the_next(n: int, samples: int, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    index = orders(n, samples + 1, rounds)
    return index[:-1], index[1:]


def a_key_and_the_next(n: int, samples: int, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    return orders(n, samples, rounds), orders(n, samples, rounds, key=(KEY[0], KEY[1] + 1))


def a_key_and_the_next_in_its_first_word(
    n: int, samples: int, rounds: int
) -> tuple[np.ndarray, np.ndarray]:
    return orders(n, samples, rounds), orders(n, samples, rounds, key=(KEY[0] + 1, KEY[1]))


def the_next_key_and_the_epoch_before(
    n: int, samples: int, rounds: int
) -> tuple[np.ndarray, np.ndarray]:
    later = orders(n, samples, rounds, first=1)
    return later, orders(n, samples, rounds, first=0, key=(KEY[0], KEY[1] + 1))


def the_next_first_word_and_the_epoch_before(
    n: int, samples: int, rounds: int
) -> tuple[np.ndarray, np.ndarray]:
    later = orders(n, samples, rounds, first=1)
    return later, orders(n, samples, rounds, first=0, key=(KEY[0] + 1, KEY[1]))


def coincidences(rounds: int, *, pair: Pair, n: int = 100, samples: int = 5000) -> float:
    """Positions at which two orders agree: the fixed points of one after the other's inverse."""
    one, other = pair(n, samples, rounds)
    return deviate_of_mean(np.count_nonzero(one == other, axis=1), 1, 1)


def rank_correlation(rounds: int, *, pair: Pair, n: int = 100, samples: int = 5000) -> float:
    return deviate_of_mean(_correlations(*pair(n, samples, rounds)), 0, 1 / (n - 1))


def size_of_rank_correlation(
    rounds: int, *, pair: Pair, n: int = 100, samples: int = 5000
) -> float:
    return deviate_of_mean(_correlations(*pair(n, samples, rounds)) ** 2, 1 / (n - 1))


def _correlations(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    n = one.shape[1]
    centre, variance = (n - 1) / 2, (n * n - 1) / 12
    return ((one - centre) * (other - centre)).mean(axis=1) / variance


# (f), (g) Parity, cycles and fixed points.


def cycles(index: np.ndarray) -> np.ndarray:
    """The number of cycles of each permutation: of elements that are the least of their cycle."""
    samples, n = index.shape
    jump = index + n * np.arange(samples)[:, None]
    least = np.broadcast_to(np.arange(n), index.shape)
    for _ in range(math.ceil(math.log2(n))):  # after k rounds: the least of 2^k successors
        least = np.minimum(least, least.ravel()[jump])
        jump = jump.ravel()[jump]
    return np.count_nonzero(least == np.arange(n), axis=1)


def parity(rounds: int, *, n: int, samples: int) -> float:
    """Even and odd permutations are equally likely."""
    odd = (n - cycles(orders(n, samples, rounds))) % 2
    return deviate_of_mean(odd, 1 / 2, 1 / 4)


def number_of_cycles(rounds: int, *, n: int, samples: int) -> float:
    harmonic = sum(1 / k for k in range(1, n + 1))
    variance = harmonic - sum(1 / k**2 for k in range(1, n + 1))
    return deviate_of_mean(cycles(orders(n, samples, rounds)), harmonic, variance)


def length_of_a_cycle(rounds: int, *, n: int, samples: int) -> float:
    """The cycle of an element is equally likely to have any length."""
    index = orders(n, samples, rounds)
    every, start = np.arange(samples), n // 3
    length, at = np.zeros(samples, np.int64), index[:, start]
    for step in range(1, n + 1):
        length[(at == start) & (length == 0)] = step
        at = index[every, at]
    counts = np.bincount(length, minlength=n + 1)[1:]
    return deviate_of_chi_square(chi_square(counts, samples / n), n - 1)


def fixed_points(rounds: int, *, n: int, samples: int) -> float:
    """The number of fixed points is distributed as Poisson(1)."""
    found = np.count_nonzero(orders(n, samples, rounds) == np.arange(n), axis=1)
    largest = 6  # and more
    counts = np.bincount(np.minimum(found, largest), minlength=largest + 1)
    chance = [math.exp(-1) / math.factorial(k) for k in range(largest)]
    expected = samples * np.array([*chance, 1 - sum(chance)])
    return deviate_of_chi_square(chi_square(counts, expected), largest)


# Each statistic, and a number of rounds that is too small for it.
STATISTICS: dict[str, tuple[Callable[[int], float], int]] = {
    "all orders of 3": (partial(all_orders, n=3), 3),
    "all orders of 4": (partial(all_orders, n=4), 3),
    "all orders of 5": (partial(all_orders, n=5), 3),
    "landing of 50": (partial(landing, n=50, bins=50, samples=10_000), 4),
    "landing of 1000": (partial(landing, n=1000, bins=20, samples=1000), 4),
    "spread of a run in 2^30": (partial(spread_of_a_run, n=2**30, run=2**20, bins=1000), 8),
    "neighbours of 100": (partial(neighbours, n=100, samples=10_000), 6),
    "neighbours of 1000": (partial(neighbours, n=1000, samples=1000), 6),
    "neighbours of 2^30": (
        partial(pairs_that_keep_their_distance, n=2**30, distance=1, pairs=2**22),
        16,
    ),
    "halves of 2^30": (
        partial(pairs_that_keep_their_distance, n=2**30, distance=2**29, pairs=2**20),
        12,
    ),
    "quarters of 2^31 - 1": (
        partial(pairs_that_keep_their_distance, n=2**31 - 1, distance=2**29, pairs=2**20),
        12,
    ),
    "classes in batches of 1000": (
        partial(classes_in_batches, n=1000, batches=10, samples=1000),
        6,
    ),
    "classes in batches of 10^6": (
        partial(classes_in_batches, n=10**6, batches=1, samples=10_000),
        6,
    ),
    "parity of 2": (partial(parity, n=2, samples=40_000), 3),
    # The first round already makes parity even-handed, but for n = 2; without it all are even.
    "parity of 7": (partial(parity, n=7, samples=40_000), 0),
    "parity of 64": (partial(parity, n=64, samples=10_000), 0),
    "parity of 100": (partial(parity, n=100, samples=10_000), 0),
    "number of cycles of 100": (partial(number_of_cycles, n=100, samples=10_000), 4),
    "length of a cycle of 50": (partial(length_of_a_cycle, n=50, samples=10_000), 3),
    "fixed points of 100": (partial(fixed_points, n=100, samples=10_000), 4),
}
PAIRS: list[Pair] = [
    an_epoch_and_the_next,
    a_key_and_the_next,
    a_key_and_the_next_in_its_first_word,
    the_next_key_and_the_epoch_before,
    the_next_first_word_and_the_epoch_before,
]
for related in PAIRS:
    name = related.__name__.replace("_", " ")
    STATISTICS[f"coincidences of {name}"] = partial(coincidences, pair=related), 2
    STATISTICS[f"rank correlation of {name}"] = partial(rank_correlation, pair=related), 2
    STATISTICS[f"size of rank correlation of {name}"] = (
        partial(size_of_rank_correlation, pair=related),
        2,
    )


@pytest.mark.parametrize("name", STATISTICS)
def test_an_order_is_that_of_a_true_shuffle(name: str) -> None:
    statistic, _ = STATISTICS[name]
    assert abs(statistic(ROUNDS)) < LIMIT


@pytest.mark.parametrize("name", STATISTICS)
def test_an_order_of_too_few_rounds_is_told_from_a_true_shuffle(name: str) -> None:
    statistic, too_few = STATISTICS[name]
    assert abs(statistic(too_few)) > CERTAIN


# The 64-bit form, made to serve short data too.
STATISTICS_64 = {
    name: STATISTICS[name]
    for name in [
        "all orders of 4",
        "landing of 50",
        "spread of a run in 2^30",
        "neighbours of 100",
        "classes in batches of 10^6",
        "fixed points of 100",
        "coincidences of an epoch and the next",
    ]
}
STATISTICS_64["neighbours of 2^62"] = (
    partial(pairs_that_keep_their_distance, n=2**62, distance=1, pairs=2**19),
    12,
)
STATISTICS_64["quarters of 2^63 - 1"] = (
    partial(pairs_that_keep_their_distance, n=2**63 - 1, distance=2**61, pairs=2**19),
    12,
)


@pytest.mark.parametrize("name", STATISTICS_64)
def test_a_64_bit_order_is_that_of_a_true_shuffle(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permutation, "MAX_TRACED", 0)
    statistic, _ = STATISTICS_64[name]
    assert abs(statistic(ROUNDS_64)) < LIMIT


@pytest.mark.parametrize("name", STATISTICS_64)
def test_a_64_bit_order_of_too_few_rounds_is_told_from_a_true_shuffle(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permutation, "MAX_TRACED", 0)
    monkeypatch.setattr(permutation, "ROUNDS_64", 0)  # no least number of rounds
    statistic, too_few = STATISTICS_64[name]
    assert abs(statistic(too_few)) > CERTAIN
