"""Element types survive from the source to the loop; pyright and mypy read the assertions."""

from __future__ import annotations

import dataclasses
from typing import Any, TypedDict, assert_type

import jax
import jax.numpy as jnp
import numpy as np

import cereal
from cereal import (
    ArraySampleSource,
    BatchIterator,
    BatchTransform,
    CacheTransform,
    ConcatSource,
    DataLoader,
    DevicePutTransform,
    FilterTransform,
    FlattenImageTransform,
    HostCallbackTransform,
    IndexedSource,
    MapTransform,
    MixSource,
    NormalizeImageTransform,
    PipelineState,
    RandomMapTransform,
    RangeSource,
    RepeatSource,
    SliceSource,
    Source,
    UnbatchTransform,
    kfold,
    select,
    split,
)


class Images(TypedDict):
    image: Any
    label: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Point:
    x: jax.Array
    y: jax.Array


def images() -> Images:
    return {"image": np.zeros((6, 4, 4), np.uint8), "label": np.arange(6, dtype=np.int32)}


def to_point(batch: Images) -> Point:
    return Point(batch["image"], batch["label"])


def to_point_with_mask(batch: Images, mask: jax.Array) -> Point:
    return Point(batch["image"], jnp.where(mask, batch["label"], -1))


def flip(element: Images, key: jax.Array) -> Images:
    image = jnp.where(jax.random.bernoulli(key), element["image"][:, ::-1], element["image"])
    return {"image": image, "label": element["label"]}


def test_a_source_has_the_type_of_its_data() -> None:
    source = ArraySampleSource(images())
    assert_type(source, ArraySampleSource[Images])
    element, mask, _ = source.next(source.init_state(0))
    assert_type(element, Images)
    assert_type(mask, jax.Array)
    assert_type(source.take(jnp.arange(2)), Images)
    assert element["image"].shape == (4, 4)


def test_a_range_gives_arrays() -> None:
    source = RangeSource(4)
    batches = BatchTransform(2)(source)
    assert_type(batches, Source[jax.Array])
    loader = DataLoader(batches)
    assert_type(loader, DataLoader[jax.Array])
    assert loader.batch_at(0, 0)[0].tolist() == [0, 1]


def test_stages_that_keep_the_structure_keep_the_type() -> None:
    source = ArraySampleSource(images())
    assert_type(BatchTransform(2)(source), Source[Images])
    assert_type(NormalizeImageTransform()(source), Source[Images])
    assert_type(FlattenImageTransform()(source), Source[Images])
    assert_type(DevicePutTransform()(source), Source[Images])
    assert_type(HostCallbackTransform(lambda batch, mask: None)(source), Source[Images])
    assert_type(RandomMapTransform(flip)(source), Source[Images])


def test_a_typed_function_changes_the_type() -> None:
    source = ArraySampleSource(images())
    assert_type(MapTransform(to_point)(source), Source[Point])
    assert_type(MapTransform(to_point_with_mask)(source), Source[Point])
    assert_type(MapTransform(to_point), MapTransform[Point])


def test_a_lambda_needs_no_types() -> None:
    source = ArraySampleSource(images())
    MapTransform(lambda batch: batch["image"])(source)
    MapTransform(lambda batch, mask: {**batch, "real": mask})(source)
    RandomMapTransform(lambda element, key: {**element, "key": key})(source)


def test_nested_calls_keep_the_type_through_the_loader() -> None:
    source = ArraySampleSource(images(), ordering="sequential")
    loader = DataLoader(MapTransform(to_point)(BatchTransform(2)(source)))
    assert_type(loader, DataLoader[Point])

    state = loader.init_state(0)
    batch, state, mask = loader.next_batch(state)
    assert_type(batch, Point)
    assert_type(mask, jax.Array)
    assert batch.y.tolist() == [0, 1]


def test_iterate_gives_the_type() -> None:
    loader = DataLoader(BatchTransform(2)(ArraySampleSource(images(), ordering="sequential")))
    batches = loader.iterate(loader.init_state(0))
    assert_type(batches, BatchIterator[Images])
    for batch, mask in batches:
        assert_type(batch, Images)
        assert_type(mask, jax.Array)
    for batch, mask in loader:
        assert_type(batch, Images)
        assert_type(mask, jax.Array)
    first, first_mask = loader.batch_at(0, 0)
    assert_type(first, Images)
    assert_type(first_mask, jax.Array)
    assert first["label"].tolist() == [0, 1]


def test_scan_epoch_gives_the_carry_its_type_and_the_body_the_batch() -> None:
    loader = DataLoader(MapTransform(to_point)(BatchTransform(2)(ArraySampleSource(images()))))

    def body(total: jax.Array, batch: Point, mask: jax.Array) -> tuple[jax.Array, None]:
        return total + jnp.where(mask, batch.y, 0).sum(), None

    _, total, _ = loader.scan_epoch(loader.init_state(0), jnp.zeros((), jnp.int32), body)
    assert_type(total, jax.Array)
    assert int(total) == 15


