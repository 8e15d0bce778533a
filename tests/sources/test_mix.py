"""Sources in turn, by weight."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cereal import (
    ArraySampleSource,
    BatchTransform,
    ConcatSource,
    DataLoader,
    MixSource,
    RandomMapTransform,
    RangeSource,
    RepeatSource,
    SliceSource,
    StateError,
    UsageError,
    kfold,
    split,
)
from cereal.core.state import make_words
from cereal.core.turns import turn_table
from cereal.testing import assert_same, check_loader, check_resume, check_source

NUMBERS = RangeSource(100_000)


def parts_of(lengths: Sequence[int]) -> list[SliceSource[Any]]:
    """Part j has the numbers 100 j, 100 j + 1, ..."""
    return [SliceSource(NUMBERS, range(100 * j, 100 * j + n)) for j, n in enumerate(lengths)]


def visited(source: Any, epochs: int = 1, key: int = 0) -> np.ndarray:
    """The numbers that epochs visit, in NumPy, as one axis."""
    rows, _ = source._plan.rows_for(make_words((0, key), 0, 0), epochs * source.traits.length)
    return source._route(rows).below.index


def loaded(source: Any, epochs: int = 1, key: int = 0, batch: int = 7) -> np.ndarray:
    """The same through a loader."""
    loader = DataLoader([source, BatchTransform(batch)])
    steps = -(-epochs * source.traits.length // batch)
    batches = [np.asarray(x) for x, _ in loader.iterate(loader.init_state(key), steps=steps)]
    return np.concatenate(batches)[: epochs * source.traits.length]


def bits(x: Any, key: Any) -> Any:
    return jnp.stack([x.astype(jnp.uint32), jax.random.bits(key)])


def assert_by_weight(numbers: np.ndarray, weights: Sequence[float]) -> None:
    """Every prefix has its share of every part, to within one element."""
    taken = np.cumsum((numbers // 100)[:, None] == np.arange(len(weights)), axis=0)
    due = np.arange(1, len(numbers) + 1)[:, None] * np.array(weights) / sum(weights)
    assert np.abs(taken - due).max() <= 1 + 1e-9


def assert_own_epochs(numbers: np.ndarray, part: int, n: int, shuffled: bool) -> None:
    """The part's elements each come once before any comes again."""
    own = numbers[numbers // 100 == part] - 100 * part
    passes = [own[k : k + n] for k in range(0, len(own), n)]
    for each in passes[:-1]:
        np.testing.assert_array_equal(np.sort(each), np.arange(n))
    assert len(set(passes[-1].tolist())) == len(passes[-1])
    if not shuffled:
        np.testing.assert_array_equal(own, np.arange(len(own)) % n)
    elif n >= 6 and len(passes) > 3:
        assert len({tuple(each.tolist()) for each in passes[:-1]}) > 1


@pytest.mark.slow
def test_the_kit_holds_for_a_shuffled_mixture_with_a_schedule(strict_jax: None) -> None:
    data = ArraySampleSource({"x": np.arange(9.0, dtype=np.float32)}, ordering="sequential")
    other = ArraySampleSource({"x": -np.arange(4.0, dtype=np.float32)}, ordering="shuffle")
    weights = {0: (2, 1, 1), 11: (1, 3, 0)}
    source = MixSource([data, other, SliceSource(data, [8, 2])], weights, epoch=7)
    check_source(source)
    loader = DataLoader([source, BatchTransform(4)])
    check_loader(loader)
    check_resume(loader)


# Shares


@pytest.mark.parametrize("ordering", ["sequential", "shuffle"])
def test_prefixes_and_epochs_hold_through_a_loader(ordering: str) -> None:
    lengths, weights = (11, 5, 3), (3, 2, 1.5)
    source = MixSource(parts_of(lengths), weights, ordering=ordering)
    numbers = loaded(source, epochs=9)
    np.testing.assert_array_equal(numbers, visited(source, 9))
    assert_by_weight(numbers, weights)
    for part, n in enumerate(lengths):
        assert_own_epochs(numbers, part, n, ordering == "shuffle")


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 9)), min_size=1, max_size=6),
    st.sampled_from(["first", "all", 1, 10]),
    st.booleans(),
)
def test_any_weights_hold_in_every_prefix_over_several_epochs(
    parts: list[tuple[int, int]], epoch: Any, shuffled: bool
) -> None:
    lengths, weights = zip(*parts, strict=True)
    ordering = "shuffle" if shuffled else "sequential"
    source = MixSource(parts_of(lengths), weights, ordering=ordering, epoch=epoch)
    numbers = visited(source, -(-150 // len(source)))
    assert_by_weight(numbers, weights)
    for part, n in enumerate(lengths):
        assert_own_epochs(numbers, part, n, False if n == 1 else shuffled)


def test_three_hundred_sources_are_one_gather() -> None:
    arrays = [ArraySampleSource(100 * j + np.arange(1 + j % 7)) for j in range(300)]
    weights = np.random.default_rng(0).integers(1, 20, 300)
    source = MixSource(arrays, weights, epoch=4000, ordering="shuffle")
    assert sum(leaf.shape == (sum(map(len, arrays)),) for leaf in jax.tree.leaves(source)) == 1
    numbers = loaded(source, epochs=2, batch=1000)
    assert_by_weight(numbers, weights.tolist())
    for part in (0, 5, 299):
        assert_own_epochs(numbers, part, 1 + part % 7, shuffled=True)


@pytest.mark.parametrize(
    "weights",
    [None, (1, 1), (0.5, 0.5), [7, 7], np.array([2.0, 2.0]), jnp.array([3, 3]), {0: (1, 1)}],
    ids=str,
)
def test_equal_weights_take_turns(weights: Any) -> None:
    source = MixSource(parts_of((3, 4)), weights)
    assert visited(source).tolist() == [0, 100, 1, 101, 2]


def test_decimal_weights_are_the_ratio_that_they_look_like() -> None:
    sources = parts_of((50, 50, 50))
    exact = visited(MixSource(sources, (7, 2, 1)), 3)
    for weights in ((0.7, 0.2, 0.1), np.array([0.7, 0.2, 0.1], np.float32), (70, 20, 10)):
        np.testing.assert_array_equal(visited(MixSource(sources, weights), 3), exact)


def test_a_weight_of_zero_leaves_a_source_out() -> None:
    for epoch in ("first", "all"):
        source = MixSource(parts_of((2, 6, 3)), (0, 2, 1), epoch=epoch)
        assert_by_weight(visited(source, 4), (0, 2, 1))
        assert_own_epochs(visited(source, 4), 1, 6, shuffled=False)


# The order


def test_by_default_each_source_keeps_its_own_order() -> None:
    quiet = SliceSource(NUMBERS, range(8))
    loud = SliceSource(NUMBERS, range(100, 108), ordering="shuffle")
    source = MixSource([quiet, loud])
    assert "ordering=own" in repr(source)
    numbers = loaded(source, epochs=4)
    assert_own_epochs(numbers, 0, 8, shuffled=False)
    assert_own_epochs(numbers, 1, 8, shuffled=True)


def test_keys_shuffle_differently_and_change_no_turns() -> None:
    source = MixSource(parts_of((9, 9)), (2, 1), ordering="shuffle")
    runs = [visited(source, 3, key) for key in range(4)]
    assert len({tuple(run.tolist()) for run in runs}) == 4
    assert len({tuple((run // 100).tolist()) for run in runs}) == 1


def test_a_loop_over_a_sequential_mixture_needs_no_key() -> None:
    assert [int(x) for x, _ in DataLoader(MixSource(parts_of((2, 2))))] == [0, 100, 1]
    with pytest.raises(UsageError, match="this pipeline is random"):
        iter(DataLoader(MixSource(parts_of((2, 2)), ordering="shuffle")))


# The epoch


def test_an_epoch_ends_with_the_first_source_with_all_or_by_number() -> None:
    sources = parts_of((6, 2))
    first, every = MixSource(sources, (3, 1)), MixSource(sources, (3, 1), epoch="all")
    assert set(visited(first)) > {100, 101}
    assert visited(first)[-1] == 101
    assert set(visited(every)) == {*range(6), 100, 101}
    assert visited(every)[-1] in (5, 101)
    assert len(first) <= len(every) <= len(MixSource(sources, (3, 1), epoch=11)) == 11
    np.testing.assert_array_equal(
        visited(MixSource(sources, (3, 1), epoch=11), 2),
        visited(MixSource(sources, (3, 1)), 4)[:22],
    )


def test_the_length_of_an_epoch_changes_nothing_but_where_it_ends() -> None:
    sources = parts_of((5, 8))
    runs = [
        visited(MixSource(sources, (2, 3), ordering="shuffle", epoch=epoch), 60)[:60]
        for epoch in ("first", "all", 1, 7, 60)
    ]
    for run in runs[1:]:
        np.testing.assert_array_equal(run, runs[0])


# Schedules


def by_hand(lengths: Sequence[int], weights: dict[int, tuple[int, ...]], size: int) -> list[int]:
    """A sequential mixture with a schedule of weights in lowest terms, one element at a time."""
    given, numbers = [0] * len(lengths), []
    for position in range(size):
        start = max(start for start in weights if start <= position)
        table = turn_table(weights[start])
        part = int(table[(position - start) % len(table)])
        numbers.append(100 * part + given[part] % lengths[part])
        given[part] += 1
    return numbers


@pytest.mark.parametrize("epoch", ["first", "all", 5, 8, 40])
@pytest.mark.parametrize(
    "weights",
    [
        {0: (3, 1), 40: (1, 2)},
        {0: (1, 0), 7: (0, 1), 20: (1, 1)},
        {0: (1, 1), 1: (5, 1), 8: (1, 1), 16: (2, 3)},
    ],
    ids=str,
)
def test_weights_change_exactly_at_their_position(weights: Any, epoch: Any) -> None:
    source = MixSource(parts_of((6, 7)), weights, epoch=epoch)
    numbers = visited(source, -(-120 // len(source)))[:120]
    assert numbers.tolist() == by_hand((6, 7), weights, 120)


def test_a_schedule_holds_through_a_loader() -> None:
    weights = {0: (3, 1), 40: (1, 2)}
    source = MixSource(parts_of((6, 7)), weights, epoch=15)
    assert loaded(source, epochs=6).tolist() == by_hand((6, 7), weights, 90)
    shuffled = MixSource(parts_of((6, 7)), weights, epoch=15, ordering="shuffle")
    numbers = loaded(shuffled, epochs=6)
    assert (numbers // 100).tolist() == (loaded(source, epochs=6) // 100).tolist()
    assert_own_epochs(numbers, 0, 6, shuffled=True)
    assert_own_epochs(numbers, 1, 7, shuffled=True)


def test_a_state_goes_on_under_a_schedule_with_a_later_stage() -> None:
    sources = parts_of((6, 7))

    def loader(weights: Any) -> DataLoader[Any]:
        mix = MixSource(sources, weights, ordering="shuffle", epoch=10)
        return DataLoader([mix, BatchTransform(4)])

    old, new = loader((3, 1)), loader({0: (3, 1), 40: (1, 1)})
    state = old.state_at(1, 5)
    numbers = np.concatenate([x for x, _ in new.iterate(state, steps=10)])
    before = np.concatenate([x for x, _ in old.iterate(state, steps=5)])
    np.testing.assert_array_equal(numbers[:20], before)
    np.testing.assert_array_equal(numbers, visited(new.source.source, 6, key=1)[20:60])  # type: ignore[attr-defined]
    assert_by_weight(numbers[20:], (1, 1))
    for other in ((1, 1), {0: (1, 1), 40: (3, 1)}):
        with pytest.raises(StateError, match=r"it has ordering=.*mix shuffle .*3:1, .*1:1"):
            loader(other).next_batch(state)


# Positions far away


def test_a_restart_in_the_middle_of_the_sixth_epoch_is_exact() -> None:
    source = MixSource(parts_of((11, 4)), (3, 2), ordering="shuffle")
    loader = DataLoader([source, BatchTransform(3)])
    iterator = loader.iterate(loader.init_state(5), epochs=None)
    steps = 5 * len(source) // 3 + 2
    for _ in range(steps):
        next(iterator)
    assert (int(iterator.state.epoch), int(iterator.state.offset) > 0) == (5, True)
    words = np.array(iterator.state.words)
    state = type(iterator.state)(jnp.asarray(words), iterator.state.fingerprint)
    again = loader.iterate(state, epochs=None)
    for later in range(4):
        batch = np.asarray(next(iterator)[0])
        np.testing.assert_array_equal(next(again)[0], batch)
        np.testing.assert_array_equal(loader.batch_at(5, steps + later)[0], batch)


# Randomness


def test_a_random_stage_after_a_mixture_treats_every_visit_differently() -> None:
    source = RandomMapTransform(bits)(MixSource(parts_of((2, 9)), (3, 1), epoch=20))
    drawn = loaded(source, epochs=4, batch=20)
    assert np.count_nonzero(drawn[:20, 0] == 0) > 1  # an element comes again within an epoch
    assert len(np.unique(drawn[:, 1])) == 80


@pytest.mark.filterwarnings("ignore:.*is larger than the data")
def test_random_stages_inside_the_parts_treat_every_visit_differently() -> None:
    augment = RandomMapTransform(bits)
    sources = [augment(part) for part in parts_of((2, 9))]
    for inside in (MixSource(sources, (3, 1), epoch=20, ordering="shuffle"), MixSource(sources)):
        drawn = loaded(inside, epochs=4, batch=20)
        assert len(np.unique(drawn[:, 1])) == len(drawn)


# Nested


def test_mixtures_of_mixtures_hold_both_weights() -> None:
    a, b, c = parts_of((5, 7, 9))
    for ordering in ("sequential", "shuffle"):
        inner = MixSource([a, b], (1, 2), ordering=ordering, epoch=3)
        source = MixSource([inner, c], (3, 1), ordering="sequential", epoch=24)
        numbers = visited(source, 6)
        assert_by_weight(numbers, (1, 2, 1))
        assert_own_epochs(numbers, 0, 5, ordering == "shuffle")
        assert_own_epochs(numbers, 1, 7, ordering == "shuffle")
        assert_own_epochs(numbers, 2, 9, shuffled=False)
    np.testing.assert_array_equal(loaded(source, epochs=2), numbers[:48])


@pytest.mark.parametrize("place", [0, 1])
def test_an_outer_shuffle_does_not_undo_an_inner_one(place: int) -> None:
    a, b = parts_of((2, 2))
    inner = MixSource([a], ordering="shuffle")
    sources = [inner, b] if place == 0 else [b, inner]
    numbers = visited(MixSource(sources, ordering="shuffle", epoch=4), 200)
    pairs = numbers[numbers < 100].reshape(-1, 2)
    assert 60 < np.count_nonzero(pairs[:, 0] == 0) < 140  # of 200


def test_parts_may_be_splits_folds_repeats_and_joins() -> None:
    whole = SliceSource(NUMBERS, range(30))
    train, _ = split(whole, (0.8, 0.2), key=1)
    rest, fold = kfold(whole, 4, 1, key=2)
    joined = ConcatSource([fold, SliceSource(NUMBERS, [7, 3])])
    parts = [train, rest, joined, RepeatSource(fold, 2)]
    source = MixSource(parts, ordering="shuffle", epoch=200)
    numbers = loaded(source, batch=200)
    np.testing.assert_array_equal(numbers, visited(source))
    for number, part in enumerate(parts):
        own = numbers[number::4][: len(part)]
        np.testing.assert_array_equal(np.sort(own), np.sort(visited(part)))


# As an object


def test_it_is_drawn_with_its_weights() -> None:
    mix = MixSource([RangeSource(6), RangeSource(100, 102)], {0: (0.75, 0.25), 9: (1, 1)})
    expected = "MixSource(3:1 of RangeSource[6], RangeSource[2], then 1 more weights, ordering="
    assert repr(mix).startswith(expected)
    assert repr(mix) in repr(DataLoader([mix, BatchTransform(2)]))
    many = repr(MixSource([RangeSource(4)] * 10))
    assert ":1:... of RangeSource[4]" in many
    assert "6 more" in many


def test_built_twice_it_is_one_program_and_survives_pickling() -> None:
    data = ArraySampleSource(jnp.arange(9))
    sources = [
        MixSource([SliceSource(data, range(4)), SliceSource(data, range(4, 9))], (2, 1))
        for _ in range(2)
    ]
    assert jax.tree.structure(sources[0]) == jax.tree.structure(sources[1])
    step: Any = jax.jit(lambda source, state: source.next(state)[0])
    first = [int(step(source, source.init_state(3))) for source in sources]
    assert first[0] == first[1]
    assert step._cache_size() == 1
    assert_same(pickle.loads(pickle.dumps(sources[0])), sources[0], "the source")


def test_take_gives_the_first_epoch_of_key_zero() -> None:
    source = MixSource(parts_of((5, 5)), (2, 1), ordering="shuffle")
    taken = source.take(jnp.arange(len(source)))
    np.testing.assert_array_equal(taken, visited(source))
