"""Counting the entries of a sorted table up to a value, against NumPy's search."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cereal.order.tables import count_up_to

SIZES = [1, 2, 63, 64, 65, 66, 127, 128, 1000]  # from 65 on it is another search
LARGEST = 2**32 - 1


def tables(size: int, dtype: Any) -> list[np.ndarray]:
    """Sorted tables: without and with duplicates, all alike, and at the end of what fits."""
    rng = np.random.default_rng(size)
    most = np.iinfo(dtype).max
    drawn = [
        np.cumsum(rng.integers(1, 9, size)),
        np.cumsum(rng.integers(0, 2, size)),
        np.full(size, 7),
        most - np.cumsum(rng.integers(0, 3, size))[::-1],
        rng.integers(0, most, size, endpoint=True),
    ]
    return [np.sort(table.astype(dtype)) for table in drawn]


def values_around(table: np.ndarray) -> np.ndarray:
    """The entries, what is beside them, and the ends of the type."""
    limits = np.iinfo(table.dtype)
    wide = table.astype(np.int64)
    around = np.concatenate([wide - 1, wide, wide + 1, [limits.min, 0, 1, limits.max]])
    return np.unique(around.clip(limits.min, limits.max)).astype(table.dtype)


def by_hand(table: np.ndarray, values: np.ndarray) -> list[int]:
    return [int(np.count_nonzero(table <= value)) for value in values]


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
@pytest.mark.parametrize("size", SIZES)
def test_counts_in_numpy_are_those_of_a_loop(size: int, dtype: Any) -> None:
    for table in tables(size, dtype):
        values = values_around(table)
        assert count_up_to(table, values).tolist() == by_hand(table, values)


@pytest.mark.usefixtures("strict_jax")
@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
@pytest.mark.parametrize("size", SIZES)
def test_counts_in_jax_are_those_of_numpy(size: int, dtype: Any) -> None:
    compiled = jax.jit(count_up_to)
    for table in tables(size, dtype):
        values = np.resize(values_around(table), 3 * size + 4)  # one shape, one compilation
        found = compiled(jnp.asarray(table), jnp.asarray(values))
        assert found.dtype == jnp.int32
        np.testing.assert_array_equal(found, np.searchsorted(table, values, side="right"))


def test_a_table_on_the_device_serves_values_on_the_host() -> None:
    table = np.array([0, 5, 5, 9], np.int32)
    values = np.arange(-2, 12)
    expected = by_hand(table, values)
    assert count_up_to(jnp.asarray(table), values).tolist() == expected
    assert count_up_to(table, jnp.asarray(values, jnp.int32)).tolist() == expected


@pytest.mark.parametrize("size", [3, 100])
def test_the_last_words_of_32_bits_are_told_apart(size: int) -> None:
    table = (LARGEST - np.arange(size)[::-1]).astype(np.uint32)
    values = np.array([0, 2**31 - 1, 2**31, LARGEST - size, *table.tolist()]).astype(np.uint32)
    expected = [0, 0, 0, 0, *range(1, size + 1)]
    assert count_up_to(table, values).tolist() == expected
    assert count_up_to(jnp.asarray(table), jnp.asarray(values)).tolist() == expected


@pytest.mark.parametrize("size", [0, 5, 200])
def test_counts_have_the_axes_of_the_values(size: int) -> None:
    table = np.arange(size, dtype=np.int32)
    values = np.arange(-1, 5, dtype=np.int32).reshape(2, 3)
    expected = np.minimum(values + 1, size)
    np.testing.assert_array_equal(count_up_to(table, values), expected)
    np.testing.assert_array_equal(count_up_to(jnp.asarray(table), jnp.asarray(values)), expected)


def test_counts_are_the_same_under_vmap() -> None:
    table = np.arange(0, 300, 3, dtype=np.int32)
    values = np.arange(300, dtype=np.int32).reshape(10, 30)
    found = jax.jit(jax.vmap(lambda values: count_up_to(jnp.asarray(table), values)))(values)
    np.testing.assert_array_equal(found, values // 3 + 1)


def test_the_form_for_accelerators_counts_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []

    def by_platform(*args: Any, default: Any, **others: Any) -> Any:
        chosen.append(default)
        return default(*args)

    monkeypatch.setattr("cereal.order.tables.by_platform", by_platform)
    for table in tables(100, np.uint32):
        values = values_around(table)
        found = count_up_to(jnp.asarray(table), jnp.asarray(values))
        assert found.tolist() == by_hand(table, values)
    assert len(chosen) == 5
