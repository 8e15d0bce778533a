from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal.order.ordering import Listed, Sequential, Shuffle, as_order

KEY = (np.uint32(0), np.uint32(9))


def epoch_of(order: Any, n: int, epoch: int = 0) -> np.ndarray:
    size = order.length(n)
    epochs, column = np.array([epoch], np.uint32), np.zeros(size, np.int64)
    return np.asarray(order.index(KEY, epochs, column, np.arange(size), n))


def test_sequential_is_the_order_of_the_data_in_every_epoch() -> None:
    order = as_order("sequential", 5, "Test")
    assert isinstance(order, Sequential)
    assert not order.random
    for epoch in (0, 3):
        np.testing.assert_array_equal(epoch_of(order, 5, epoch), np.arange(5))


def test_shuffle_is_another_order_of_all_elements_in_every_epoch() -> None:
    order = as_order("shuffle", 50, "Test")
    assert isinstance(order, Shuffle)
    assert order.random
    first, second = epoch_of(order, 50, 0), epoch_of(order, 50, 1)
    np.testing.assert_array_equal(np.sort(first), np.arange(50))
    np.testing.assert_array_equal(np.sort(second), np.arange(50))
    assert (first != second).any()


@pytest.mark.parametrize(
    "ordering",
    [[4, 0, 0, 2], (4, 0, 0, 2), np.array([4, 0, 0, 2], np.uint8), jnp.array([4, 0, 0, 2])],
)
def test_indices_are_the_order_in_every_epoch(ordering: Any) -> None:
    order = as_order(ordering, 5, "Test")
    assert isinstance(order, Listed)
    assert order.length(5) == 4
    for epoch in (0, 3):
        np.testing.assert_array_equal(epoch_of(order, 5, epoch), [4, 0, 0, 2])


def test_a_range_is_an_order() -> None:
    np.testing.assert_array_equal(epoch_of(as_order(range(4, -1, -2), 5, "Test"), 5), [4, 2, 0])


def test_indices_are_named_by_number_and_content() -> None:
    names = {as_order(indices, 5, "Test").name for indices in ([0, 1], [1, 0], [0, 1, 1])}
    assert len(names) == 3
    assert as_order(np.array([0, 1]), 5, "Test").name == as_order([0, 1], 9, "Test").name


def test_writing_into_the_given_indices_changes_nothing() -> None:
    given = np.arange(64, dtype=np.int32)
    order = as_order(given, 64, "Test")
    given[:] = 0
    np.testing.assert_array_equal(epoch_of(order, 64), np.arange(64))


def test_an_order_is_taken_as_it_is() -> None:
    order = as_order("shuffle", 5, "Test")
    assert as_order(order, 5, "Test") is order


def test_traced_indices_are_read_where_they_are_traced() -> None:
    @jax.jit
    def first_batch(indices: jax.Array) -> jax.Array:
        source = cereal.RangeSource(10, ordering=indices)
        loader = cereal.DataLoader([source, cereal.BatchTransform(3)])
        return loader.next_batch(loader.init_state(0))[0]

    np.testing.assert_array_equal(first_batch(jnp.array([7, 1, 5, 5])), [7, 1, 5])


@pytest.mark.parametrize(
    ("ordering", "message"),
    [
        ("random", 'Test: `ordering` must be "sequential", "shuffle".* got \'random\''),
        (None, 'must be "sequential", "shuffle", an array of indices or .* got NoneType'),
        (3, 'must be "sequential", "shuffle", an array of indices or .* got int'),
        ([0, 5], "has the index 5, outside the data's range 0 to 4; drop it"),
        ([0, -1], "has the index -1, outside the data's range 0 to 4; drop it"),
        ([], "is empty; give it at least one index"),
        (np.zeros(0, np.int32), "is empty; give it at least one index"),
        (np.zeros((2, 2), np.int32), r"one axis of integers, got int32\[2, 2\]"),
        (np.zeros(2), r"one axis of integers, got float64\[2\]"),
        (np.array([True, False]), r"got bool\[2\]; for a boolean mask write `np.flatnonzero"),
    ],
)
def test_what_is_no_order_is_refused(ordering: Any, message: str) -> None:
    with pytest.raises(cereal.PipelineError, match=message):
        as_order(ordering, 5, "Test")


@pytest.mark.parametrize(
    "source", [cereal.RangeSource, lambda n, **kw: cereal.ArraySampleSource(np.arange(n), **kw)]
)
def test_sources_refuse_them_when_built_and_say_who_they_are(source: Any) -> None:
    with pytest.raises(cereal.PipelineError, match=r"^(RangeSource|ArraySampleSource): .*'up'"):
        source(5, ordering="up")
    with pytest.raises(cereal.PipelineError, match=r"^(RangeSource|ArraySampleSource): .*index 9"):
        source(5, ordering=[9])
