"""Sources one after another."""

from __future__ import annotations

import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sources.walking import epoch_of, visited

from cereal import (
    BatchTransform,
    BlockShuffle,
    ConcatSource,
    DataLoader,
    MapTransform,
    MixSource,
    RangeSource,
    RepeatSource,
    SliceSource,
)
from cereal.testing import assert_same, check_loader, check_resume, check_source

NUMBERS = RangeSource(1000)


def part(*bounds: int) -> SliceSource[Any]:
    """A range of the numbers; parts of one source lie in one store."""
    return SliceSource(NUMBERS, range(*bounds))


def test_two_sources_follow_each_other() -> None:
    both = ConcatSource([RangeSource(3), RangeSource(10, 12)])
    assert len(both) == 5
    assert epoch_of(both) == [0, 1, 2, 10, 11]
    assert both.take(jnp.array([4, 0, 3, 0], jnp.int32)).tolist() == [11, 0, 10, 0]


@pytest.mark.slow
def test_the_kit_holds_for_sources_one_after_another(strict_jax: None) -> None:
    source = ConcatSource([part(0, 5), part(50, 46, -1), RangeSource(100, 102)], ordering="shuffle")
    check_source(source)
    loader = DataLoader([source, BatchTransform(4, pad_last_batch=True)])
    check_loader(loader)
    check_resume(loader)


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(0, 900), st.integers(1, 9), st.sampled_from([1, 1, 2, 7])),
        min_size=1,
        max_size=5,
    )
)
def test_any_ranges_follow_each_other(ranges: list[tuple[int, int, int]]) -> None:
    parts = [range(start, start + n * step, step) for start, n, step in ranges]
    source = ConcatSource([SliceSource(NUMBERS, each) for each in parts])
    expected = [x for each in parts for x in each]
    assert len(source) == len(expected)
    np.testing.assert_array_equal(visited(source)[0], expected)


def test_a_hundred_parts_are_found_in_numpy_and_compiled() -> None:
    parts = [range(7 * k, 7 * k + 1 + k % 5) for k in range(100)]
    source = ConcatSource([SliceSource(NUMBERS, each) for each in parts])
    expected = [x for each in parts for x in each]
    np.testing.assert_array_equal(visited(source)[0], expected)
    assert epoch_of(source) == expected


# The order


def test_by_default_it_is_shuffled_if_one_source_is() -> None:
    quiet, loud = RangeSource(20), RangeSource(20, 40, ordering="shuffle")
    assert ConcatSource([quiet, quiet])._order.name == "sequential"
    assert ConcatSource([quiet, loud])._order.name == "shuffle"
    assert ConcatSource([RangeSource(9, ordering=BlockShuffle(3)), quiet])._order.name == "shuffle"
    assert ConcatSource([loud], ordering="sequential")._order.name == "sequential"


def test_a_shuffle_goes_across_the_parts_and_is_new_in_every_epoch() -> None:
    source = ConcatSource([part(0, 20), part(100, 120)], ordering="shuffle")
    epochs = visited(source, 4)
    for epoch in epochs:
        assert sorted(epoch) == [*range(20), *range(100, 120)]
        assert 0 < sum(x < 100 for x in epoch[:20]) < 20
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert epoch_of(source, epoch=2) == epochs[2].tolist()


def test_a_list_of_indices_chooses_from_all_parts() -> None:
    source = ConcatSource([part(0, 3), part(10, 12)], ordering=np.array([4, 4, 0]))
    assert source.traits.length == 3
    assert len(source) == 5
    np.testing.assert_array_equal(visited(source, 2), [[11, 11, 0]] * 2)


def test_blocks_of_the_whole_stay_together() -> None:
    source = ConcatSource([part(0, 7), part(100, 105)], ordering=BlockShuffle(3))
    whole = [*range(7), *range(100, 105)]
    blocks = [set(whole[k : k + 3]) for k in range(0, 12, 3)]
    for epoch in visited(source, 3):
        assert sorted(epoch) == sorted(whole)
        assert all(set(epoch[k : k + 3].tolist()) in blocks for k in range(0, 12, 3))


# Nested


