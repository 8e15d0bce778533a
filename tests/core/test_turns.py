"""Whose turn it is: every prefix has of each part its share, and weights become whole numbers."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cereal.core.errors import PipelineError
from cereal.core.ordering import times_before
from cereal.core.turns import MOST_SLOTS, turn_table, whole_parts

MILLION = 10**6


def some_parts(trials: int, seed: int) -> list[list[int]]:
    """Numbers of turns of many kinds, with and without zeros."""
    rng = np.random.default_rng(seed)
    found = []
    for trial in range(trials):
        most = int(rng.choice([1, 2, 5, 30, 200]))
        parts = rng.integers(trial % 2, most + 1, rng.integers(1, 15))
        found.append([int(part) for part in parts])
    return [parts for parts in found if any(parts)]


SPECIAL = [
    [1],
    [7],
    [0, 1],
    [1, 0, 0, 5],
    [3, 1],
    [1, 3],
    [1, 1, 1],
    [4, 4, 4, 4],
    [4, 4, 0, 4],
    [1000, *[1] * 30],
    [*[1] * 30, 1000],
    [5000, 3, 1, 1, 0, 2],
    [500, 499],
    [2, 3, 5, 7, 11, 13, 17, 19, 23],
    [1 << k for k in range(10)],
    [*[1] * 20, *[10] * 20, *[100] * 5],
]


def lag(parts: list[int]) -> int:
    """How far a part is from its share in a prefix at most, in elements times the total."""
    table, total = turn_table(parts), sum(parts)
    slot = np.arange(1, total + 1)
    return max(
        int(np.abs(np.cumsum(table == number) * total - slot * part).max())
        for number, part in enumerate(parts)
    )


# Tables


@pytest.mark.parametrize("seed", range(4))
def test_every_prefix_is_within_one_element_of_its_shares(seed: int) -> None:
    for parts in some_parts(100, seed):
        assert lag(parts) < sum(parts), parts


@pytest.mark.parametrize("parts", SPECIAL, ids=str)
def test_every_prefix_of_an_unusual_table_is_within_one_element_of_its_shares(
    parts: list[int],
) -> None:
    assert lag(parts) < sum(parts)


def test_every_prefix_of_a_thousand_parts_is_within_one_element_of_its_shares() -> None:
    rng = np.random.default_rng(9)
    parts = [int(part) for part in rng.integers(0, 20, 1000)]
    parts[17] = 5000
    table, total = turn_table(parts), sum(parts)
    # A part's share changes by less than one between its turns: looking at them is enough.
    for number, part in enumerate(parts):
        slots = np.flatnonzero(table == number)
        turn = np.arange(part)
        before, after = slots * part - turn * total, (slots + 1) * part - (turn + 1) * total
        assert (np.abs(before) < total).all(), number
        assert (np.abs(after) < total).all(), number


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any))
def test_each_part_has_exactly_its_turns(parts: list[int]) -> None:
    table = turn_table(parts)
    assert table.dtype == np.int32
    assert np.bincount(table, minlength=len(parts)).tolist() == parts


@pytest.mark.parametrize("parts", SPECIAL, ids=str)
def test_each_part_of_an_unusual_table_has_exactly_its_turns(parts: list[int]) -> None:
    assert np.bincount(turn_table(parts), minlength=len(parts)).tolist() == parts


def test_equal_parts_take_turns_in_order() -> None:
    assert turn_table([1, 1, 1]).tolist() == [0, 1, 2]
    assert turn_table([2, 2]).tolist() == [0, 1, 0, 1]


def test_a_table_is_the_one_of_earlier_releases() -> None:
    # To change one is a breaking change: a saved state of a mixture would read other data.
    assert turn_table([3, 1]).tolist() == [0, 0, 1, 0]
    assert turn_table([1, 0, 2]).tolist() == [2, 0, 2]
    found = turn_table([5, 1, 9]).tolist()
    assert found == [2, 0, 2, 2, 0, 2, 0, 2, 2, 0, 2, 2, 1, 0, 2]


def test_ranks_count_the_earlier_turns_of_the_same_part() -> None:
    tables = [turn_table(parts) for parts in [*SPECIAL, *some_parts(40, 5)]]
    tables.append(np.array([3, 3, 0, 7, 0, 3], np.int32))
    for table in tables:
        seen: dict[int, int] = {}
        expected = []
        for part in table.tolist():
            expected.append(seen.get(part, 0))
            seen[part] = expected[-1] + 1
        assert times_before(table).tolist() == expected


# Weights as whole numbers


def parts_of(*weights: Any) -> tuple[int, ...]:
    return whole_parts(weights, len(weights), "Test")


@pytest.mark.parametrize(
    ("weights", "parts"),
    [
        ((0.7, 0.3), (7, 3)),
        ((0.5, 0.25, 0.25), (2, 1, 1)),
        ((1 / 3, 2 / 3), (1, 2)),
        ((1 / 7, 2 / 7, 4 / 7), (1, 2, 4)),
        ((0.1 + 0.2, 0.3), (1, 1)),
        ((np.float32(0.3), np.float32(0.7)), (3, 7)),
        ((np.float16(0.5), 1.5), (1, 3)),
        ((2, 4), (1, 2)),
        ((np.int8(100), np.uint64(50)), (2, 1)),
        ((0, 3, 0), (0, 1, 0)),
        ((0.0, 0.5, -0.0, 1), (0, 1, 0, 2)),
        ((5,), (1,)),
        ((1e-9, 3e-9), (1, 3)),
        ((1e300, 3e300), (1, 3)),
        ((Fraction(1, 3), Fraction(1, 6)), (2, 1)),
        ((10**30, 3 * 10**30), (1, 3)),
        ((0.001, 0.999), (1, 999)),
        ((0.000001, 0.999999), (1, 999999)),
        ((1, MOST_SLOTS - 1), (1, MOST_SLOTS - 1)),
        ((13, MOST_SLOTS - 13), (13, MOST_SLOTS - 13)),
    ],
    ids=str,
)
def test_weights_are_the_smallest_whole_numbers_in_their_ratio(
    weights: tuple[Any, ...], parts: tuple[int, ...]
) -> None:
    assert parts_of(*weights) == parts


def test_weights_may_be_any_list_of_numbers() -> None:
    for weights in (
        [3, 1],
        np.array([3, 1]),
        np.array([0.75, 0.25], np.float32),
        jnp.array([3, 1]),
        jnp.array([0.75, 0.25]),
        iter((3, 1)),
        {"a": 3, "b": 1}.values(),
    ):
        assert whole_parts(weights, 2, "Test") == (3, 1)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(any), st.integers(1, 10**6))
def test_a_common_factor_of_whole_weights_changes_nothing(weights: list[int], factor: int) -> None:
    smallest = tuple(weight // math.gcd(*weights) for weight in weights)
    assert parts_of(*weights) == smallest
    assert parts_of(*(weight * factor for weight in weights)) == smallest


HARD = [
    (10**12 + 7, 10**12 - 11),
    (2**40 + 1, 3**20, 5**15),
    (0.3141592653, 0.2718281828, 0.4140125519),
    (123456.7, 654321.3),
    (1, 1e-5),
    (1e-7, 1, 2.000001),
    tuple(np.random.default_rng(0).random(5).tolist()),
    tuple(np.random.default_rng(1).random(100).tolist()),
    (10**12, 1),
    (10**12, 1, 1),
    (10**15, *[1] * 50),
    (1e300, 1e-5, 0, 1),
]


@pytest.mark.parametrize("weights", HARD, ids=lambda weights: str(weights[:3]))
def test_weights_in_no_small_ratio_fit_the_largest_table(weights: tuple[Any, ...]) -> None:
    parts = parts_of(*weights)
    assert len(parts) == len(weights)
    assert sum(parts) <= MOST_SLOTS
    assert math.gcd(*parts) == 1


@pytest.mark.parametrize("weights", HARD, ids=lambda weights: str(weights[:3]))
def test_every_weight_that_is_not_zero_has_a_turn(weights: tuple[Any, ...]) -> None:
    assert [part > 0 for part in parts_of(*weights)] == [weight > 0 for weight in weights]


@pytest.mark.parametrize("weights", [(1e308, 5e-324), (1.0, 1e-308), (3, 0, 5e-324)], ids=str)
def test_even_the_tiniest_float_has_a_turn(weights: tuple[float, ...]) -> None:
    parts = parts_of(*weights)
    assert [part > 0 for part in parts] == [weight > 0 for weight in weights]
    assert parts[-1] == 1


@pytest.mark.parametrize("weights", HARD, ids=lambda weights: str(weights[:3]))
def test_weights_in_no_small_ratio_are_rounded_to_one_in_a_million(
    weights: tuple[Any, ...],
) -> None:
    parts = parts_of(*weights)
    total = sum(map(Fraction, weights))
    for part, weight in zip(parts, weights, strict=True):
        error = abs(Fraction(part, sum(parts)) - Fraction(weight) / total)
        # A weight that is too small for a slot gets one; all of them are taken from the rest.
        assert error <= Fraction(1 + len(weights), MILLION)


@given(
    st.lists(
        st.floats(0, 1e6, allow_nan=False) | st.integers(0, 10**18), min_size=1, max_size=30
    ).filter(any)
)
def test_all_good_weights_give_a_table_that_can_be_made(weights: list[Any]) -> None:
    parts = parts_of(*weights)
    assert 1 <= sum(parts) <= MOST_SLOTS
    assert [part > 0 for part in parts] == [weight > 0 for weight in weights]


# Bad weights

NO_NUMBER = r"Test: `weights` must be one number per source, got .*write `weights=\(3, 1\)`"


@pytest.mark.parametrize(
    "weights",
    [
        "31",
        ("3", "1"),
        (b"3", 1),
        None,
        3,
        0.5,
        (None, 1),
        (True, False),
        (np.True_, np.False_),
        np.array([True, False]),
        ([3], [1]),
        ((3, 1), (1, 3)),
        (1j, 1),
        (set(), 1),
    ],
    ids=repr,
)
def test_weights_that_are_no_numbers_are_refused(weights: Any) -> None:
    with pytest.raises(PipelineError, match=NO_NUMBER):
        whole_parts(weights, 2, "Test")


@pytest.mark.parametrize(
    ("weights", "number", "named"),
    [
        ((-1, 2), 0, "-1"),
        ((2, -0.5), 1, "-0.5"),
        ((1, math.nan), 1, "nan"),
        ((math.inf, 1), 0, "inf"),
        ((1, -math.inf), 1, "-inf"),
        ((1, np.float32("nan")), 1, "nan"),
        ((1, np.int64(-3)), 1, "-3"),
        (np.array([1.0, -2.0]), 1, "-2.0"),
    ],
    ids=str,
)
def test_weights_that_are_negative_or_not_finite_are_refused(
    weights: Any, number: int, named: str
) -> None:
    match = f"Test: the weight of source {number} is {named}; weights are finite and not negative"
    with pytest.raises(PipelineError, match=match):
        whole_parts(weights, 2, "Test")


@pytest.mark.parametrize("weights", [(1,), (1, 2, 3), (), np.ones(5)], ids=str)
def test_another_number_of_weights_than_of_sources_is_refused(weights: Any) -> None:
    match = f"Test: there are 2 sources and {len(weights)} `weights`; give one per source"
    with pytest.raises(PipelineError, match=match):
        whole_parts(weights, 2, "Test")


@pytest.mark.parametrize("weights", [(0, 0), (0.0, -0.0), np.zeros(2)], ids=str)
def test_weights_that_are_all_zero_are_refused(weights: Any) -> None:
    with pytest.raises(PipelineError, match="Test: all `weights` are zero, so there is nothing"):
        whole_parts(weights, 2, "Test")


def test_whole_numbers_of_any_size_are_weights() -> None:
    assert parts_of(10**400, 3 * 10**400) == (1, 3)
    assert parts_of(10**400, 10**400 + 1) == (1, 1)