def test_stages_may_be_nested_in_any_order() -> None:
    source = ArraySampleSource(images(), ordering="sequential")
    batches = BatchTransform(4)(MapTransform(to_point)(source))
    assert_type(batches, Source[Point])
    loader = DataLoader(batches)
    assert_type(loader, DataLoader[Point])
    assert_type(DataLoader(source, workers=0), DataLoader[Images])
    assert loader.batch_at(0, 0)[0].y.tolist() == [0, 1, 2, 3]


def test_a_list_of_stages_needs_no_annotation() -> None:
    loader = DataLoader([ArraySampleSource(images()), BatchTransform(2), MapTransform(to_point)])
    assert_type(loader, DataLoader[Any])
    batch, _, mask = loader.next_batch(loader.init_state(0))
    assert_type(batch, Any)
    assert_type(mask, jax.Array)
    assert batch.x.shape == (2, 4, 4)


def test_a_list_of_stages_can_be_annotated() -> None:
    loader: DataLoader[Point] = DataLoader(
        [ArraySampleSource(images()), BatchTransform(2), MapTransform(to_point)]
    )
    batch, _, _ = loader.next_batch(loader.init_state(0))
    assert_type(batch, Point)
    assert batch.x.shape == (2, 4, 4)


def test_positions_are_typed() -> None:
    loader = DataLoader(RangeSource(4))
    assert_type(loader.state_at(0, 2), PipelineState)
    assert_type(loader.indices_at(0, 2), np.ndarray)
    assert_type(loader.steps_per_epoch, int)
    assert loader.state_at(0, 2).offset == 2


@cereal.pytree_dataclass
class Squares(IndexedSource[jax.Array]):
    n: int = cereal.static_field()
    ordering: str = cereal.static_field(default="sequential")

    def __len__(self) -> int:
        return self.n

    def element_spec(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((), jnp.int32)

    def take(self, indices: jax.Array) -> jax.Array:
        return indices**2


def test_a_users_source_has_a_typed_constructor_and_elements() -> None:
    source = Squares(4, ordering="shuffle")
    assert_type(source.n, int)
    assert_type(DataLoader(BatchTransform(2)(source)), DataLoader[jax.Array])
    assert len(source) == 4


def test_cereal_jit_keeps_the_signature() -> None:
    loader = DataLoader(BatchTransform(2)(Squares(4)))

    @cereal.jit
    def step(state: PipelineState, scale: float) -> tuple[jax.Array, PipelineState]:
        batch, state, _ = loader.next_batch(state)
        return batch.sum() * scale, state

    @cereal.jit(static_argnames="scale")
    def static_step(state: PipelineState, scale: int) -> jax.Array:
        return loader.next_batch(state)[0].sum() * scale

    total, state = step(loader.init_state(0), 2.0)
    assert_type(total, jax.Array)
    assert_type(state, PipelineState)
    assert_type(static_step(state, scale=2), jax.Array)
    assert float(total) == 2.0


def test_combined_sources_have_the_type_of_their_sources() -> None:
    source = ArraySampleSource(images())
    assert_type(SliceSource(source, range(3)), SliceSource[Images])
    assert_type(RepeatSource(source, 2), RepeatSource[Images])
    assert_type(ConcatSource([source, source]), ConcatSource[Images])
    assert_type(MixSource([source, SliceSource(source, range(2))], (3, 1)), MixSource[Images])
    assert_type(split(source, (0.5, 0.5)), tuple[SliceSource[Images], ...])
    train, val = kfold(source, 2, 0)
    assert_type(train, SliceSource[Images])
    loader = DataLoader(BatchTransform(2)(val))
    assert_type(loader, DataLoader[Images])
    assert_type(select(source, lambda element: element["label"] > 0), SliceSource[Images])
    assert loader.batch_at(0, 0)[0]["image"].shape == (2, 4, 4)


def test_stages_that_choose_or_keep_elements_keep_the_type() -> None:
    source = ArraySampleSource(images())
    assert_type(FilterTransform(lambda element: element["label"] > 0)(source), Source[Images])
    assert_type(CacheTransform("host")(source), Source[Images])
    assert_type(UnbatchTransform()(BatchTransform(2)(source)), Source[Images])


def test_rollouts_keep_their_type() -> None:
    from tests.rl.corridor import walk

    source: cereal.rl.RolloutSource = walk()
    loader = DataLoader(BatchTransform(4)(source))
    assert_type(loader, DataLoader[cereal.rl.Transition])
    state = loader.set_policy_state(loader.init_state(0), {"stride": 1})
    for batch, _ in loader.iterate(state, steps=1):
        assert_type(batch, cereal.rl.Transition)
        assert batch["reward"].shape == (4,)
