"""Where the data of combined sources lies: one store for all parts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from cereal import (
    ArraySampleSource,
    BatchTransform,
    ConcatSource,
    DataLoader,
    DevicePutTransform,
    FilterTransform,
    IndexedSource,
    MapTransform,
    MixSource,
    PipelineError,
    RandomMapTransform,
    RangeSource,
    RepeatSource,
    SliceSource,
    WindowSource,
    ZipSource,
    kfold,
    pytree_dataclass,
    split,
    static_field,
)
from cereal.testing import assert_same, check_loader, check_source


@pytree_dataclass
class Squares(IndexedSource[jax.Array]):
    """A user's own source."""

    n: int = static_field()
    ordering: str = static_field(default="sequential")

    def __len__(self) -> int:
        return self.n

    def element_spec(self) -> Any:
        return jax.ShapeDtypeStruct((), jnp.int32)

    def take(self, indices: jax.Array) -> jax.Array:
        return indices**2


def in_order(data: Any, **options: Any) -> ArraySampleSource[Any]:
    return ArraySampleSource(data, ordering="sequential", **options)


def epoch_of(source: Any, key: int = 0, epoch: int = 0) -> Any:
    """An epoch through a loader."""
    loader = DataLoader([source, BatchTransform(source.traits.length)])
    return loader.batch_at(key, epoch)[0]


def bits(x: Any, key: Any) -> Any:
    del x
    return jax.random.bits(key)


def arrays_like(source: Any, rows: int) -> list[Any]:
    """The leaves of a source that have so many rows."""
    return [leaf for leaf in jax.tree.leaves(source) if leaf.shape[:1] == (rows,)]


# Sharing and copying


def test_parts_of_one_array_share_it() -> None:
    data = jnp.arange(50.0)
    source = in_order(data)
    train, val = split(source, (0.8, 0.2), key=1)
    sources = [
        SliceSource(source, range(5, 20)),
        ConcatSource([SliceSource(source, range(5)), SliceSource(source, [40, 30])]),
        MixSource([train, val, source]),
        RepeatSource(ConcatSource([val, train]), 3),
        *kfold(with_a_gap(source), 3, 1),
        ConcatSource([in_order(data), in_order(data)]),
        ConcatSource([ArraySampleSource(data), SliceSource(in_order(data), range(3))]),
    ]
    for each in sources:
        (leaf,) = arrays_like(each, 50)
        assert leaf is data


def with_a_gap(source: Any) -> ConcatSource[Any]:
    return ConcatSource([SliceSource(source, range(9)), SliceSource(source, range(20, 40))])


def test_images_kept_as_words_are_shared_too() -> None:
    images = jnp.arange(20 * 16 * 16, dtype=jnp.uint8).reshape(20, 16, 16)
    source = in_order(images)
    both = ConcatSource([SliceSource(source, range(5)), SliceSource(source, range(15, 20))])
    (leaf,) = arrays_like(both, 20)
    assert leaf is jax.tree.leaves(source)[0]


def test_two_sources_over_one_array_of_images_are_one() -> None:
    images = jnp.arange(20 * 16 * 16, dtype=jnp.uint8).reshape(20, 16, 16)
    both = ConcatSource([in_order(images), in_order(images)])
    assert len(arrays_like(both, 20)) == 1
    with pytest.raises(PipelineError, match="may have an element several times"):
        split(both, (0.5, 0.5))


def test_different_arrays_are_copied_once_into_one() -> None:
    parts = [in_order({"x": np.arange(n) + 100.0 * n, "y": np.arange(n)}) for n in (3, 5, 1)]
    for source in (ConcatSource(parts), MixSource([*parts, parts[0]], ordering="shuffle")):
        assert len(arrays_like(source, 9)) == 2
    again = RepeatSource(ConcatSource([SliceSource(ConcatSource(parts), range(9))]), 2)
    assert len(arrays_like(again, 9)) == 2
    joined = epoch_of(ConcatSource(parts))
    np.testing.assert_array_equal(joined["y"], [0, 1, 2, 0, 1, 2, 3, 4, 0])
    np.testing.assert_array_equal(joined["x"], [300, 301, 302, 500, 501, 502, 503, 504, 100])


def test_writing_into_numpy_arrays_afterwards_changes_nothing() -> None:
    first, second = np.arange(3.0), np.arange(10.0, 14.0)
    source = ConcatSource([in_order(first), in_order(second)])
    first[:], second[:] = -1, -1
    np.testing.assert_array_equal(epoch_of(source), [0, 1, 2, 10, 11, 12, 13])


