"""The sum tree: exact after any number of changes, and every item can be drawn."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from scipy import stats

from cereal.rl.replay.storage.sum_tree import (
    WIDTH,
    draw,
    empty_tree,
    priority_of,
    rows_of_levels,
    set_priority,
    set_run,
    total,
)

SIZES = (1, 2, 15, 16, 17, 100, 256, 257, 300)
change = jax.jit(set_priority, static_argnums=1)
change_run = jax.jit(set_run, static_argnums=1)


def made_anew(leaves: np.ndarray) -> np.ndarray:
    """The nodes of a tree with these priorities, level by level."""
    levels, numbers = [], leaves.astype(np.float32)
    for rows in rows_of_levels(len(leaves)):
        level = np.zeros((rows, WIDTH), np.float32)
        level.reshape(-1)[: len(numbers)] = numbers
        levels.append(level)
        numbers = level
        while numbers.shape[1] > 1:
            numbers = numbers[:, 0::2] + numbers[:, 1::2]
        numbers = numbers[:, 0]
    return np.concatenate(levels)


def words(seed: int, n: int, k: int) -> Any:
    return jax.random.bits(jax.random.key(seed), (len(rows_of_levels(n)), k), jnp.uint32)


@settings(max_examples=25)
@given(st.sampled_from(SIZES), st.integers(0, 2**32 - 1))
def test_after_any_changes_it_is_the_tree_made_anew(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes, leaves = empty_tree(n), np.zeros(n, np.float32)
    for _ in range(3):
        items = rng.integers(0, n, 8).astype(np.int32)
        values = (rng.exponential(size=8) ** 5).astype(np.float32)
        real = rng.random(8) < 0.8
        nodes = change(nodes, n, jnp.asarray(items), jnp.asarray(values), jnp.asarray(real))
        leaves[items[real]] = 0
        np.maximum.at(leaves, items[real], values[real])

        count = min(n, 7)
        start, run = int(rng.integers(n)), rng.random(count).astype(np.float32)
        real = rng.random(count) < 0.8
        nodes = change_run(nodes, n, jnp.int32(start), jnp.asarray(run), jnp.asarray(real))
        leaves[(start + np.flatnonzero(real)) % n] = run[real]
    np.testing.assert_array_equal(np.asarray(nodes), made_anew(leaves))
    np.testing.assert_array_equal(jax.jit(priority_of)(nodes, np.arange(n, dtype=np.int32)), leaves)
    assert float(total(nodes)) == pytest.approx(leaves.sum(dtype=np.float64), rel=1e-6)


def test_a_million_changes_leave_no_drift() -> None:
    """A float32 tree that adds differences is off by percents here, and below zero."""
    n = 1000

    def change(nodes: Any, step: Any) -> tuple[Any, None]:
        key = jax.random.fold_in(jax.random.key(1), step)
        items = jax.random.randint(key, (256,), 0, n)
        values = 10.0 ** jax.random.uniform(key, (256,), minval=-6.0, maxval=6.0)
        return set_priority(nodes, n, items, values, jnp.ones(256, jnp.bool_)), None

    nodes = jax.jit(lambda x: lax.scan(change, x, jnp.arange(4000))[0])(empty_tree(n))
    leaves = np.asarray(nodes)[: rows_of_levels(n)[0]].reshape(-1)[:n]
    np.testing.assert_array_equal(np.asarray(nodes), made_anew(leaves))
    zero = jax.jit(set_priority, static_argnums=1)(
        nodes, n, jnp.arange(n, dtype=jnp.int32), jnp.zeros(n), jnp.ones(n, jnp.bool_)
    )
    assert not np.asarray(zero).any()  # all back to nothing, exactly


def test_items_are_drawn_in_proportion() -> None:
    n, k = 300, 200_000
    priority = np.random.default_rng(0).exponential(size=n) ** 3
    priority[::7] = 0
    nodes = jnp.asarray(made_anew(priority))
    counts = np.bincount(np.asarray(draw(nodes, n, words(0, n, k))), minlength=n)
    wanted = priority / priority.sum() * k
    assert not counts[priority == 0].any()
    often = wanted > 5
    rare = counts[~often].sum(), wanted[~often].sum()
    seen, expected = [*counts[often], rare[0]], [*wanted[often], rare[1]]
    assert stats.chisquare(seen, np.array(expected) * k / sum(expected)).pvalue > 1e-4


def test_the_statistic_notices_shares_that_are_wrong_by_a_tenth() -> None:
    n, k = 300, 200_000
    nodes = jnp.asarray(made_anew(np.where(np.arange(n) % 2, 1.0, 1.1)))
    counts = np.bincount(np.asarray(draw(nodes, n, words(0, n, k))), minlength=n)
    assert stats.chisquare(counts).pvalue < 1e-4


@pytest.mark.parametrize("n", [17, 10_000_000])
def test_every_item_can_be_drawn(n: int) -> None:
    """For any item there are words that lead to it. (Of one float32, a sixth has none at 10^7.)"""
    rows = rows_of_levels(n)
    items = np.random.default_rng(1).integers(0, n, 2000)
    nodes = jnp.asarray(made_anew(np.ones(n, np.float32)))
    levels = np.asarray(nodes)
    chosen, begin, at = [], 0, items
    for count in rows:  # from the items up: which word picks place `at % 16` of row `at // 16`
        row = levels[begin + at // WIDTH].astype(np.float64)
        shares = np.cumsum(row, axis=1) / row.sum(axis=1, keepdims=True)
        place = at % WIDTH
        high = np.take_along_axis(shares, place[:, None], 1)[:, 0]
        low = high - np.take_along_axis(row, place[:, None], 1)[:, 0] / row.sum(axis=1)
        chosen.append(((low + high) / 2 * 2.0**32).astype(np.uint32))
        begin, at = begin + count, at // WIDTH
    drawn = draw(nodes, n, jnp.asarray(np.stack(chosen[::-1])))
    np.testing.assert_array_equal(drawn, items)


@pytest.mark.parametrize("word", [0, 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("at", [0, 1, 15, 16, 99])
def test_no_word_draws_an_item_without_priority(word: int, at: int) -> None:
    n = 100
    nodes = jnp.asarray(made_anew(np.where(np.arange(n) == at, 1e-20, 0.0)))
    given = jnp.full((len(rows_of_levels(n)), 1), word, jnp.uint32)
    assert draw(nodes, n, given).tolist() == [at]


def test_a_tiny_priority_beside_a_large_one_can_be_drawn() -> None:
    nodes = jnp.asarray(made_anew(np.array([1.0, 1e-12, 1.0])))
    given = jnp.full((1, 1), 2**31, jnp.uint32)
    assert draw(nodes, 3, given).tolist() == [1]


def test_it_takes_less_than_five_bytes_an_item() -> None:
    for n in (10**4, 10**6):
        assert empty_tree(n).nbytes / n < 4.5
