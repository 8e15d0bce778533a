"""Sources side by side."""

from __future__ import annotations

import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cereal import (
    ArraySampleSource,
    BatchTransform,
    BlockShuffle,
    ConcatSource,
    DataLoader,
    FilterTransform,
    MapTransform,
    MixSource,
    PipelineError,
    RandomMapTransform,
    RangeSource,
    RepeatSource,
    SliceSource,
    StateError,
    ZipSource,
    kfold,
    split,
)
from cereal.testing import assert_same, check_loader, check_resume, check_source


def epoch_of(source: Any, key: int = 0, epoch: int = 0) -> Any:
    """An epoch through a loader, as NumPy."""
    loader = DataLoader([source, BatchTransform(source.traits.length)])
    return jax.tree.map(np.asarray, loader.batch_at(key, epoch)[0])


def bits(x: Any, key: Any) -> Any:
    del x
    return jax.random.bits(key)


@pytest.mark.slow
def test_the_kit_holds_for_sources_side_by_side(strict_jax: None) -> None:
    data = ArraySampleSource(np.arange(7.0, dtype=np.float32), ordering="sequential")
    source = ZipSource({"x": data, "n": RangeSource(7, ordering="shuffle")})
    assert source._order.name == "shuffle"
    check_source(source)
    loader = DataLoader([source, BatchTransform(3, pad_last_batch=True)])
    check_loader(loader)
    check_resume(loader)


def test_a_list_gives_tuples_and_a_dict_gives_dicts() -> None:
    a, b = RangeSource(3), RangeSource(5, 8)
    for sources in ([a, b], (a, b)):
        first, second = epoch_of(ZipSource(sources))
        assert (first.tolist(), second.tolist()) == ([0, 1, 2], [5, 6, 7])
    named = epoch_of(ZipSource({"z": a, "a": b}))
    assert named["z"].tolist() == [0, 1, 2]
    assert named["a"].tolist() == [5, 6, 7]
    (alone,) = epoch_of(ZipSource([a]))
    assert alone.tolist() == [0, 1, 2]


def test_elements_may_be_different_trees() -> None:
    images = ArraySampleSource({"image": np.ones((4, 2, 2))}, ordering="sequential")
    source = ZipSource({"in": images, "pair": ZipSource([RangeSource(4), RangeSource(4, 8)])})
    assert len(source) == 4
    spec = source.element_spec()
    assert spec["in"]["image"].shape == (2, 2)
    assert spec["pair"][1].dtype == jnp.int32
    taken = source.take(jnp.array([3, 1], jnp.int32))
    assert taken["pair"][1].tolist() == [7, 5]
    assert taken["in"]["image"].shape == (2, 2, 2)


@pytest.mark.parametrize(
    "ordering", ["shuffle", [3, 3, 0], BlockShuffle(2)], ids=["shuffle", "list", "block"]
)
def test_elements_stay_together_in_every_order(ordering: Any) -> None:
    source = ZipSource([RangeSource(20), RangeSource(100, 120)], ordering=ordering)
    for epoch in range(2):
        first, second = epoch_of(source, epoch=epoch)
        np.testing.assert_array_equal(first + 100, second)
        if isinstance(ordering, list):
            assert first.tolist() == ordering
        else:
            assert sorted(first) == list(range(20))
            assert first.tolist() != list(range(20))


def test_by_default_it_is_shuffled_if_one_source_is() -> None:
    quiet, loud = RangeSource(5), RangeSource(5, ordering="shuffle")
    assert ZipSource([quiet, quiet])._order.name == "sequential"
    assert ZipSource([quiet, loud])._order.name == "shuffle"
    assert ZipSource([quiet, loud], ordering="sequential")._order.name == "sequential"


def test_sources_of_different_shuffles_are_read_at_the_same_indices() -> None:
    sources = [RangeSource(9, ordering="shuffle"), RangeSource(9, ordering=BlockShuffle(2))]
    first, second = epoch_of(ZipSource(sources))
    np.testing.assert_array_equal(first, second)


# Nested


def test_combined_sources_side_by_side_stay_together() -> None:
    def parts(offset: int) -> list[Any]:
        whole = RangeSource(offset, offset + 20)
        joined = ConcatSource([SliceSource(whole, range(12, 20)), SliceSource(whole, range(4))])
        return [
            joined,
            SliceSource(RepeatSource(SliceSource(whole, [7, 1, 3]), 4), range(12)),
            split(whole, (12, 8), key=3)[0],
            MixSource([SliceSource(whole, range(5)), joined], (2, 1), ordering="shuffle", epoch=12),
        ]

    source = ZipSource([*parts(0), *parts(100)], ordering="shuffle")
    for epoch in range(2):
        values = epoch_of(source, epoch=epoch)
        for left, right in zip(values[:4], values[4:], strict=True):
            np.testing.assert_array_equal(left + 100, right)


