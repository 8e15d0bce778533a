"""Folds: every element is validated once."""

from __future__ import annotations

import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.slowly import slowly

from cereal import (
    ArraySampleSource,
    BatchTransform,
    BlockShuffle,
    ConcatSource,
    DataLoader,
    MixSource,
    RangeSource,
    SliceSource,
    StateError,
    kfold,
    split,
)
from cereal.pipeline.state import make_words
from cereal.testing import assert_same, check_loader, check_resume, check_source


def visited(source: Any, epochs: int = 1, key: int = 0) -> np.ndarray:
    """The rows of the store that epochs visit, in NumPy; of a range, they are the elements."""
    rows, _ = source._plan.rows_for(make_words((0, key), 0, 0), epochs * source.traits.length)
    return source._route(rows).below.index.reshape(epochs, source.traits.length)


def whole_epoch(source: Any, key: Any = 0) -> tuple[Any, Any]:
    """An epoch as one batch, and its mask; inside of jit too."""
    loader = DataLoader([source, BatchTransform(len(source))])
    batch, _, mask = loader.next_batch(loader.init_state(key))
    return batch, mask


@pytest.mark.slow
def test_the_kit_holds_for_a_fold(strict_jax: None) -> None:
    data = ArraySampleSource({"x": np.arange(11.0, dtype=np.float32)})
    train, _ = kfold(data, 3, 1, key=5)
    check_source(train)
    loader = DataLoader([train, BatchTransform(3)])
    check_loader(loader)
    check_resume(loader)


