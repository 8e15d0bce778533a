"""A source several times over."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.sources.walking import epoch_of, visited

from cereal import (
    ArraySampleSource,
    BatchTransform,
    BlockShuffle,
    Bootstrap,
    ConcatSource,
    DataLoader,
    MixSource,
    RandomMapTransform,
    RangeSource,
    RepeatSource,
    SliceSource,
    StateError,
)
from cereal.testing import assert_same, check_loader, check_resume, check_source

NUMBERS = RangeSource(100)


def part(*bounds: int) -> SliceSource[Any]:
    return SliceSource(NUMBERS, range(*bounds))


def bits(x: Any, key: Any) -> Any:
    del x
    return jax.random.bits(key)


@pytest.mark.slow
def test_the_kit_holds_for_a_shuffled_repeat(strict_jax: None) -> None:
    data = ArraySampleSource({"x": np.arange(5.0, dtype=np.float32)})
    source = RepeatSource(data, 3)
    check_source(source)
    loader = DataLoader([source, BatchTransform(4)])
    check_loader(loader)
    check_resume(loader)


def test_in_sequence_one_pass_follows_another() -> None:
    source = RepeatSource(RangeSource(3), 2)
    assert len(source) == 6
    assert epoch_of(source) == epoch_of(source, epoch=1) == [0, 1, 2, 0, 1, 2]
    assert source.take(jnp.array([5, 0, 3], jnp.int32)).tolist() == [2, 0, 0]


@pytest.mark.parametrize(("n", "times"), [(1, 1), (1, 9), (7, 1), (7, 4)])
def test_shuffled_each_element_comes_that_often_anywhere(n: int, times: int) -> None:
    source = RepeatSource(part(0, n), times, ordering="shuffle")
    for epoch in visited(source, 5):
        assert Counter(epoch.tolist()) == dict.fromkeys(range(n), times)
    if n > 1 and times > 1:  # not pass by pass
        passes = visited(source, 5).reshape(5, times, n)
        assert any(len(set(each)) < n for epoch in passes for each in epoch.tolist())


def test_the_order_is_that_of_the_source_unless_given() -> None:
    assert RepeatSource(RangeSource(9), 2)._order.name == "sequential"
    assert RepeatSource(RangeSource(9, ordering="shuffle"), 2)._order.name == "shuffle"
    blocks = RepeatSource(RangeSource(9, ordering=BlockShuffle(3)), 2)
    assert blocks._order.name == "BlockShuffle(3)"
    for epoch in visited(blocks, 3):
        assert Counter(epoch.tolist()) == dict.fromkeys(range(9), 2)
    assert RepeatSource(RangeSource(9), 2, ordering="shuffle")._order.name == "shuffle"


def test_a_list_of_indices_counts_through_the_passes() -> None:
    source = RepeatSource(part(10, 13), 2, ordering=[5, 0, 3])
    np.testing.assert_array_equal(visited(source, 2), [[12, 10, 10]] * 2)


# Nested


def test_repeats_of_repeats_multiply() -> None:
    source = RepeatSource(RepeatSource(part(4, 6), 2), 3)
    np.testing.assert_array_equal(visited(source), [[4, 5] * 6])


def test_a_part_may_be_a_repeat() -> None:
    source = ConcatSource([RepeatSource(part(0, 2), 2), part(9, 10)])
    np.testing.assert_array_equal(visited(source, 2), [[0, 1, 0, 1, 9]] * 2)
    mix = MixSource([RepeatSource(part(0, 2), 2), part(9, 10)], (4, 1), epoch="all")
    assert Counter(visited(mix)[0].tolist()) == {0: 2, 1: 2, 9: 1}


def test_each_pass_over_a_mixture_is_its_next_epoch() -> None:
    mix = MixSource([part(0, 3), part(10, 15)], ordering="shuffle")
    once = visited(mix, 6).reshape(3, -1)
    np.testing.assert_array_equal(visited(RepeatSource(mix, 2), 3), once)


# Randomness


@pytest.mark.parametrize("ordering", ["sequential", "shuffle"])
def test_every_time_is_augmented_anew_inside_and_outside(ordering: str) -> None:
    augment = RandomMapTransform(bits)
    inside = RepeatSource(augment(RangeSource(4)), 3, ordering=ordering)
    outside = augment(RepeatSource(RangeSource(4), 3, ordering=ordering))
    for source in (inside, outside):
        drawn = [x for epoch in range(3) for x in epoch_of(source, epoch=epoch)]
        assert len(set(drawn)) == 36


def test_draws_with_replacement_are_augmented_apart() -> None:
    source = RepeatSource(RandomMapTransform(bits)(RangeSource(2)), 4, ordering=Bootstrap())
    drawn = [x for epoch in range(4) for x in epoch_of(source, epoch=epoch)]
    assert len(set(drawn)) == 32


# As an object


def test_it_is_drawn_with_its_times() -> None:
    source = RepeatSource(RangeSource(3), 2)
    assert repr(source) == "RepeatSource(2 times RangeSource[3], ordering=sequential)"
    drawn = repr(DataLoader([source, BatchTransform(3)]))
    assert "6 elements, the data in its own order, 2 steps" in drawn


def test_a_state_for_other_times_is_refused() -> None:
    twice = DataLoader(RepeatSource(RepeatSource(RangeSource(3), 2), 3))
    thrice = DataLoader(RepeatSource(RepeatSource(RangeSource(3), 3), 2))
    with pytest.raises(StateError, match=r"of 3 times 2 times.*of 2 times 3 times"):
        thrice.next_batch(twice.init_state(0))


def test_built_twice_it_is_one_program_and_survives_pickling() -> None:
    data = jnp.arange(3)
    sources = [RepeatSource(ArraySampleSource(data, ordering="sequential"), 2) for _ in range(2)]
    assert jax.tree.structure(sources[0]) == jax.tree.structure(sources[1])
    step: Any = jax.jit(lambda source, state: source.next(state)[0])
    assert [int(step(source, source.init_state(0))) for source in sources] == [0, 0]
    assert step._cache_size() == 1
    assert_same(pickle.loads(pickle.dumps(sources[0])), sources[0], "the source")
    (leaf,) = jax.tree.leaves(sources[0])
    assert leaf is data
