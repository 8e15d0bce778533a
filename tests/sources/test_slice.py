"""Some of the elements of a source."""

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
    ArraySampleSource,
    BatchTransform,
    BlockShuffle,
    ConcatSource,
    DataLoader,
    MapTransform,
    MixSource,
    RandomMapTransform,
    RangeSource,
    SliceSource,
    StateError,
)
from cereal.testing import assert_same, check_loader, check_resume, check_source

NUMBERS = RangeSource(100)


WHERES = {
    "a range": range(3, 20, 5),
    "one element": range(7, 8),
    "all": range(100),
    "a range backwards": range(20, 2, -3),
    "a slice": slice(90, None),
    "a slice from the end": slice(-4, None, 2),
    "a slice backwards": slice(None, None, -1),
    "a slice that reaches too far": slice(95, 200),
    "a list": [3, 3, 1],
    "a tuple": (99, 0),
    "an array": np.array([5, 4, 77], np.uint8),
    "a jax array": jnp.array([5, 4, 77]),
    "a 64-bit array": np.array([5, 4, 77], np.int64),
}


@pytest.mark.parametrize("name", WHERES)
def test_elements_are_those_of_plain_indexing(name: str) -> None:
    where = WHERES[name]
    source = SliceSource(NUMBERS, where)
    index = list(where) if isinstance(where, range) else where
    expected = np.arange(100)[np.asarray(index) if not isinstance(index, slice) else index]
    assert len(source) == len(expected)
    np.testing.assert_array_equal(visited(source)[0], expected)
    np.testing.assert_array_equal(source.take(jnp.arange(len(expected))), expected)


@pytest.mark.slow
def test_the_kit_holds_for_listed_elements(strict_jax: None) -> None:
    data = ArraySampleSource({"x": np.arange(20.0, dtype=np.float32)}, index_key="index")
    source = SliceSource(data, [19, 3, 3, 7, 0])
    assert source._order.name == "shuffle"
    check_source(source)
    loader = DataLoader([source, BatchTransform(2)])
    check_loader(loader)
    check_resume(loader)


ranges = st.tuples(st.integers(0, 30), st.integers(1, 30), st.integers(1, 3), st.booleans())


def some_of(n: int, drawn: tuple[int, int, int, bool]) -> range:
    """A range within 0 to n - 1."""
    start, count, step, backwards = drawn
    start %= n
    chosen = range(start, n, step)[:count]
    return chosen[::-1] if backwards else chosen


@settings(max_examples=60)
@given(st.lists(ranges, min_size=1, max_size=4), st.integers(-1, 3))
def test_slices_of_slices_compose(wheres: list[Any], listed: int) -> None:
    source, expected = SliceSource(NUMBERS, range(100)), np.arange(100)
    for depth, drawn in enumerate(wheres):
        chosen = some_of(len(expected), drawn)
        where = list(chosen) if depth == listed else chosen
        source, expected = SliceSource(source, where), expected[list(chosen)]
    np.testing.assert_array_equal(visited(source)[0], expected)


def test_a_slice_has_the_same_elements_in_every_epoch_and_for_every_key() -> None:
    shuffled = RangeSource(100, ordering="shuffle")
    for where in (range(10, 30, 2), [4, 90, 17]):
        source = SliceSource(shuffled, where)
        for key in range(3):
            for epoch in visited(source, 4, key):
                assert sorted(epoch) == sorted(where)


def test_a_slice_of_a_mixture_has_its_slots() -> None:
    mix = MixSource([RangeSource(3), RangeSource(10, 14)], ordering="sequential")
    assert epoch_of(mix) == [0, 10, 1, 11, 2]
    some = SliceSource(mix, range(0, 5, 2))
    assert epoch_of(some) == [0, 1, 2]
    assert epoch_of(some, epoch=1) == [12, 13, 10]  # slots 0, 2, 4 of the mixture's epoch 1


# The order


def test_the_order_is_that_of_the_source() -> None:
    assert SliceSource(RangeSource(9), range(5))._order.name == "sequential"
    assert SliceSource(RangeSource(9, ordering="shuffle"), [0, 1])._order.name == "shuffle"
    blocks = RangeSource(9, ordering=BlockShuffle(2))
    assert SliceSource(blocks, range(5))._order.name == "BlockShuffle(2)"
    assert SliceSource(blocks, range(5), ordering="shuffle")._order.name == "shuffle"


def test_blocks_are_those_of_the_slice() -> None:
    source = SliceSource(NUMBERS, range(1, 18, 2), ordering=BlockShuffle(3))
    for epoch in visited(source, 3):
        blocks = {tuple(sorted(epoch[k : k + 3].tolist())) for k in range(0, 9, 3)}
        assert blocks == {(1, 3, 5), (7, 9, 11), (13, 15, 17)}