def test_zipped_mixtures_stay_together_when_one_is_augmented() -> None:
    def mix(offset: int) -> MixSource[Any]:
        sources = [RangeSource(offset, offset + 5), RangeSource(offset + 10, offset + 17)]
        return MixSource(sources, ordering="shuffle")

    keep = RandomMapTransform(lambda x, key: x)
    images, labels = epoch_of(ZipSource([keep(mix(0)), mix(100)]), epoch=1)
    np.testing.assert_array_equal(images + 100, labels)


def test_a_zip_can_be_split_and_joined() -> None:
    source = ZipSource([RangeSource(10), RangeSource(100, 110)])
    train, val = split(source, (0.7, 0.3), key=1)
    both = ConcatSource([val, train])
    first, second = epoch_of(both)
    np.testing.assert_array_equal(first + 100, second)
    assert sorted(first) == list(range(10))


def test_a_zip_of_what_cannot_be_split_cannot_be_split() -> None:
    fixed = RangeSource(8)
    mix = MixSource([RangeSource(8)], epoch=8)
    with pytest.raises(PipelineError, match="gives other elements at the same index in the next"):
        split(ZipSource([fixed, mix]), (0.5, 0.5))
    repeated = RepeatSource(RangeSource(4), 2)
    with pytest.raises(PipelineError, match="may have an element several times"):
        kfold(ZipSource([fixed, repeated]), 2, 0)


# Masks and randomness


def test_an_element_is_real_if_all_of_its_parts_are() -> None:
    even = FilterTransform(lambda x: x % 2 == 0)(RangeSource(12))
    third = FilterTransform(lambda x: x % 3 == 0)(RangeSource(12))
    source = ZipSource([even, RangeSource(12), third])
    loader = DataLoader([source, BatchTransform(8, pad_last_batch=True)])
    real = [x for step in range(2) for x in np.asarray(loader.batch_at(0, step)[1]).tolist()]
    assert [x for x in range(16) if real[x]] == [0, 6]


def test_random_stages_of_the_parts_are_independent() -> None:
    augment = RandomMapTransform(bits)
    source = ZipSource([augment(RangeSource(6)), augment(RangeSource(6)), RangeSource(6)])
    drawn = [np.stack(epoch_of(source, epoch=epoch)[:2]) for epoch in range(2)]
    assert len(np.unique(np.stack(drawn))) == 24


def test_a_random_stage_after_zipping_has_one_key_for_the_whole_element() -> None:
    def shift(pair: Any, key: Any) -> Any:
        by = jax.random.randint(key, (), 0, 1000, jnp.int32)
        return pair[0] + by, pair[1] + by

    pairs = ZipSource([RangeSource(6), RangeSource(100, 106)])
    first, second = epoch_of(RandomMapTransform(shift)(pairs))
    np.testing.assert_array_equal(first + 100, second)
    assert len(set((first - np.arange(6)).tolist())) > 1


def test_a_map_before_or_after_zipping_is_the_same() -> None:
    negate = MapTransform(lambda x: -x)
    before = ZipSource([negate(RangeSource(4)), RangeSource(4)])
    after = MapTransform(lambda pair: (-pair[0], pair[1]))(
        ZipSource([RangeSource(4), RangeSource(4)])
    )
    assert_same(epoch_of(before), epoch_of(after), "mapped")


# As an object


def test_it_is_drawn_with_its_parts() -> None:
    source = ZipSource({"b": RangeSource(3), "a": RepeatSource(RangeSource(1), 3)})
    assert repr(source) == "ZipSource(RepeatSource[3], RangeSource[3], ordering=sequential)"
    drawn = repr(DataLoader([source, BatchTransform(2)]))
    assert repr(source) in drawn
    assert "{a: int32[2], b: int32[2]}" in drawn


def test_a_state_knows_the_parts() -> None:
    def loader(key: int) -> DataLoader[Any]:
        return DataLoader(ZipSource([RangeSource(5), split(RangeSource(10), (5, 5), key=key)[0]]))

    assert int(loader(1).next_batch(loader(1).init_state(0))[0][0]) == 0
    with pytest.raises(StateError, match=r"sequential of zip\(, split\(0, 5, "):
        loader(1).next_batch(loader(2).init_state(0))


def test_built_twice_it_is_one_program_and_survives_pickling() -> None:
    data = jnp.arange(4)

    def make() -> ZipSource:
        return ZipSource({"a": ArraySampleSource(data), "b": RangeSource(4)}, ordering=[2, 1])

    sources = [make(), make()]
    assert jax.tree.structure(sources[0]) == jax.tree.structure(sources[1])
    step: Any = jax.jit(lambda source, state: source.next(state)[0]["a"])
    assert [int(step(source, source.init_state(0))) for source in sources] == [2, 2]
    assert step._cache_size() == 1
    assert_same(pickle.loads(pickle.dumps(sources[0])), sources[0], "the source")
    assert any(leaf is data for leaf in jax.tree.leaves(sources[0]))