@given(st.integers(2, 30), st.data(), st.booleans())
def test_every_element_is_validated_exactly_once(n: int, data: st.DataObject, keyed: bool) -> None:
    k = data.draw(st.integers(2, n))
    source, key = RangeSource(n), 7 if keyed else None
    validated = []
    for fold in range(k):
        train, val = kfold(source, k, fold, key)
        here, rest = visited(val)[0].tolist(), visited(train)[0].tolist()
        assert sorted(here + rest) == list(range(n))
        assert len(here) in (n // k, n // k + 1)
        assert (len(val), len(train)) == (len(here), len(rest))
        validated += here
    assert validated == list(range(n)) if key is None else sorted(validated) == list(range(n))


def test_without_a_key_folds_follow_each_other() -> None:
    train, val = kfold(RangeSource(11), 3, 1)
    assert visited(train)[0].tolist() == [0, 1, 2, 3, 8, 9, 10]
    assert visited(val)[0].tolist() == [4, 5, 6, 7]
    assert whole_epoch(train)[0].tolist() == [0, 1, 2, 3, 8, 9, 10]


def test_folds_are_the_same_in_every_epoch_and_for_every_loader_key() -> None:
    train, val = kfold(RangeSource(20, ordering="shuffle"), 4, 2, key=1)
    own = set(visited(val)[0].tolist())
    for key in range(3):
        assert all(set(epoch) == own for epoch in visited(val, 5, key).tolist())
        assert all(set(epoch) == set(range(20)) - own for epoch in visited(train, 5, key).tolist())
    assert len({tuple(epoch) for epoch in visited(train, 5).tolist()}) == 5


def test_a_key_decides_the_folds() -> None:
    source = RangeSource(20)

    def fold(key: Any) -> frozenset[int]:
        return frozenset(visited(kfold(source, 4, 2, key)[1])[0].tolist())

    assert fold(3) == fold(jax.random.key(3)) == fold(jax.random.PRNGKey(3))
    assert len({fold(key) for key in range(8)}) == 8


def test_the_order_is_that_of_the_source_unless_given() -> None:
    blocks = RangeSource(12, ordering=BlockShuffle(2))
    assert [part._order.name for part in kfold(blocks, 3, 0)] == ["BlockShuffle(2)"] * 2
    train, val = kfold(blocks, 3, 0, ordering="sequential")
    assert visited(val)[0].tolist() == [0, 1, 2, 3]
    train, val = kfold(RangeSource(12), 3, 0, ordering=[3, 0])
    assert visited(train)[0].tolist() == [7, 4]


def test_folds_of_combined_sources() -> None:
    whole = RangeSource(40)
    train, val = split(whole, (30, 10), key=1)
    joined = ConcatSource([SliceSource(whole, range(5)), SliceSource(whole, range(9, 30, 3))])
    for source in (SliceSource(whole, range(30, 3, -2)), train, ConcatSource([val, train]), joined):
        every = sorted(visited(source)[0].tolist())
        for fold in range(3):
            parts = kfold(source, 3, fold, key=2)
            assert sorted(x for part in parts for x in visited(part)[0].tolist()) == every


def test_a_fold_can_be_split_and_folded_again() -> None:
    train, _ = kfold(RangeSource(20), 4, 1, key=3)
    inner, held = kfold(train, 3, 0, key=4)
    first, second = split(held, (0.5, 0.5))
    together = [x for part in (inner, first, second) for x in visited(part)[0].tolist()]
    assert sorted(together) == sorted(visited(train)[0].tolist())


def test_a_fold_may_be_part_of_a_mixture() -> None:
    train, _ = kfold(RangeSource(9), 3, 0)
    mix = MixSource([train, RangeSource(100, 103)], (2, 1))
    assert whole_epoch(mix)[0].tolist() == [3, 100, 4, 5, 101, 6, 7, 102]


# Traced folds


@pytest.mark.parametrize(
    ("n", "k", "key"), [(12, 4, None), (11, 4, 6), slowly(12, 4, 6), slowly(11, 4, None)]
)
def test_a_traced_fold_is_the_same_but_for_masks(n: int, k: int, key: Any) -> None:
    source = RangeSource(n)

    def both(fold: Any) -> Any:
        return [whole_epoch(part) for part in kfold(source, k, fold, key)]

    lanes = jax.vmap(both)(jnp.arange(k))
    for fold in range(k):
        parts = zip(lanes, kfold(source, k, fold, key), strict=True)
        for (batch, mask), part in parts:
            real = np.asarray(batch[fold])[np.asarray(mask[fold])]
            assert real.tolist() == visited(part)[0].tolist()
            assert n % k or bool(mask.all())
    alone = jax.jit(both)(1)
    assert_same(alone, jax.tree.map(lambda x: x[1], lanes), "jit and vmap")


def test_padding_of_a_smaller_fold_is_an_element_of_it() -> None:
    def both(fold: Any) -> Any:
        return [whole_epoch(part)[0] for part in kfold(RangeSource(7), 3, fold)]

    train, val = (np.asarray(x) for x in jax.vmap(both)(jnp.arange(3)))
    assert (train.shape, val.shape) == ((3, 5), (3, 3))
    for fold in range(3):
        assert not set(train[fold].tolist()) & set(val[fold].tolist())


def test_training_on_all_folds_at_once_is_training_on_each() -> None:
    data = ArraySampleSource({"x": np.arange(11.0, dtype=np.float32)})

    def add(total: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
        return total + jnp.where(mask, batch["x"], 0).sum(), mask.sum()

    def train_and_test(fold: Any) -> Any:
        results = []
        for part in kfold(data, 3, fold, key=1):
            loader = DataLoader([part, BatchTransform(4, pad_last_batch=True)])
            results.append(loader.scan_epoch(loader.init_state(2), jnp.float32(0), add)[1:])
        return results

    (train, trained), (val, validated) = jax.vmap(train_and_test)(jnp.arange(3))
    assert float(val.sum()) == 55
    assert (train + val).tolist() == [55] * 3
    assert trained.sum(axis=1).tolist() == [7, 7, 8]
    assert validated.sum(axis=1).tolist() == [4, 4, 3]


def test_ensembles_over_keys_and_folds_at_once() -> None:
    source = RangeSource(8, ordering="shuffle")

    def member(key: Any, fold: Any) -> Any:
        return [whole_epoch(part, key)[0] for part in kfold(source, 4, fold, key=key)]

    keys = jax.random.split(jax.random.key(0), 3)
    over_folds = jax.vmap(member, in_axes=(None, 0))
    train, val = jax.jit(jax.vmap(over_folds, in_axes=(0, None)))(keys, jnp.arange(4))
    assert (train.shape, val.shape) == ((3, 4, 6), (3, 4, 2))
    for each in np.asarray(val).reshape(3, 8).tolist():
        assert sorted(each) == list(range(8))
    assert len({tuple(each) for each in np.asarray(val).reshape(3, 8).tolist()}) == 3
    every = np.sort(np.concatenate([train, val], axis=-1))
    np.testing.assert_array_equal(every, np.broadcast_to(np.arange(8), (3, 4, 8)))


def test_a_join_built_inside_jit_can_be_folded() -> None:
    whole = RangeSource(10)

    @jax.jit
    def fold(number: Any) -> Any:
        parts = [SliceSource(whole, range(3)), SliceSource(whole, range(5, 8))]
        return whole_epoch(kfold(ConcatSource(parts), 3, number)[1])[0]

    assert [fold(number).tolist() for number in range(3)] == [[0, 1], [2, 5], [6, 7]]


def test_integers_of_all_kinds_are_folds() -> None:
    for fold in (1, np.int64(1), np.uint8(1), jnp.int32(1)):
        assert visited(kfold(RangeSource(6), 3, fold)[1])[0].tolist() == [2, 3]


# States and objects


def test_a_state_of_another_fold_is_refused() -> None:
    first, second = (DataLoader(kfold(RangeSource(6), 3, fold)[0]) for fold in (0, 1))
    with pytest.raises(StateError, match=r"of rest\(0 of 3\), this one has .* of rest\(1 of 3\)"):
        second.next_batch(first.init_state(0))


def test_it_is_drawn_with_its_fold() -> None:
    train, val = kfold(RangeSource(9), 3, 1)
    assert repr(train) == "SliceSource(all but fold 1 of 3 of RangeSource[9], ordering=sequential)"
    assert repr(val) == "SliceSource(fold 1 of 3 of RangeSource[9], ordering=sequential)"


def test_built_twice_it_is_one_program_and_survives_pickling() -> None:
    data = jnp.arange(9)
    source = ArraySampleSource(data, ordering="sequential")
    parts = [kfold(source, 3, 1, key=2)[0] for _ in range(2)]
    assert jax.tree.structure(parts[0]) == jax.tree.structure(parts[1])
    assert_same(pickle.loads(pickle.dumps(parts[0])), parts[0], "the part")
    assert any(leaf is data for leaf in jax.tree.leaves(parts[0]))
    step: Any = jax.jit(lambda source, state: source.next(state)[0])
    first = {int(step(part, part.init_state(0))) for part in parts}
    assert first == {int(visited(parts[0])[0, 0])}
    assert step._cache_size() == 1
