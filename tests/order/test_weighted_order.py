"""The race behind drawing without replacement: its logarithm, its odds, NumPy and JAX alike."""

from __future__ import annotations

import hashlib
import itertools
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cereal.order.weighted_order import _exponential, _minus_log, finish_order

pytestmark = pytest.mark.optimized

KEY = (np.uint32(0x01234567), np.uint32(0x89ABCDEF))
ONE = 2**26  # the unit of time
LIMIT = 4.9  # two-sided p = 1e-6


def some_words() -> np.ndarray:
    """Words from everywhere: the ends, powers of two and what is beside them, all magnitudes."""
    rng = np.random.default_rng(0)
    powers = (2 ** np.arange(32)[:, None] + np.arange(-200, 200)).ravel()
    ends = np.r_[np.arange(1, 3000), 2**32 - np.arange(1, 3000)]
    drawn = np.r_[rng.integers(1, 2**32, 300_000), 2 ** rng.uniform(0, 32, 100_000)]
    words = np.unique(np.r_[powers, ends, drawn.astype(np.int64)])
    return words[(words >= 1) & (words < 2**32)].astype(np.uint32)


def shares(slowness: np.ndarray) -> np.ndarray:
    return (1 / slowness) / (1 / slowness).sum()


def finish(slowness: Any, epochs: int, key: Any = KEY) -> np.ndarray:
    slowness = np.asarray(slowness, np.float32)
    return np.asarray(finish_order(key, np.arange(epochs, dtype=np.uint32), slowness))


def finish_in_jax(slowness: Any, epochs: int) -> np.ndarray:
    key = (jnp.uint32(KEY[0]), jnp.uint32(KEY[1]))
    compiled = jax.jit(partial(finish_order, key))
    return np.asarray(
        compiled(jnp.arange(epochs, dtype=jnp.uint32), jnp.asarray(slowness, jnp.float32))
    )


