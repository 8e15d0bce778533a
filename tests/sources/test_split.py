"""Splits: parts of a source that have nothing in common, in any epoch."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
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
    PipelineError,
    RangeSource,
    RepeatSource,
    SliceSource,
    StateError,
    WindowSource,
    kfold,
    select,
    split,
)
from cereal.testing import assert_same, check_loader, check_resume, check_source

NUMBERS = RangeSource(20)
EVERY = list(range(20))


@pytest.mark.slow
def test_the_kit_holds_for_a_shuffled_part(strict_jax: None) -> None:
    data = ArraySampleSource({"x": np.arange(12.0, dtype=np.float32)})
    train, _ = split(data, (0.6, 0.4), key=jax.random.key(1))
    check_source(train)
    loader = DataLoader([train, BatchTransform(3)])
    check_loader(loader)
    check_resume(loader)


# Sizes


@pytest.mark.parametrize(
    ("fractions", "sizes"),
    [
        ((0.9, 0.1), [18, 2]),
        ((0.7, 0.2, 0.1), [14, 4, 2]),
        ((1 / 3, 1 / 3, 1 / 3), [7, 6, 7]),
        ((1,), [20]),
        ((1.0,), [20]),
        ((15, 5), [15, 5]),
        ((20,), [20]),
        ([1] * 20, [1] * 20),
        (np.array([0.75, 0.25], np.float32), [15, 5]),
        (np.array([12, 8]), [12, 8]),
    ],
    ids=str,
)
@pytest.mark.parametrize("key", [None, 3])
def test_fractions_and_whole_sizes(fractions: Any, sizes: list[int], key: Any) -> None:
    parts = split(NUMBERS, fractions, key)
    assert [len(part) for part in parts] == sizes
    together = [x for part in parts for x in visited(part)[0].tolist()]
    assert together == EVERY if key is None else sorted(together) == EVERY


@example(8, [7, 2, 7])
@given(st.integers(2, 40), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_fractions_of_any_length_leave_nothing_out(n: int, shares: list[int]) -> None:
    fractions = [share / sum(shares) for share in shares]
    if min(fractions) * n < 1.001:  # may be rounded to nothing
        return
    parts = split(SliceSource(RangeSource(40), range(n)), fractions, key=n)
    assert sorted(x for part in parts for x in visited(part)[0].tolist()) == list(range(n))
    for part, fraction in zip(parts, fractions, strict=True):
        assert abs(len(part) - fraction * n) <= 1


@pytest.mark.parametrize(
    "fractions",
    [(0.3333334, 0.6666667), (0.3333333, 0.6666666), np.array([0.9, 0.1], np.float32)],
    ids=str,
)
def test_rounded_fractions_of_many_elements_leave_nothing_out(fractions: Any) -> None:
    n = 10**9
    assert sum(len(part) for part in split(RangeSource(n), fractions, key=0)) == n


# Nothing in common


@settings(max_examples=20)
@given(st.integers(0, 5), st.integers(0, 2**40), st.integers(0, 2**40))
def test_a_split_never_leaks_across_epochs_and_keys(
    cut: int, split_key: int, loader_key: int
) -> None:
    sizes = (10 - cut, 5 + cut, 5)
    parts = split(NUMBERS, sizes, key=split_key, ordering="shuffle")
    epochs = [visited(part, 5, loader_key & 0xFFFF_FFFF) for part in parts]
    fixed = [set(each[0].tolist()) for each in epochs]
    assert set().union(*fixed) == set(EVERY)
    assert sum(map(len, fixed)) == 20
    for own, each in zip(fixed, epochs, strict=True):
        assert all(set(epoch) == own and len(epoch) == len(own) for epoch in each.tolist())


def test_parts_are_disjoint_and_complete_through_loaders() -> None:
    shuffled = RangeSource(20, ordering="shuffle")
    train, val = split(shuffled, (0.7, 0.3), key=jax.random.key(4))
    own = {"train": set(epoch_of(train)), "val": set(epoch_of(val))}
    assert own["train"] | own["val"] == set(EVERY)
    assert len(own["train"]) == 14
    orders = set()
    for epoch, key in itertools.product(range(5), range(2)):
        ordered = epoch_of(train, key, epoch)
        orders.add(tuple(ordered))
        assert set(ordered) == own["train"]
        assert set(epoch_of(val, key, epoch)) == own["val"]
    assert len(orders) == 10


def test_without_a_key_parts_follow_each_other() -> None:
    train, val = split(NUMBERS, (0.8, 0.2))
    assert visited(train)[0].tolist() == EVERY[:16]
    assert visited(val)[0].tolist() == EVERY[16:]
    assert jax.tree.leaves((train, val)) == []


def test_the_key_alone_decides_the_split() -> None:
    def first(key: Any) -> tuple[int, ...]:
        return tuple(visited(split(NUMBERS, (0.5, 0.5), key)[0])[0].tolist())

    assert first(7) == first(jax.random.key(7)) == first(jax.random.PRNGKey(7)) == first(7)
    assert len({frozenset(first(key)) for key in range(12)}) == 12
    assert {visited(split(NUMBERS, (0.5, 0.5), 7)[0], key=key).tobytes() for key in range(4)} == {
        visited(split(NUMBERS, (0.5, 0.5), 7)[0]).tobytes()
    }


def test_the_compiled_split_is_that_of_numpy() -> None:
    for part in split(NUMBERS, (13, 7), key=5):
        assert epoch_of(part) == visited(part)[0].tolist()


def test_a_split_costs_no_memory() -> None:
    data = jnp.arange(1000.0)
    for part in split(ArraySampleSource(data), (0.5, 0.5), key=1):
        sizes = sorted(leaf.size for leaf in jax.tree.leaves(part))
        assert sizes == [2, 1000]
        assert any(leaf is data for leaf in jax.tree.leaves(part))


# The order


def test_the_order_is_that_of_the_source_unless_given() -> None:
    assert split(NUMBERS, (1,))[0]._order.name == "sequential"
    blocks = RangeSource(20, ordering=BlockShuffle(4))
    for part in split(blocks, (0.5, 0.5), key=1):
        assert part._order.name == "BlockShuffle(4)"
        assert sorted(visited(part, 2)[1]) == sorted(visited(part)[0])
    for part in split(NUMBERS, (0.5, 0.5), key=1, ordering=[9, 0, 9]):
        plain = split(NUMBERS, (0.5, 0.5), key=1)
        assert visited(part)[0].tolist() in [visited(p)[0][[9, 0, 9]].tolist() for p in plain]


# Splits of what was combined


def combined() -> dict[str, Any]:
    whole = RangeSource(60)
    train, val = split(whole, (40, 20), key=1)
    return {
        "a slice": SliceSource(whole, range(1, 40, 2)),
        "a slice backwards": SliceSource(whole, range(50, 0, -3)),
        "a list": SliceSource(whole, [7, 3, 9, 30]),
        "a selection": select(whole, lambda x: x % 3 == 0),
        "a part": train,
        "a part of a part": split(train, (0.5, 0.5), key=2)[1],
        "a fold": kfold(whole, 4, 2, key=3)[0],
        "a join": ConcatSource([SliceSource(whole, range(9)), SliceSource(whole, range(20, 31))]),
        "a join of parts": ConcatSource([val, train]),
        "a slice of a join": SliceSource(ConcatSource([val, train]), range(5, 55, 5)),
        "one time": RepeatSource(train, 1),
    }


@pytest.mark.parametrize("key", [None, 8])
@pytest.mark.parametrize("name", combined())
def test_what_has_each_element_once_can_be_split(name: str, key: Any) -> None:
    source = combined()[name]
    every = visited(source)[0].tolist()
    first, second = split(source, (0.5, 0.5), key=key)
    together = [*visited(first)[0].tolist(), *visited(second)[0].tolist()]
    assert sorted(together) == sorted(every)
    assert len(set(together)) == len(together)
    if key is None:
        assert together == every


OVERLAPS = {
    "overlapping slices": lambda s: ConcatSource([part_of(s, 0, 5), part_of(s, 4, 8)]),
    "the same twice": lambda s: ConcatSource([s, s]),
    "interleaved slices that meet": lambda s: ConcatSource([part_of(s, 0, 9, 2), part_of(s, 4, 5)]),
    "two splits by other keys": lambda s: ConcatSource(
        [split(s, (0.5, 0.5), key=1)[0], split(s, (0.5, 0.5), key=2)[1]]
    ),
    "one split, forwards and backwards": lambda s: ConcatSource(
        [split(s, (10, 10), key=1)[0], split(part_of(s, 19, -1, -1), (10, 10), key=1)[1]]
    ),
    "halves of two joins": lambda s: ConcatSource(
        [
            SliceSource(ConcatSource([part_of(s, 0, 3), part_of(s, 5, 8)]), range(3)),
            SliceSource(ConcatSource([part_of(s, 5, 8), part_of(s, 0, 3)]), range(3, 6)),
        ]
    ),
    "two folds": lambda s: ConcatSource([kfold(s, 3, 0)[0], kfold(s, 3, 1)[0]]),
    "folds of two kinds": lambda s: ConcatSource([kfold(s, 3, 0)[1], kfold(s, 4, 0)[1]]),
    "mapped slices that overlap": lambda s: ConcatSource(
        [abs_of(part_of(s, 0, 5)), abs_of(part_of(s, 4, 8))]
    ),
    "a slice and the same mapped": lambda s: ConcatSource(
        [part_of(s, 0, 5), part_of(abs_of(s), 4, 8)]
    ),
    "one map over a repeat and others": lambda s: ConcatSource(
        [abs_of(RepeatSource(s, 2)), abs_of(RangeSource(50, 60))]
    ),
    "one map over a list with duplicates": lambda s: ConcatSource(
        [abs_of(SliceSource(s, [1, 1])), abs_of(RangeSource(50, 60))]
    ),
    "a list with duplicates": lambda s: SliceSource(s, [1, 2, 1]),
    "a repeat": lambda s: RepeatSource(s, 2),
    "a map of a repeat": lambda s: abs_of(RepeatSource(s, 2)),
    "a slice of a repeat": lambda s: SliceSource(RepeatSource(s, 2), range(30)),
}


def part_of(source: Any, *bounds: int) -> SliceSource[Any]:
    return SliceSource(source, range(*bounds))


def abs_of(source: Any) -> Any:
    return MapTransform(abs)(source)


@pytest.mark.parametrize("data", ["a range", "an array"])
@pytest.mark.parametrize("name", OVERLAPS)
def test_what_has_an_element_twice_is_refused(name: str, data: str) -> None:
    array = ArraySampleSource(jnp.arange(20), ordering="sequential")
    source = OVERLAPS[name](NUMBERS if data == "a range" else array)
    with pytest.raises(PipelineError, match=r"may have an element several times.*split its source"):
        split(source, (0.5, 0.5), key=0)
    with pytest.raises(PipelineError, match=r"^kfold: .*may have an element several times"):
        kfold(source, 2, 0)


def test_a_mixture_is_refused() -> None:
    mix = MixSource([NUMBERS, RangeSource(5)])
    for source in (mix, SliceSource(mix, range(3)), ConcatSource([NUMBERS, mix])):
        with pytest.raises(
            PipelineError, match=r"other elements .* in the next epoch.*split its sources first"
        ):
            split(source, (0.5, 0.5))


def test_windows_that_overlap_are_refused() -> None:
    series = np.arange(20)
    with pytest.raises(PipelineError, match=r"has windows that overlap.*split_time.*`stride=4`"):
        split(WindowSource(series, 4, stride=3), (0.5, 0.5), key=0)
    windows = WindowSource(series, 3, predict=1, stride=2)
    with pytest.raises(PipelineError, match=r"overlap.*`stride=4`"):
        split(MapTransform(lambda window: window["context"])(windows), (0.5, 0.5))
    first, second = split(WindowSource(series, 4, stride=4), (3, 2), key=0)
    assert (len(first), len(second)) == (3, 2)


# Traced keys


def test_a_traced_key_gives_one_split_for_every_lane() -> None:
    def parts(key: Any) -> Any:
        train, val = split(NUMBERS, (0.6, 0.4), key=key)
        loaders = [DataLoader([part, BatchTransform(len(part))]) for part in (train, val)]
        return [loader.next_batch(loader.init_state(0))[0] for loader in loaders]

    keys = jax.random.split(jax.random.key(0), 5)
    train, val = map(np.asarray, jax.vmap(parts)(keys))
    np.testing.assert_array_equal(np.sort(np.concatenate([train, val], axis=1)), [EVERY] * 5)
    assert len({frozenset(lane) for lane in val.tolist()}) == 5
    for lane in range(5):
        assert (
            visited(split(NUMBERS, (0.6, 0.4), key=keys[lane])[1])[0].tolist() == val[lane].tolist()
        )


@pytest.mark.parametrize("inside", [True, False], ids=["built inside", "passed"])
def test_a_join_can_be_split_inside_jit(inside: bool) -> None:
    def join() -> ConcatSource[Any]:
        return ConcatSource([part_of(NUMBERS, 0, 3), part_of(NUMBERS, 5, 8)])

    @jax.jit
    def last(source: Any) -> Any:
        source = join() if inside else source
        return split(source, (0.5, 0.5))[1].take(jnp.arange(3))

    assert last(join()).tolist() == [5, 6, 7]


# States and objects


def test_a_state_of_another_split_is_refused() -> None:
    def loader(key: Any) -> DataLoader[Any]:
        return DataLoader(split(NUMBERS, (0.5, 0.5), key=key)[0])

    state = loader(1).init_state(0)
    assert int(loader(1).next_batch(state)[0]) == visited(split(NUMBERS, (0.5, 0.5), 1)[0])[0, 0]
    with pytest.raises(StateError, match=r"it has ordering=sequential of split\(0, 10, "):
        loader(2).next_batch(state)
    step = jax.jit(lambda key, state: loader(key).next_batch(state)[0])
    assert int(step(jax.random.key(1), state)) == int(loader(1).next_batch(state)[0])


def test_it_is_drawn_with_its_bounds() -> None:
    plain, shuffled = split(NUMBERS, (5, 15))[1], split(NUMBERS, (5, 15), key=1)[1]
    assert repr(plain) == "SliceSource(5:20 of RangeSource[20], ordering=sequential)"
    assert repr(shuffled) == "SliceSource(split, 5:20 of RangeSource[20], ordering=sequential)"


def test_built_twice_it_is_one_program_and_survives_pickling() -> None:
    data = ArraySampleSource(jnp.arange(20), ordering="sequential")
    parts = [split(data, (0.5, 0.5), key=1)[0] for _ in range(2)]
    assert jax.tree.structure(parts[0]) == jax.tree.structure(parts[1])
    step: Any = jax.jit(lambda source, state: source.next(state)[0])
    first = [int(step(part, part.init_state(0))) for part in parts]
    assert first[0] == first[1] == visited(parts[0])[0, 0]
    assert step._cache_size() == 1
    assert_same(pickle.loads(pickle.dumps(parts[0])), parts[0], "the part")