def tree_of(n: int, seed: int) -> dict[str, Any]:
    """Data of many kinds; the images are kept as words on the CPU."""
    draw = np.random.default_rng(seed)
    return {
        "image": draw.integers(0, 256, (n, 8, 32), np.uint8),
        "small": draw.integers(0, 256, (n, 8, 8), np.uint8),
        "signed": draw.integers(-300, 300, (n, 8, 24), np.int16),
        "half": draw.normal(size=(n, 3)).astype(np.float16),
        "brain": jnp.asarray(draw.normal(size=n), jnp.bfloat16),
        "flag": draw.integers(0, 2, n) > 0,
        "key": jax.random.split(jax.random.key(seed), n),
        "nested": (draw.normal(size=(n, 2)).astype(np.float32), [np.arange(n)]),
    }


def raw(tree: Any) -> Any:
    """As NumPy arrays that can be compared."""

    def one(x: Any) -> np.ndarray:
        keys = isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        x = np.asarray(jax.random.key_data(x) if keys else x)
        return x.astype(jax.dtypes.canonicalize_dtype(x.dtype))

    return jax.tree.map(one, tree)


def test_trees_of_many_dtypes_come_back_as_they_were() -> None:
    sizes = (3, 4, 2)
    trees = [tree_of(n, seed) for seed, n in enumerate(sizes)]
    source = ConcatSource([in_order(tree) for tree in trees])
    assert len(arrays_like(source, 9)) == 9
    expected = jax.tree.map(lambda *leaves: np.concatenate(leaves), *map(raw, trees))
    assert_same(raw(epoch_of(source)), expected, "all")
    mix = MixSource([in_order(tree) for tree in trees], epoch=6)
    rows = np.array([0, 3, 7, 1, 4, 8])
    assert_same(raw(epoch_of(mix)), jax.tree.map(lambda x: x[rows], expected), "the mixture")


@pytest.mark.slow
def test_a_tree_of_many_dtypes_keeps_the_contract() -> None:
    tree = tree_of(5, 0)
    check_source(SliceSource(ConcatSource([in_order(tree), in_order(tree_of(2, 1))]), range(3, 7)))


# Parts that are read one by one


@pytest.mark.parametrize("combined", [ConcatSource, MixSource])
def test_parts_with_their_own_maps_equal_mapping_afterwards(combined: Any) -> None:
    double = MapTransform(lambda x: 2 * x)
    first, second = RangeSource(4), in_order(np.arange(10, 13, dtype=np.int32))
    inside, after = combined([double(first), double(second)]), double(combined([first, second]))
    assert_same(epoch_of(inside), epoch_of(after), "mapped inside and after")


def total(element: Any) -> Any:
    """Depends on the dtype, by overflow."""
    return sum(jnp.sum(x * x % 7).astype(jnp.float32) for x in jax.tree.leaves(element))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (np.ones((2, 3)), np.ones((3, 5))),
        (2**24 + np.arange(4, dtype=np.int32), np.arange(4, dtype=np.float32)),
        (np.arange(250, 254, dtype=np.uint8), np.arange(-4, 0, dtype=np.int8)),
        ({"x": np.arange(2.0)}, {"x": np.arange(2.0), "y": np.arange(2.0)}),
        (np.arange(4.0), (np.arange(4.0),)),
    ],
    ids=["shapes", "dtypes", "narrow dtypes", "keys", "structures"],
)
def test_one_map_over_parts_whose_data_differs(first: Any, second: Any) -> None:
    sums = MapTransform(total)
    parts = [sums(in_order(first)), sums(in_order(second))]
    expected = np.concatenate([np.asarray(epoch_of(part)) for part in parts])
    np.testing.assert_array_equal(epoch_of(ConcatSource(parts)), expected)


@pytest.mark.slow
def test_a_users_own_source_is_a_part_like_others() -> None:
    parts = [Squares(3), RangeSource(100, 102), SliceSource(Squares(9), [8, 0])]
    assert epoch_of(ConcatSource(parts)).tolist() == [0, 1, 4, 100, 101, 64, 0]
    check_loader(DataLoader([MixSource(parts, (2, 1, 1), ordering="shuffle"), BatchTransform(3)]))