def deviate_of_chi_square(counts: np.ndarray, chances: Any) -> float:
    """By Wilson and Hilferty."""
    expected, freedom = counts.sum() * np.asarray(chances), len(counts) - 1
    value = float(((counts - expected) ** 2 / expected).sum())
    spread = 2 / (9 * freedom)
    return ((value / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


# The logarithm


def test_the_logarithm_is_right_to_a_seven_millionth() -> None:
    words = some_words()
    exact = -np.log(words.astype(np.float64) / 2**32)
    assert np.abs(_minus_log(np, words) / ONE - exact).max() < 1e-7


def test_the_time_is_right_to_a_part_of_itself_however_short_it_is() -> None:
    # With both words: the shortest times are those of words near 2^64.
    rng = np.random.default_rng(1)
    left = np.unique((2.0 ** rng.uniform(34, 63, 200_000)).astype(np.uint64))
    words = np.uint64(0) - left
    time = _exponential(np, (words >> np.uint64(32)).astype(np.uint32), words.astype(np.uint32))
    exact = -np.log1p(-left.astype(np.float64) / 2.0**64)
    assert np.abs(time / exact - 1).max() < 4.5e-4


def test_a_larger_word_never_has_a_larger_time_and_all_times_are_positive() -> None:
    words = some_words()
    time = _exponential(np, words, np.full_like(words, 2**31)).astype(np.float64)
    assert np.diff(time).max() <= 0
    assert 0 < time.min() < time.max() < 23


def test_the_word_zero_has_the_time_of_the_word_one() -> None:
    words = np.array([0, 1], np.uint32)
    zero, one = _exponential(np, words, words)
    assert zero == one
    assert abs(one - 32 * np.log(2)) < 1e-5


@pytest.mark.usefixtures("strict_jax")
def test_the_logarithm_in_jax_is_that_in_numpy_in_every_bit() -> None:
    words = np.r_[np.uint32(0), some_words()]
    second = words[::-1].copy()
    traced = jax.jit(partial(_exponential, jnp))(jnp.asarray(words), jnp.asarray(second))
    assert traced.dtype == jnp.float32
    np.testing.assert_array_equal(traced, _exponential(np, words, second))


# The order


def test_everybody_finishes_once_in_every_epoch() -> None:
    slowness = np.r_[1, 2.5, 1e6, np.inf, 1, np.inf, 7, 1e9]
    order = finish(slowness, 200)
    np.testing.assert_array_equal(np.sort(order), np.tile(np.arange(8), (200, 1)))


@pytest.mark.parametrize("form", [finish, finish_in_jax])
def test_who_never_arrives_is_last_and_ties_are_in_the_order_of_the_data(form: Any) -> None:
    slowness = np.r_[np.full(20, np.inf), 1, np.full(20, np.inf), 3, np.full(20, np.inf)]
    order = form(slowness, 30)
    never = np.flatnonzero(np.isinf(slowness))
    np.testing.assert_array_equal(np.sort(order[:, :2]), np.tile([20, 41], (30, 1)))
    np.testing.assert_array_equal(order[:, 2:], np.tile(never, (30, 1)))


def test_epochs_and_keys_have_orders_of_their_own_and_one_key_always_the_same() -> None:
    slowness = np.ones(30)
    keys = [(np.uint32(0), np.uint32(1)), (np.uint32(1), np.uint32(0)), KEY]
    orders = np.concatenate([finish(slowness, 5, key) for key in keys])
    assert len(np.unique(orders, axis=0)) == 15
    np.testing.assert_array_equal(finish(slowness, 5), orders[-5:])
    later = np.array([4, 2], np.uint32)
    alone = finish_order(KEY, later, np.ones(30, np.float32))
    np.testing.assert_array_equal(alone, orders[-5:][[4, 2]])


@pytest.mark.parametrize("form", [finish, finish_in_jax])
def test_the_orders_of_this_version(form: Any) -> None:
    # Runs are restored by the order: to change this digest is a breaking change.
    slowness = np.r_[np.geomspace(1, 1e6, 500), np.inf, np.ones(499)]
    digest = hashlib.sha256(form(slowness, 20).astype("<i8").tobytes()).hexdigest()
    assert digest[:16] == "07a0432abffa21c3"


@pytest.mark.parametrize("most", [1, 1e6, 1e12, 1e25])
def test_jax_and_numpy_agree_whatever_the_weights(most: float) -> None:
    slowness = np.random.default_rng(0).permutation(np.geomspace(1, most, 1000))
    slowness = slowness.astype(np.float32)
    np.testing.assert_array_equal(finish_in_jax(slowness, 12), finish(slowness, 12))


# The odds


@pytest.mark.parametrize("slowness", [(1, 1, 1), (1, 2, 5), (10, 1, 300)])
def test_orders_are_those_of_drawing_one_after_another(slowness: tuple[float, ...]) -> None:
    share = shares(np.array(slowness))
    order = finish(slowness, 40_000) @ [9, 3, 1]
    every = list(itertools.permutations(range(3)))
    counts = np.array([np.count_nonzero(order == 9 * a + 3 * b + c) for a, b, c in every])
    chances = [share[a] * share[b] / (1 - share[a]) for a, b, _ in every]
    assert abs(deviate_of_chi_square(counts, chances)) < LIMIT


def test_other_odds_would_be_seen() -> None:
    order = finish((1, 2, 5), 40_000)
    counts = np.bincount(order[:, 0], minlength=3)
    assert deviate_of_chi_square(counts, shares(np.array([1, 2.2, 5]))) > LIMIT


def test_of_many_runners_each_wins_by_its_share() -> None:
    slowness = np.random.default_rng(0).uniform(1, 50, 60)
    counts = np.bincount(finish(slowness, 30_000)[:, 0], minlength=60)
    assert abs(deviate_of_chi_square(counts, shares(slowness))) < LIMIT


def test_an_epoch_tells_nothing_of_the_next() -> None:
    first = finish((1, 1, 2, 2), 40_001)[:, 0]
    counts = np.bincount(4 * first[:-1] + first[1:], minlength=16)
    share = shares(np.array([1, 1, 2, 2]))
    assert abs(deviate_of_chi_square(counts, np.outer(share, share).ravel())) < LIMIT


def share_earlier_than(time: np.ndarray) -> np.ndarray:
    """The share of pairs of words with a time below each of these: large words have small ones."""
    low, high = np.zeros(time.shape, np.uint64), np.full(time.shape, 2**64 - 1, np.uint64)
    for _ in range(65):
        middle = low + (high - low) // np.uint64(2)
        first, second = (middle >> np.uint64(32)).astype(np.uint32), middle.astype(np.uint32)
        found = _exponential(np, first, second) < time
        low, high = np.where(found, low, middle + np.uint64(1)), np.where(found, middle, high)
        low = np.minimum(low, high)
    return (np.uint64(2**64 - 1) - high).astype(np.float64) / 2.0**64


@pytest.mark.parametrize("light", [1e-2, 1e-4, 1e-6, 1e-8, 1e-10])
def test_many_light_elements_are_drawn_before_a_heavy_one_by_their_share(light: float) -> None:
    # One of weight 1, and as many of weight `light` as make a tenth of it: one of them is drawn
    # first with probability 1/11. Exactly, over the words that the heavy one may draw.
    words = (np.arange(2**15) + 0.5) * 2**17
    heavy = _exponential(np, words.astype(np.uint32), np.zeros(2**15, np.uint32))
    before = share_earlier_than(heavy.astype(np.float64) * light)
    first = -np.mean(np.expm1(np.log1p(-before) * (0.1 / light)))
    assert abs(first / (1 / 11) - 1) < 0.002