def test_nested_or_flat_is_the_same() -> None:
    a, b, c = part(0, 3), part(10, 15), part(7, 5, -1)
    flat = visited(ConcatSource([a, b, c]))
    np.testing.assert_array_equal(visited(ConcatSource([ConcatSource([a, b]), c])), flat)
    np.testing.assert_array_equal(visited(ConcatSource([a, ConcatSource([b, c])])), flat)
    np.testing.assert_array_equal(visited(ConcatSource([ConcatSource([a, b, c])])), flat)


def test_a_source_may_come_again_inside_another_part() -> None:
    a, b = RangeSource(3), RangeSource(10, 15)
    first, second = ConcatSource([a, b]), ConcatSource([b, a])
    of_a, of_b = [0, 1, 2], [10, 11, 12, 13, 14]
    assert epoch_of(ConcatSource([b, first])) == [*of_b, *of_a, *of_b]
    assert epoch_of(ConcatSource([first, second])) == [*of_a, *of_b, *of_b, *of_a]


def test_a_part_that_runs_backwards_over_two_sources_comes_after_one_of_them() -> None:
    a, b = RangeSource(3), RangeSource(10, 15)
    back = SliceSource(ConcatSource([a, b]), range(7, -1, -2))
    assert epoch_of(ConcatSource([b, back])) == [10, 11, 12, 13, 14, 14, 12, 10, 1]


def test_a_source_twice_has_its_elements_twice() -> None:
    a = part(3, 6)
    np.testing.assert_array_equal(visited(ConcatSource([a, a])), [[3, 4, 5, 3, 4, 5]])


def test_parts_may_be_mixtures_and_repeats() -> None:
    mix = MixSource([part(0, 2), part(10, 12)])
    source = ConcatSource([RepeatSource(part(5, 7), 2), mix, part(90, 91)])
    expected = [5, 6, 5, 6, 0, 10, 1, 90]
    np.testing.assert_array_equal(visited(source)[0], expected)
    assert epoch_of(source) == expected
    assert visited(source, 2)[1].tolist() == [5, 6, 5, 6, 11, 0, 10, 90]  # the mixture goes on


def test_two_mixtures_in_it_are_not_shuffled_alike() -> None:
    sources = [MixSource([part(k, k + 30)], ordering="shuffle") for k in (0, 100)]
    epoch = visited(ConcatSource(sources))[0]
    assert sorted(epoch[:30]) == list(range(30))
    assert (epoch[:30] + 100).tolist() != epoch[30:].tolist()


def test_a_part_with_a_map_equals_mapping_its_numbers() -> None:
    source = ConcatSource([part(0, 3), MapTransform(lambda x: -x)(part(10, 12))])
    assert epoch_of(source) == [0, 1, 2, -10, -11]


# As an object


def test_it_is_drawn_with_its_parts_and_lengths() -> None:
    pair = ConcatSource([RangeSource(3), part(0, 2)])
    assert repr(pair) == "ConcatSource(RangeSource[3], SliceSource[2], ordering=sequential)"
    assert repr(pair) in repr(DataLoader([pair, BatchTransform(2)]))
    assert "RangeSource[3], 2 more, ordering" in repr(ConcatSource([RangeSource(3)] * 6))


def test_built_twice_it_is_one_program() -> None:
    loaders = [
        DataLoader([ConcatSource([part(0, 3), part(7, 9)]), BatchTransform(5)]) for _ in range(2)
    ]
    assert jax.tree.structure(loaders[0]) == jax.tree.structure(loaders[1])
    step: Any = jax.jit(lambda loader, state: loader.next_batch(state)[0])
    for loader in loaders:
        assert step(loader, loader.init_state(0)).tolist() == [0, 1, 2, 7, 8]
    assert step._cache_size() == 1


def test_it_survives_pickling() -> None:
    source = ConcatSource([part(0, 3), part(7, 9)], ordering="shuffle")
    again = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(visited(again, 3), visited(source, 3))
    assert_same(again, source, "the source")


@pytest.mark.parametrize("ordering", ["sequential", "shuffle"])
def test_neighbours_in_the_data_need_no_table(ordering: str) -> None:
    together = ConcatSource([part(0, 3), part(3, 9)], ordering=ordering)
    assert jax.tree.leaves(together) == []
    assert sorted(visited(together)[0]) == list(range(9))