def test_a_part_that_masks_elements_masks_its_own() -> None:
    even = FilterTransform(lambda x: x % 2 == 0)
    source = ConcatSource([RangeSource(3), even(RangeSource(10, 13)), RangeSource(5, 6)])
    loader = DataLoader([source, BatchTransform(4, pad_last_batch=True)])
    masks = [loader.batch_at(0, step)[1] for step in range(2)]
    assert np.concatenate(masks).tolist() == [True] * 4 + [False, True, True, False]


def test_an_index_key_is_the_index_in_the_data_of_the_part() -> None:
    first = in_order({"x": np.arange(5.0)}, index_key="index")
    second = in_order({"x": np.arange(3.0)}, index_key="index")
    joined = epoch_of(ConcatSource([SliceSource(first, [4, 2]), second]))
    assert joined["index"].tolist() == [4, 2, 0, 1, 2]
    assert joined["x"].tolist() == [4, 2, 0, 1, 2]
    (train, _) = split(first, (0.6, 0.4), key=1)
    part = epoch_of(train)
    np.testing.assert_array_equal(part["index"], part["x"])


def test_files_and_arrays_are_combined(tmp_path: Any) -> None:
    for name, start in (("a", 0), ("b", 100)):
        np.arange(start, start + 12, dtype=np.int32).tofile(tmp_path / name)
    files = [np.memmap(tmp_path / name, np.int32, mode="r") for name in ("a", "b")]
    windows = [WindowSource(file, 4, 4, ordering="sequential") for file in files]
    array = WindowSource(np.arange(200, 208, dtype=np.int32), 4, 4, ordering="sequential")
    both, all_three = ConcatSource(windows), ConcatSource([array, *windows])
    assert epoch_of(both)[:, 0].tolist() == [0, 4, 8, 100, 104, 108]
    assert epoch_of(all_three)[:, 0].tolist() == [200, 204, 0, 4, 8, 100, 104, 108]
    mix = MixSource([windows[1], array], (2, 1), ordering="sequential")
    loader = DataLoader([mix, BatchTransform(4)])
    step = jax.jit(lambda loader, state: loader.next_batch(state)[0])
    assert_same(step(loader, loader.init_state(0)), loader.batch_at(0, 0)[0], "inside jit")


# Randomness


def test_random_stages_in_different_parts_get_different_randomness() -> None:
    augment = RandomMapTransform(bits)
    parts = [augment(RangeSource(5)), augment(RangeSource(5)), augment(in_order(np.arange(5)))]
    for source in (ConcatSource(parts), MixSource(parts, epoch=15)):
        drawn = np.concatenate([epoch_of(source, epoch=epoch) for epoch in range(2)])
        assert len(np.unique(drawn)) == 30


def test_a_random_stage_after_has_randomness_of_its_own() -> None:
    def pair(x: Any, key: Any) -> Any:
        return jnp.stack([x, jax.random.bits(key)])

    plain = in_order(np.arange(4, dtype=np.uint32))
    inside = ConcatSource([RandomMapTransform(bits)(RangeSource(5)), plain])
    drawn = epoch_of(RandomMapTransform(pair)(inside))
    assert len(np.unique(drawn)) == 18


@pytest.mark.slow
def test_randomness_of_a_part_does_not_depend_on_the_batch_or_the_program() -> None:
    augment = RandomMapTransform(bits)
    source = ConcatSource([augment(RangeSource(5)), augment(Squares(6))], ordering="shuffle")
    check_loader(DataLoader([source, BatchTransform(4)]))


# Devices


def test_parts_on_another_device_stay_there() -> None:
    there = jax.devices()[2]
    parts = [in_order(jax.device_put(np.arange(n, dtype=np.float32), there)) for n in (3, 4)]
    source = ConcatSource(parts)
    (leaf,) = arrays_like(source, 7)
    assert leaf.devices() == {there}
    batch = epoch_of(source)
    assert batch.devices() == {there}
    assert batch.tolist() == [0, 1, 2, 0, 1, 2, 3]


def test_a_part_on_another_device_and_one_that_is_anywhere() -> None:
    there = jax.devices()[1]
    committed = in_order(jax.device_put(np.arange(3, dtype=np.float32), there))
    batch = epoch_of(ConcatSource([committed, in_order(np.arange(10, 12, dtype=np.float32))]))
    assert batch.tolist() == [0, 1, 2, 10, 11]
    assert batch.devices() == {there}


