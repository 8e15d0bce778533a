from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal.testing import check_loader, check_source


@pytest.mark.parametrize(
    "source",
    [
        cereal.RangeSource(7),
        cereal.RangeSource(3, 9),
        cereal.RangeSource(-4, 3, ordering="shuffle"),
        cereal.RangeSource(1, ordering="shuffle"),
        cereal.RangeSource(10, 20, ordering=[9, 0, 0, 4]),
        cereal.RangeSource(10, 15, index_key="index", ordering="shuffle"),
    ],
    ids=str,
)
def test_ranges_are_sources(source: Any) -> None:
    check_source(source)


def values_of(source: Any, steps: int | None = None) -> list[int]:
    loader = cereal.DataLoader(source)
    return [int(value) for value, _ in loader.iterate(loader.init_state(0), steps=steps)]


def test_one_bound_is_the_end_and_two_are_start_and_end() -> None:
    assert values_of(cereal.RangeSource(4)) == [0, 1, 2, 3]
    assert values_of(cereal.RangeSource(-2, 2)) == [-2, -1, 0, 1]
    assert len(cereal.RangeSource(3, 9)) == 6


def test_bounds_may_be_integers_of_numpy() -> None:
    bounds: Any = (np.int64(2), np.uint8(5))
    assert values_of(cereal.RangeSource(*bounds)) == [2, 3, 4]


def test_an_ordering_of_indices_counts_from_the_start() -> None:
    assert values_of(cereal.RangeSource(10, 20, ordering=[9, 0, 0])) == [19, 10, 10]
    assert cereal.RangeSource(10, 20, ordering=range(0, 10, 5)).steps_per_epoch == 2


def test_a_shuffled_range_is_another_order_in_every_epoch() -> None:
    values = values_of(cereal.RangeSource(5, 105, ordering="shuffle"), steps=200)
    first, second = values[:100], values[100:]
    assert sorted(first) == sorted(second) == list(range(5, 105))
    assert first != second


def test_ranges_take_no_memory() -> None:
    assert jax.tree.leaves(cereal.RangeSource(10**9, ordering="shuffle")) == []


@pytest.mark.parametrize("ordering", ["sequential", "shuffle"])
def test_the_longest_range_is_exact_at_its_ends_and_across_them(ordering: str) -> None:
    n, batch = 2**31 - 1, 2_000
    source = cereal.RangeSource(-(2**30), 2**30 - 1, ordering=ordering)
    loader = cereal.DataLoader([source, cereal.BatchTransform(batch)])
    assert len(source) == n
    for step in (0, n // batch - 1, n // batch, n // batch + 1):
        values, _ = loader.batch_at(3, step)
        np.testing.assert_array_equal(values, loader.indices_at(3, step) - 2**30)
    wrapped = loader.indices_at(3, n // batch)
    if ordering == "sequential":
        left = n % batch
        expected = np.r_[np.arange(n - left, n), np.arange(batch - left)]
        np.testing.assert_array_equal(wrapped, expected)


def test_a_range_with_its_index_is_a_dict() -> None:
    loader = cereal.DataLoader(
        [cereal.RangeSource(10, 14, index_key="i"), cereal.BatchTransform(2)]
    )
    check_loader(loader)
    batch, _ = loader.batch_at(0, 1)
    assert {name: values.tolist() for name, values in batch.items()} == {
        "value": [12, 13],
        "i": [2, 3],
    }
    assert batch["value"].dtype == batch["i"].dtype == jnp.int32


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((0,), "`stop` must be greater than `start`, got start=0, stop=0; an empty range"),
        ((-3,), "got start=0, stop=-3"),
        ((5, 5), "got start=5, stop=5"),
        ((2.5,), r"`start` and `stop` must be integers, got 0 and 2.5"),
        (("3",), r"must be integers, got 0 and '3'"),
        ((2**31,), "the range 0 to 2147483648 does not fit int32.*; split it"),
        ((2**31, 2**31 + 5), "does not fit int32"),
        ((-(2**31), 0), "does not fit int32"),
    ],
)
def test_bad_bounds_are_refused_when_built(bounds: tuple[Any, ...], message: str) -> None:
    with pytest.raises(cereal.PipelineError, match="^RangeSource: .*" + message):
        cereal.RangeSource(*bounds)
