"""Sums and products of 32-bit words against Python's integers, in NumPy and in JAX."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cereal.core.wide import add_below, fraction_words, high_word, plus, times_ratio

pytestmark = pytest.mark.optimized

WORD = 2**32
EXTREMES = sorted(
    {0, 1, 2, 3, 0xFFFF, 0x10000, 0x10001, 0x7FFF_FFFF, 0x8000_0000, 0x8000_0001}
    | {0xFFFF_0000, 0xFFFE_FFFF, WORD - 2, WORD - 1}
)
DENOMINATORS = [1, 2, 3, 7, 10, 0xFFFF, 0x10000, 0x10001, 10**9 + 7, 2**30, 2**31 - 2, 2**31 - 1]


def as_words(values: Any) -> np.ndarray:
    return np.array(values, np.uint64).astype(np.uint32)


def as_integers(*words: Any) -> list[tuple[int, ...]]:
    return list(zip(*(np.asarray(each).tolist() for each in words), strict=True))


def some_words(count: int, seed: int) -> list[int]:
    """Random words of every length: as many short ones as long ones."""
    rng = np.random.default_rng(seed)
    return [int(word) >> int(cut) for word, cut in rng.integers(0, [WORD, 32], (count, 2))]


# The high word


def pairs() -> tuple[np.ndarray, np.ndarray]:
    values = EXTREMES + some_words(40, 0)
    x, y = zip(*itertools.product(values, values), strict=True)
    return as_words(x), as_words(y)


def test_a_sum_carries_into_the_high_word() -> None:
    low, n = pairs()
    high = np.full_like(low, 7)
    expected = [divmod((7 << 32) + a + b, WORD) for a, b in as_integers(low, n)]
    assert as_integers(*plus(high, low, n)) == expected
    in_jax = jax.jit(plus)(*map(jnp.asarray, (high, low, n)))
    assert as_integers(*in_jax) == expected


def test_the_high_word_is_that_of_the_whole_product() -> None:
    x, y = pairs()
    expected = [a * b >> 32 for a, b in as_integers(x, y)]
    found = high_word(x, y)
    assert found.dtype == np.uint32
    assert found.tolist() == expected


@pytest.mark.usefixtures("strict_jax")
def test_the_high_word_in_jax_is_that_of_the_whole_product() -> None:
    x, y = pairs()
    found = jax.jit(high_word)(jnp.asarray(x), jnp.asarray(y))
    assert found.dtype == jnp.uint32
    np.testing.assert_array_equal(found, [a * b >> 32 for a, b in as_integers(x, y)])


@pytest.mark.usefixtures("strict_jax")
def test_a_high_word_by_a_number_is_that_by_an_array_of_it() -> None:
    x, _ = pairs()
    for number in (0, 1, 1000, WORD - 1):
        expected = [a * number >> 32 for a in x.tolist()]
        assert high_word(x, np.uint32(number)).tolist() == expected
        found = high_word(jnp.asarray(x), np.uint32(number))
        assert found.tolist() == expected


# Ratios


def ratios() -> list[tuple[int, int]]:
    """Numerators and denominators, the numerator below the denominator."""
    given = [d for d in some_words(40, 1) if 0 < d < 2**31] + DENOMINATORS
    near = [(n, d) for d in given for n in (0, 1, d // 3, d // 2, d - 2, d - 1) if 0 <= n < d]
    return sorted(set(near))


def test_fraction_words_are_the_ratio_rounded_up_in_64_bits() -> None:
    for numerator, denominator in ratios():
        high, low = fraction_words(numerator, denominator)
        assert 0 <= high < WORD
        assert 0 <= low < WORD
        above = ((high << 32) + low) * denominator - (numerator << 64)
        assert 0 <= above < denominator


def cases(x_values: list[int]) -> list[np.ndarray]:
    """x, numerator, denominator and the two words of their ratio, as arrays."""
    rows = [
        (x, numerator, denominator, *fraction_words(numerator, denominator))
        for x, (numerator, denominator) in itertools.product(x_values, ratios())
    ]
    return list(as_words(rows).T)


def hardest() -> list[np.ndarray]:
    """Cases whose rest is 0 or denominator - 1: what is a little off gives another quotient."""
    rows = []
    for denominator in (3, 10**9 + 7, 2**31 - 1):  # primes: every numerator has an inverse
        for numerator in (1, 2, denominator // 2, denominator - 1):
            inverse = pow(numerator, -1, denominator)
            for rest in (0, denominator - 1):
                first = rest * inverse % denominator
                fraction = fraction_words(numerator, denominator)
                last = first + (WORD - 1 - first) // denominator * denominator
                rows += [(x, numerator, denominator, *fraction) for x in (first, last)]
    return list(as_words(rows).T)


def quotients_and_rests(x: Any, numerator: Any, denominator: Any) -> list[tuple[int, ...]]:
    return [divmod(a * b, c) for a, b, c in as_integers(x, numerator, denominator)]


def test_times_ratio_is_exact_for_every_word() -> None:
    x, numerator, denominator, *fraction = cases(EXTREMES + some_words(10, 2))
    quotient, rest = times_ratio(x, numerator, denominator, fraction)
    assert quotient.dtype == rest.dtype == np.uint32
    assert as_integers(quotient, rest) == quotients_and_rests(x, numerator, denominator)


@pytest.mark.usefixtures("strict_jax")
def test_times_ratio_in_jax_is_exact_for_every_word() -> None:
    words = cases(EXTREMES + some_words(10, 3))
    x, numerator, denominator, *fraction = (jnp.asarray(each) for each in words)
    quotient, rest = jax.jit(times_ratio)(x, numerator, denominator, fraction)
    assert quotient.dtype == rest.dtype == jnp.uint32
    assert as_integers(quotient, rest) == quotients_and_rests(*words[:3])


def test_times_ratio_is_exact_where_the_rest_is_nothing_or_almost_another_one() -> None:
    x, numerator, denominator, *fraction = hardest()
    expected = quotients_and_rests(x, numerator, denominator)
    found = times_ratio(x, numerator, denominator, fraction)
    assert as_integers(*found) == expected
    assert {rest == 0 for _, rest in expected} == {True, False}


def test_a_fraction_that_is_not_rounded_up_is_seen_in_the_hardest_cases() -> None:
    x, numerator, denominator, *_ = hardest()
    below = [((n << 64) // d) for n, d in as_integers(numerator, denominator)]
    fraction = [as_words([f >> 32 for f in below]), as_words([f % WORD for f in below])]
    found = times_ratio(x, numerator, denominator, fraction)
    assert as_integers(*found) != quotients_and_rests(x, numerator, denominator)


@given(st.integers(0, WORD - 1), st.integers(1, 2**31 - 1), st.data())
def test_times_ratio_is_divmod(x: int, denominator: int, data: st.DataObject) -> None:
    numerator = data.draw(st.integers(0, denominator - 1))
    fraction = [as_words([each]) for each in fraction_words(numerator, denominator)]
    found = times_ratio(as_words([x]), as_words([numerator]), as_words([denominator]), fraction)
    assert as_integers(*found) == [divmod(x * numerator, denominator)]


@pytest.mark.usefixtures("strict_jax")
def test_one_ratio_serves_many_words() -> None:
    x, (numerator, denominator) = as_words(EXTREMES), (5, 2**31 - 1)
    fraction = tuple(np.uint32(each) for each in fraction_words(numerator, denominator))
    expected = [divmod(each * numerator, denominator) for each in EXTREMES]
    for form in (x, jnp.asarray(x)):
        found = times_ratio(form, np.uint32(numerator), np.uint32(denominator), fraction)
        assert as_integers(*found) == expected


# Sums below a limit


def sums() -> list[np.ndarray]:
    rows = [
        (x, y, limit)
        for limit in DENOMINATORS
        for x, y in itertools.product({0, 1, limit // 2, limit - 2, limit - 1}, repeat=2)
        if 0 <= x < limit and 0 <= y < limit
    ]
    return list(as_words(rows).T)


@pytest.mark.usefixtures("strict_jax")
def test_add_below_says_how_often_the_limit_fits_and_what_is_left() -> None:
    x, y, limit = sums()
    expected = [divmod(a + b, c) for a, b, c in as_integers(x, y, limit)]
    assert {over for over, _ in expected} == {0, 1}
    assert as_integers(*add_below(x, y, limit)) == expected
    over, rest = jax.jit(add_below)(*(jnp.asarray(each) for each in (x, y, limit)))
    assert over.dtype == rest.dtype == jnp.uint32
    assert as_integers(over, rest) == expected


def test_words_are_the_same_with_64_bit_types_on() -> None:
    words = hardest()
    expected = quotients_and_rests(*words[:3])
    with jax.enable_x64(True):
        x, numerator, denominator, *fraction = (jnp.asarray(each) for each in words)
        quotient, rest = jax.jit(times_ratio)(x, numerator, denominator, fraction)
        assert quotient.dtype == rest.dtype == jnp.uint32
    assert as_integers(quotient, rest) == expected