def test_batches_go_where_the_parts_were_to_go() -> None:
    there = jax.devices()[2]
    parts = [DevicePutTransform(there)(RangeSource(4)) for _ in range(2)]
    double = MapTransform(lambda x: 2 * x)
    sources = {
        "a slice": SliceSource(parts[0], range(2)),
        "a join": ConcatSource(parts),
        "a join of maps": ConcatSource([double(part) for part in parts]),
        "a mixture": MixSource(parts),
        "a zip": ZipSource(parts),
    }
    where = {name: jax.tree.leaves(epoch_of(each))[0].devices() for name, each in sources.items()}
    assert where == {name: {there} for name in sources}


def test_a_part_that_says_where_to_go_speaks_for_those_that_do_not() -> None:
    there = jax.devices()[2]
    mixed = MixSource([DevicePutTransform(there)(RangeSource(4)), RangeSource(4)])
    assert epoch_of(mixed).devices() == {there}


def test_parts_that_go_to_different_places_are_refused_when_built() -> None:
    parts = [DevicePutTransform(device)(RangeSource(4)) for device in jax.devices()[1:3]]
    message = "are put in different places, .*:1 and .*:2, and a batch goes to one; write"
    for combined in (ConcatSource, MixSource, ZipSource):
        with pytest.raises(PipelineError, match=message):
            DataLoader([combined(parts), BatchTransform(2)])


def test_sharded_parts() -> None:
    mesh = jax.make_mesh((4,), ("data",))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    whole = in_order(jax.device_put(np.arange(8.0, dtype=np.float32), rows))
    other = in_order(jax.device_put(np.arange(100.0, 104.0, dtype=np.float32), rows))
    both = ConcatSource([whole, other])
    assert epoch_of(both).tolist() == [*range(8), *range(100, 104)]
    first, second = split(whole, (0.5, 0.5), key=1)
    assert sorted([*epoch_of(first).tolist(), *epoch_of(second).tolist()]) == list(range(8))
    mix = MixSource([first, other, in_order(np.array([7.0], np.float32))], ordering="shuffle")
    assert epoch_of(mix).shape == (len(mix),)


# Inside jit


def test_combined_sources_are_built_from_arguments_inside_jit(strict_jax: None) -> None:
    @jax.jit
    def first_batch(a: Any, b: Any, state_key: Any) -> Any:
        first, second = in_order({"x": a}), in_order({"x": b})
        train, val = split(first, (0.5, 0.5), key=3)
        mix = MixSource([train, ConcatSource([second, val])], (2, 1), ordering="shuffle")
        loader = DataLoader([mix, BatchTransform(6)])
        return loader.next_batch(loader.init_state(state_key))[0]["x"]

    a, b = jnp.arange(8.0), jnp.arange(100.0, 105.0)
    inside = np.asarray(first_batch(a, b, jax.random.key(0)))
    train = split(in_order(a), (0.5, 0.5), key=3)[0]
    from_train = [x for turn, x in enumerate(inside.tolist()) if turn % 3 != 1]
    assert set(from_train) <= set(epoch_of(train).tolist())
    assert len(set(from_train)) == 4


def test_a_source_that_was_passed_is_combined_inside_jit() -> None:
    mix = MixSource([RangeSource(4), in_order(np.arange(10, 14, dtype=np.int32))])

    @jax.jit
    def elements(source: Any) -> Any:
        return ConcatSource([source, RangeSource(90, 92)]).take(jnp.arange(9))

    assert elements(mix).tolist() == [0, 10, 1, 11, 2, 12, 3, 90, 91]


# Very many rows


N = 2**31 - 2


@pytest.mark.parametrize("combined", [ConcatSource, MixSource])
@pytest.mark.parametrize("begin", [0, N - 5])
def test_more_rows_than_compiled_code_can_count_are_refused_or_right(
    combined: Any, begin: int
) -> None:
    low, high = RangeSource(N), RangeSource(-N, 0)
    parts = [SliceSource(low, range(5)), SliceSource(high, range(begin, begin + 5))]
    source, refused = None, ""
    try:
        source = combined(parts, ordering="sequential")
    except PipelineError as error:
        refused = str(error)
    if source is None:
        assert "2147483647" in refused
    else:
        elements = epoch_of(source).tolist()
        assert sorted(set(elements) - set(range(5)))[:4] == list(range(begin - N, begin - N + 4))