def test_a_list_of_indices_as_order_counts_within_the_slice() -> None:
    source = SliceSource(NUMBERS, range(10, 20), ordering=[9, 0, 9])
    np.testing.assert_array_equal(visited(source, 2), [[19, 10, 19]] * 2)


# What it costs


def test_a_range_holds_nothing_but_the_data() -> None:
    data = jnp.arange(50.0)
    source = SliceSource(ArraySampleSource(data), range(10, 40, 3))
    (leaf,) = jax.tree.leaves(source)
    assert leaf is data


def test_a_list_holds_four_bytes_for_every_element() -> None:
    source = SliceSource(NUMBERS, np.arange(100)[::-1].astype(np.int64))
    (leaf,) = jax.tree.leaves(source)
    assert (leaf.dtype, leaf.shape) == (jnp.int32, (100,))


def test_ranges_of_a_thousand_million_elements_cost_nothing() -> None:
    source = SliceSource(RangeSource(2**31 - 1), range(2**31 - 2, 0, -1000))
    assert jax.tree.leaves(source) == []
    n = len(source)
    taken = source.take(jnp.array([0, 1, n - 1], jnp.int32))
    assert taken.tolist() == [2**31 - 2, 2**31 - 1002, 2**31 - 2 - 1000 * (n - 1)]


# Inside jit


def test_indices_may_be_traced() -> None:
    @jax.jit
    def batches(where: jax.Array) -> Any:
        loader = DataLoader([SliceSource(NUMBERS, where), BatchTransform(3)])
        return loader.next_batch(loader.init_state(0))[0]

    assert batches(jnp.array([50, 3, 3])).tolist() == [50, 3, 3]
    assert batches(jnp.array([8, 9, 1])).tolist() == [8, 9, 1]
    lanes = jax.vmap(batches)(jnp.array([[1, 2, 3], [7, 7, 0]]))
    assert lanes.tolist() == [[1, 2, 3], [7, 7, 0]]


def test_a_state_of_other_indices_is_refused() -> None:
    loader = DataLoader(SliceSource(NUMBERS, [1, 2, 3]))
    other = DataLoader(SliceSource(NUMBERS, [1, 2, 4]))
    assert int(loader.next_batch(DataLoader(SliceSource(NUMBERS, [1, 2, 3])).init_state(0))[0]) == 1
    with pytest.raises(StateError, match=r"ordering=sequential of indices\(3, [0-9a-f]{8}\)"):
        loader.next_batch(other.init_state(0))


# Randomness


def test_an_element_listed_twice_is_augmented_twice_by_a_stage_after_it() -> None:
    def draw(x: Any, key: Any) -> Any:
        del x
        return jax.random.bits(key)

    source = RandomMapTransform(draw)(SliceSource(NUMBERS, [5, 5, 5]))
    assert len(set(epoch_of(source) + epoch_of(source, epoch=1))) == 6


def test_slicing_before_and_after_a_map_is_the_same() -> None:
    double = MapTransform(lambda x: 2 * x)
    for where in (range(9, 3, -2), [5, 0, 5]):
        before, after = double(SliceSource(NUMBERS, where)), SliceSource(double(NUMBERS), where)
        assert epoch_of(before) == epoch_of(after) == [2 * x for x in where]


# As an object


def test_it_is_drawn_with_its_bounds() -> None:
    names = {
        "1:9:3 of RangeSource[100]": SliceSource(NUMBERS, range(1, 9, 3)),
        "0:9 of RangeSource[100]": SliceSource(NUMBERS, slice(9)),
        "2 indices of RangeSource[100]": SliceSource(NUMBERS, [4, 2]),
        "0:2 of ConcatSource[200]": SliceSource(ConcatSource([NUMBERS, NUMBERS]), range(2)),
    }
    for name, source in names.items():
        assert repr(source) == f"SliceSource({name}, ordering=sequential)"
        assert repr(source) in repr(DataLoader([source, BatchTransform(2)]))


@pytest.mark.parametrize("where", [range(2, 9, 3), [8, 2, 2]], ids=["range", "list"])
def test_built_twice_it_is_one_program_and_survives_pickling(where: Any) -> None:
    data = ArraySampleSource(jnp.arange(20))
    sources = [SliceSource(data, where, ordering="sequential") for _ in range(2)]
    assert jax.tree.structure(sources[0]) == jax.tree.structure(sources[1])
    step: Any = jax.jit(lambda source, state: source.next(state)[0])
    for source in sources:
        assert int(step(source, source.init_state(0))) == where[0]
    assert step._cache_size() == 1
    assert_same(pickle.loads(pickle.dumps(sources[0])), sources[0], "the source")
