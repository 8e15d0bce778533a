"""An element that comes again in one epoch is augmented anew, by whatever it is listed twice."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cereal import (
    BatchTransform,
    ConcatSource,
    DataLoader,
    HostRandomMapTransform,
    MixSource,
    RandomMapTransform,
    RangeSource,
    RepeatSource,
    SliceSource,
)
from cereal.order.ordering import is_once, times_before


def noise(x, key):
    return {"id": x, "noise": jax.random.bits(key, (), jnp.uint32)}


def host_noise(x, rng):
    return {"id": x, "noise": rng.integers(2**31)}


RANDOM = [RandomMapTransform(noise), HostRandomMapTransform(host_noise)]


def visits(*stages, size=8):
    batch, _ = DataLoader([*stages, BatchTransform(size)], workers=0).batch_at(3, 0)
    return list(zip(np.asarray(batch["id"]).tolist(), batch["noise"].tolist(), strict=True))


@pytest.mark.parametrize("stage", RANDOM)
def test_an_order_of_indices_may_list_an_element_twice(stage):
    found = visits(RangeSource(6, ordering=[3, 5, 3, 3]), stage, size=4)
    once = visits(RangeSource(6, ordering=[3, 5]), stage, size=2)
    assert found[:2] == once
    assert len({noise for _, noise in found}) == 4


@pytest.mark.filterwarnings("ignore:.*is larger than the data")
@pytest.mark.parametrize("stage", RANDOM)
@pytest.mark.parametrize(
    "make",
    [
        lambda source: SliceSource(source, [3, 3, 5, 3]),
        lambda source: SliceSource(SliceSource(source, [3, 3]), [0, 1, 1, 0]),
        lambda source: SliceSource(source, [3, 3], ordering=[0, 1, 1, 0]),
        lambda source: ConcatSource([SliceSource(source, [1, 3]), SliceSource(source, [3, 3])]),
        lambda source: ConcatSource([SliceSource(source, range(2)), SliceSource(source, range(2))]),
        lambda source: MixSource(
            [SliceSource(source, range(2)), SliceSource(source, range(2))], weights=(1, 1)
        ),
        lambda source: RepeatSource(SliceSource(source, [2, 2]), 2),
    ],
)
def test_so_may_slices_and_combinations_of_what_is_random_inside(make, stage):
    found = visits(make(stage(RangeSource(6))), size=4)
    assert len({noise for _, noise in found}) == 4


def test_an_index_array_that_is_traced_gives_what_a_known_one_gives():
    def first(indices):
        source = RangeSource(6, ordering=indices)
        loader = DataLoader([source, RANDOM[0], BatchTransform(4)])
        return loader.next_batch(loader.init_state(3))[0]["noise"]

    def sliced(indices):
        loader = DataLoader([SliceSource(RANDOM[0](RangeSource(6)), indices), BatchTransform(4)])
        return loader.next_batch(loader.init_state(3))[0]["noise"]

    for indices in ([3, 5, 3, 3], [0, 1, 2, 4]):
        for fn in (first, sliced):
            np.testing.assert_array_equal(jax.jit(fn)(jnp.array(indices)), fn(indices))


def test_each_epoch_is_augmented_anew_as_well():
    loader = DataLoader([RangeSource(6, ordering=[3, 3]), RANDOM[0], BatchTransform(2)])
    noises = [loader.batch_at(0, step)[0]["noise"].tolist() for step in range(3)]
    assert len({each for pair in noises for each in pair}) == 6


def test_parts_that_share_nothing_have_the_randomness_they_had():
    source = RANDOM[0](RangeSource(6))
    parts = [SliceSource(source, range(3)), SliceSource(source, range(3, 6))]
    assert visits(ConcatSource(parts), size=6) == visits(source, size=6)
    other = RANDOM[0](RangeSource(6, 12))
    nested: Any = MixSource([MixSource(parts, weights=(1, 1)), other], weights=(2, 1))
    assert nested.path.branches.apart


@pytest.mark.parametrize("indices", [[4], [1, 1], [3, 1, 3, 3, 1, 0], [*range(9), 8, 0]])
def test_times_before_counts_equal_indices_before(indices):
    expected = [indices[:place].count(index) for place, index in enumerate(indices)]
    array = np.array(indices, np.int32)
    assert times_before(array).tolist() == expected
    assert times_before(jnp.asarray(array)).tolist() == expected
    assert is_once(array) == (not any(expected))
    assert is_once(array * 10**6) == (not any(expected))
