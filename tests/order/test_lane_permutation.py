"""Many permutations at once, each of its own length: bijections, alike in NumPy and JAX."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cereal.order import lane_permutation
from cereal.order.lane_permutation import permute_lanes
from cereal.order.threefry import threefry

pytestmark = pytest.mark.optimized

LONGEST = 2**31 - 1
STEP = 0x9E37_79B9  # from one round's number to the next
LENGTHS = [*range(1, 40), 53, 64, 97, 127, 128, 129, 251, 255, 256, 257, 500, 509, 512]

Words = Any


def as_words(values: Any) -> np.ndarray:
    return (np.asarray(values, np.int64) & 0xFFFF_FFFF).astype(np.uint32)


def lanes(lengths: list[int], seed: int) -> tuple[np.ndarray, tuple[Words, Words], np.ndarray]:
    """All positions of one permutation per length, one after another."""
    words = np.random.default_rng(seed).integers(0, 2**32, (2, len(lengths)))
    first, second = (np.repeat(as_words(row), lengths) for row in words)
    position = np.concatenate([np.arange(n) for n in lengths])
    return as_words(position), (first, second), as_words(np.repeat(lengths, lengths))


def some_lanes(count: int, seed: int) -> tuple[np.ndarray, tuple[Words, Words], np.ndarray]:
    """Lanes that share nothing, of every order of length."""
    rng = np.random.default_rng(seed)
    n = np.maximum(rng.integers(1, 2**31, count) >> rng.integers(0, 31, count), 1)
    n[:3] = LONGEST, 2**30, 1
    first, second = (as_words(row) for row in rng.integers(0, 2**32, (2, count)))
    return as_words(rng.integers(0, n)), (first, second), as_words(n)


def in_jax(position: np.ndarray, seeds: tuple[Words, Words], n: Any) -> np.ndarray:
    seeds = (jnp.asarray(seeds[0]), jnp.asarray(seeds[1]))
    index = jax.jit(permute_lanes)(jnp.asarray(position), seeds, jnp.asarray(n))
    assert index.dtype == jnp.int32
    return np.asarray(index)


# A permutation


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_lane_is_a_bijection_whatever_its_length_and_its_company(seed: int) -> None:
    position, seeds, n = lanes(LENGTHS, seed)
    index = permute_lanes(position, seeds, n)
    assert index.dtype == np.int64
    for length, part in zip(LENGTHS, np.split(index, np.cumsum(LENGTHS)[:-1]), strict=True):
        np.testing.assert_array_equal(np.sort(part), np.arange(length))


@pytest.mark.parametrize("n", [65_521, 65_536, 100_003])
def test_a_long_permutation_is_a_bijection(n: int) -> None:
    index = permute_lanes(*lanes([n], n))
    np.testing.assert_array_equal(np.sort(index), np.arange(n))


@pytest.mark.parametrize("n", [2**30, 2**31 - 2, LONGEST])
def test_indices_of_the_longest_permutations_are_distinct_and_within_them(n: int) -> None:
    position = np.concatenate([np.arange(5000), np.arange(n - 5000, n), np.arange(2**16) * 16381])
    position = as_words(np.unique(position))
    seeds = (np.full(position.shape, 3, np.uint32), np.full(position.shape, 5, np.uint32))
    index = permute_lanes(position, seeds, np.uint32(n))
    assert 0 <= index.min() <= index.max() < n
    assert len(np.unique(index)) == len(position)


def test_a_lane_is_the_same_alone_and_in_company() -> None:
    position, (first, second), n = some_lanes(40, 7)
    together = permute_lanes(position, (first, second), n)
    for k in range(40):
        at = slice(k, k + 1)
        assert permute_lanes(position[at], (first[at], second[at]), n[at]) == together[at]


def test_one_pair_of_seeds_and_one_length_may_serve_all_lanes() -> None:
    position = np.arange(100, dtype=np.uint32)
    seeds = (np.full(100, 7, np.uint32), np.full(100, 9, np.uint32))
    expected = permute_lanes(position, seeds, np.full(100, 100, np.uint32))
    np.testing.assert_array_equal(permute_lanes(position, seeds, np.uint32(100)), expected)
    one = (np.full(1, 7, np.uint32), np.full(1, 9, np.uint32))
    np.testing.assert_array_equal(permute_lanes(position, one, np.uint32(100)), expected)


def test_permutations_differ_by_either_seed_and_by_length() -> None:
    position = np.arange(500, dtype=np.uint32)
    found = [
        permute_lanes(position, (np.full(500, a, np.uint32), np.full(500, b, np.uint32)), n)
        for a in (0, 1, 2**31, 2**32 - 1)
        for b in (0, 1, 2**31, 2**32 - 1)
        for n in (np.uint32(500), np.uint32(501))
    ]
    assert len({index.tobytes() for index in found}) == len(found)


# NumPy and JAX


@pytest.mark.usefixtures("strict_jax")
def test_jax_agrees_with_numpy_on_lanes_of_different_lengths() -> None:
    for given in (lanes(LENGTHS, 3), some_lanes(2000, 4)):
        np.testing.assert_array_equal(in_jax(*given), permute_lanes(*given))


@pytest.mark.usefixtures("strict_jax")
def test_jax_agrees_with_numpy_on_lanes_of_several_axes_and_one_length() -> None:
    _, (first, second), _ = some_lanes(240, 5)
    shape, n = (4, 6, 10), np.uint32(1000)
    position = as_words(np.arange(240) * 4).reshape(shape)
    seeds = (first.reshape(shape), second.reshape(shape))
    expected = permute_lanes(position, seeds, n)
    assert expected.shape == shape
    np.testing.assert_array_equal(in_jax(position, seeds, n), expected)


def test_the_form_for_accelerators_agrees_with_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []

    def by_platform(*args: Any, default: Any, **others: Any) -> Any:
        chosen.append(default)
        return default(*args)

    monkeypatch.setattr("cereal.order.lane_permutation.by_platform", by_platform)
    given = some_lanes(1000, 6)
    np.testing.assert_array_equal(in_jax(*given), permute_lanes(*given))
    assert len(chosen) == 1


def test_jax_agrees_with_numpy_under_vmap_and_with_64_bit_types_on() -> None:
    position, (first, second), n = some_lanes(60, 8)
    expected = permute_lanes(position, (first, second), n)
    mapped = jax.vmap(lambda p, a, b, n: permute_lanes(p, (a, b), n))
    arrays = [each.reshape(6, 10) for each in (position, first, second, n)]
    np.testing.assert_array_equal(mapped(*map(jnp.asarray, arrays)).ravel(), expected)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(in_jax(position, (first, second), n), expected)


# What users' saved states rely on.


def test_the_permutations_are_the_ones_of_earlier_releases() -> None:
    # SHA-256 over indices as little-endian int64. To change one is a breaking change: a run that
    # resumes from a saved state of a shuffled mixture would read other data than it left.
    number = np.arange(5000, dtype=np.uint32)
    n = as_words(np.resize([*LENGTHS, 60_000, 10**6 + 3, 2**30, LONGEST], 5000))
    index = permute_lanes(number % n, of_epochs_of_parts(5000), n)
    expected = "a6d18ea4268e8fecbf4549d4d5ddddc665a8fbb49d70f3e3ce47942f578916b2"
    assert hashlib.sha256(index.astype("<i8").tobytes()).hexdigest() == expected
    position, (first, second) = np.arange(12, dtype=np.uint32), np.zeros((2, 12), np.uint32)
    found = permute_lanes(position, (first, second), np.uint32(12)).tolist()
    assert found == [5, 11, 3, 0, 1, 4, 7, 2, 9, 10, 8, 6]


# Against true shuffles. Each statistic is about N(0, 1) if all permutations are equally likely;
# it is small with the rounds that `cereal` uses, and huge with too few of them.

LIMIT = 4.9  # two-sided p = 1e-6
CERTAIN = 12.0  # p < 1e-32
Seeds = Callable[[int], tuple[Words, Words]]


def counted_in_the_first_word(count: int) -> tuple[Words, Words]:
    return np.arange(count, dtype=np.uint32), np.zeros(count, np.uint32)


def counted_in_the_second_word(count: int) -> tuple[Words, Words]:
    return np.zeros(count, np.uint32), np.arange(count, dtype=np.uint32)


def by_the_constant_of_the_rounds(count: int) -> tuple[Words, Words]:
    return np.arange(count, dtype=np.uint32) * np.uint32(STEP), np.zeros(count, np.uint32)


def of_epochs_of_parts(count: int) -> tuple[Words, Words]:
    """As a mixture makes them."""
    number = np.arange(count, dtype=np.uint32)
    return threefry((np.uint32(1), np.uint32(2)), (number // np.uint32(7), number % np.uint32(7)))


FAMILIES: list[Seeds] = [
    counted_in_the_first_word,
    counted_in_the_second_word,
    by_the_constant_of_the_rounds,
    of_epochs_of_parts,
]


def orders(seeds: tuple[Words, Words], n: int) -> np.ndarray:
    """[seeds, n]: whole permutations."""
    shape = (len(seeds[0]), n)
    index = np.empty(shape, np.int64)
    chunk = max(1, 2**15 // n)  # so many rows stay in the cache
    for start in range(0, len(index), chunk):
        first, second = (word[start : start + chunk, None] for word in seeds)
        position = np.broadcast_to(np.arange(n, dtype=np.uint32), (len(first), n))
        index[start : start + chunk] = permute_lanes(position, (first, second), np.uint32(n))
    return index


def chi_square(counts: np.ndarray, expected: float) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def deviate_of_chi_square(value: float, freedom: int) -> float:
    """By Wilson and Hilferty."""
    spread = 2 / (9 * freedom)
    return ((value / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


def deviate_of_mean(values: np.ndarray, mean: float, variance: float) -> float:
    return (float(values.mean()) - mean) / math.sqrt(variance / values.size)


def all_orders_of_4(seeds: Seeds) -> float:
    """Each of the 24 orders is equally likely."""
    _, counts = np.unique(orders(seeds(24_000), 4) @ 4 ** np.arange(4), return_counts=True)
    counts = np.r_[counts, np.zeros(24 - len(counts))]
    return deviate_of_chi_square(chi_square(counts, 1000), 23)


def first_index(seeds: Seeds) -> float:
    """The index at position 0 is equally likely to be any."""
    first, second = seeds(50_000)
    index = permute_lanes(np.zeros(50_000, np.uint32), (first, second), np.uint32(1000))
    return deviate_of_chi_square(chi_square(np.bincount(index, minlength=1000), 50), 999)


def landing(seeds: Seeds) -> float:
    """Each position has each index equally often."""
    n, samples = 20, 10_000
    cell = orders(seeds(samples), n) + n * np.arange(n)
    counts = np.bincount(cell.ravel(), minlength=n * n)
    # A table of contingency with fixed margins, summed over the samples.
    return deviate_of_chi_square(chi_square(counts, samples / n) * (n - 1) / n, (n - 1) ** 2)


def neighbours(seeds: Seeds) -> float:
    """Positions p where the indices at p and p + 1 are neighbours, 2 (n - 1) / n per order."""
    n = 100
    found = np.count_nonzero(np.abs(np.diff(orders(seeds(2000), n))) == 1, axis=1)
    mean = 2 * (n - 1) / n
    return deviate_of_mean(found, mean, 4 * (n - 2) ** 2 / (n * (n - 1)) + mean - mean**2)


def next_to_each_other(seeds: Seeds) -> float:
    """Indices at position 0 of seeds that follow each other are unrelated."""
    n, count = 30, 45_001
    index = permute_lanes(np.zeros(count, np.uint32), seeds(count), np.uint32(n))
    counts = np.bincount(index[:-1] * n + index[1:], minlength=n * n)
    return deviate_of_chi_square(chi_square(counts, (count - 1) / n**2), n * n - 1)


STATISTICS: dict[str, tuple[Callable[[], float], int]] = {
    f"{statistic.__name__}, seeds {seeds.__name__}": (partial(statistic, seeds), too_few)
    for seeds in FAMILIES
    for statistic, too_few in [
        (all_orders_of_4, 3),
        (first_index, 6),
        (landing, 4),
        (neighbours, 4),
        (next_to_each_other, 3),
    ]
}


def agreement_of_seeds_that_differ_in_one_bit() -> float:
    """Two permutations agree at one position on average, whatever bit of the seed differs."""
    n, samples = 50, 40
    first, second = of_epochs_of_parts(samples)
    one = orders((first, second), n)
    found = []
    for bit in range(32):
        flip = np.uint32(1 << bit)
        found.append(np.count_nonzero(one == orders((first ^ flip, second), n), axis=1))
        found.append(np.count_nonzero(one == orders((first, second ^ flip), n), axis=1))
    return deviate_of_mean(np.concatenate(found), 1, 1)


def neighbours_of_many() -> float:
    """In a permutation of 2^30, positions whose indices are neighbours are a rare accident."""
    n, pairs = 2**30, 2**19
    seeds = (np.full(1, 3, np.uint32), np.full(1, 5, np.uint32))
    index = permute_lanes(np.arange(pairs + 1, dtype=np.uint32), seeds, np.uint32(n))
    apart = np.abs(np.diff(index))
    found, mean = np.count_nonzero((apart == 1) | (apart == n - 1)), pairs * 2 / (n - 1)
    # Of a Poisson count with a small mean: the signed root of its deviance.
    deviance = mean - found + (found * math.log(found / mean) if found else 0.0)
    return math.copysign(math.sqrt(2 * deviance), found - mean)


STATISTICS["agreement of seeds that differ in one bit"] = (
    agreement_of_seeds_that_differ_in_one_bit,
    2,
)
STATISTICS["neighbours of 2^30"] = neighbours_of_many, 12


@pytest.mark.parametrize("name", STATISTICS)
def test_a_lane_is_a_true_shuffle(name: str) -> None:
    assert abs(STATISTICS[name][0]()) < LIMIT


@pytest.mark.parametrize("name", STATISTICS)
def test_a_lane_of_too_few_rounds_is_told_from_a_true_shuffle(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    statistic, too_few = STATISTICS[name]
    monkeypatch.setattr(lane_permutation, "ROUNDS", too_few)
    assert abs(statistic()) > CERTAIN
