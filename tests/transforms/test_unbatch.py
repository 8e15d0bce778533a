"""UnbatchTransform: from batches back to elements, indexed where they can be."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from tests.rl.corridor import walk
from tests.slowly import slowly

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    FilterTransform,
    MapTransform,
    RandomMapTransform,
    RangeSource,
    UnbatchTransform,
)
from cereal.testing import assert_same, check_loader, check_resume, check_source

UNBATCH = UnbatchTransform()
DOUBLE = MapTransform(lambda x: x * 2)
AGAIN = [BatchTransform(4), MapTransform(lambda batch: dict(batch)), UNBATCH]
STACKED = {"x": np.arange(24, dtype=np.float32).reshape(4, 3, 2), "n": np.arange(12).reshape(4, 3)}


@cereal.pytree_dataclass
class Counter(cereal.Source[Any]):
    """0, 1, 2, ... without end; an epoch is eight of them."""

    steps_per_epoch: int = cereal.static_field(default=8)

    def element_spec(self) -> Any:
        return {"n": jax.ShapeDtypeStruct((), jnp.int32)}

    def init_state(self, key: Any) -> Any:
        return jnp.int32(0)

    def next(self, state: Any) -> Any:
        return {"n": state}, (state + 1) % 3 != 0, state + 1


def numbers(*stages: Any, steps: int = 12, key: int = 0) -> list[tuple[Any, Any]]:
    loader = DataLoader(list(stages))
    found = loader.iterate(loader.init_state(key), steps=steps)
    return [(batch.tolist(), mask.tolist()) for batch, mask in found]


def noise(x: jax.Array, key: jax.Array) -> jax.Array:
    return x ^ jax.random.bits(key, (), jnp.uint32).astype(jnp.int32)


# After batching


def test_batching_and_unbatching_is_the_pipeline_before() -> None:
    source = RangeSource(10, ordering="shuffle")
    loader = DataLoader([source, BatchTransform(4), UNBATCH])
    assert loader.source is source
    again = DataLoader([source, DOUBLE, BatchTransform(4), UNBATCH, BatchTransform(3)])
    assert numbers(again.source, steps=5) == numbers(source, DOUBLE, BatchTransform(3), steps=5)


def test_microbatches_are_taken_apart_one_axis_at_a_time() -> None:
    eight, four = BatchTransform(8), BatchTransform(4)
    source = RangeSource(100, ordering="shuffle")
    plain = numbers(source, eight, steps=5)
    assert numbers(source, eight, four, UNBATCH, steps=5) == plain
    assert numbers(source, eight, four, UNBATCH, UNBATCH, steps=5) == numbers(source, steps=5)
    streamed = DataLoader([source, eight, four, DOUBLE, UNBATCH])
    assert streamed.element_spec() == jax.ShapeDtypeStruct((8,), jnp.int32)
    assert streamed.steps_per_epoch == 16
    found = numbers(streamed.source, steps=5)
    assert [(np.array(batch) // 2).tolist() for batch, _ in found] == [x for x, _ in plain]
    assert [mask for _, mask in found] == [[True] * 8] * 5


def test_a_stage_between_works_on_whole_batches() -> None:
    turned = MapTransform(lambda batch: batch[::-1])
    found = numbers(RangeSource(6), BatchTransform(3), turned, UNBATCH, steps=9)
    assert [x for x, _ in found] == [2, 1, 0, 5, 4, 3, 2, 1, 0]


def test_a_random_stage_between_gives_every_element_what_it_gives_without_batches() -> None:
    source, stage = RangeSource(6, ordering="shuffle"), RandomMapTransform(noise)
    apart = numbers(source, BatchTransform(3), stage, UNBATCH, key=2)
    assert apart == numbers(source, stage, key=2)


def test_masks_go_with_their_elements() -> None:
    large = FilterTransform(lambda x: x >= 3)
    for stages in (
        [BatchTransform(4, pad_last_batch=True), large, UNBATCH],
        [large, BatchTransform(4, pad_last_batch=True), DOUBLE, UNBATCH],
    ):
        found = numbers(RangeSource(6), *stages, steps=16)
        assert [mask for _, mask in found] == ([False] * 3 + [True] * 3 + [False] * 2) * 2
        assert len(DataLoader([RangeSource(6), *stages])) == 8


def test_a_padded_epoch_has_its_real_elements_once() -> None:
    loader = DataLoader([RangeSource(10), BatchTransform(4, pad_last_batch=True), UNBATCH])
    pairs = list(loader.iterate(loader.init_state(0)))
    assert [int(x) for x, mask in pairs if mask] == list(range(10))
    again = DataLoader([loader.source, BatchTransform(6)])
    assert cereal.evaluate(again, lambda batch: batch) == 4.5


def test_dropped_elements_stay_dropped() -> None:
    loader = DataLoader([RangeSource(10), BatchTransform(4, drop_last=True), UNBATCH])
    assert loader.steps_per_epoch == 8
    assert [int(x) for x, _ in loader.iterate(loader.init_state(0), steps=16)] == [*range(8)] * 2


def test_batches_are_made_anew_in_another_size() -> None:
    found = numbers(RangeSource(12), BatchTransform(4), DOUBLE, UNBATCH, BatchTransform(3), steps=4)
    assert [batch for batch, _ in found] == (2 * np.arange(12)).reshape(4, 3).tolist()


@pytest.mark.parametrize("rule", [slowly({}), {"pad_last_batch": True}], ids=str)
def test_the_stream_resumes_at_every_element(rule: dict[str, Any]) -> None:
    source = RangeSource(6, ordering="shuffle")
    loader = DataLoader([source, BatchTransform(4, **rule), DOUBLE, UNBATCH])
    check_source(loader.source)
    check_resume(loader)
    check_loader(loader)


def test_a_stage_after_it_draws_new_keys_for_every_element() -> None:
    stages = [BatchTransform(4), DOUBLE, UNBATCH]
    plain = numbers(RangeSource(8), *stages)
    found = numbers(RangeSource(8), *stages, RandomMapTransform(noise))
    drawn = [x ^ y for (x, _), (y, _) in zip(plain, found, strict=True)]
    assert len(set(drawn)) == 12


@pytest.mark.parametrize("between", [[], AGAIN], ids=["plain", "unbatched"])
def test_random_stages_before_and_after_it_draw_different_numbers(between: Any) -> None:
    draw = lambda name: RandomMapTransform(  # noqa: E731
        lambda element, key: {**element, name: jax.random.bits(key)}
    )
    data = ArraySampleSource({"x": np.arange(8)}, ordering="sequential")
    loader = DataLoader([data, draw("a"), *between, draw("b")])
    found = [element for element, _ in loader.iterate(loader.init_state(0))]
    assert not {int(each["a"]) for each in found} & {int(each["b"]) for each in found}


def test_it_keeps_what_later_stages_ask_for() -> None:
    drawn = [walk(num_envs=3), cereal.ReplayTransform(20, 4), UnbatchTransform()]
    masked = [walk(), FilterTransform(lambda step: step["reward"] > 0), *AGAIN]
    shuffled = [ArraySampleSource({"reward": np.ones(8), "done": np.zeros(8)}), *AGAIN]
    windows = cereal.ReplayTransform(20, 4, sequence=2)
    statistics = cereal.rl.EpisodeStatisticsTransform()
    for stages, message in (
        ([*drawn, statistics], "drawn from a buffer"),
        ([*shuffled, statistics], "were shuffled"),
        ([*drawn, windows], "drawn from a buffer"),
        ([*masked, windows], "a stage before it masks some of them"),
    ):
        with pytest.raises(cereal.PipelineError, match=message):
            DataLoader(stages)
    buffer = DataLoader([walk(num_envs=3), *AGAIN, cereal.ReplayTransform(20, 4)])
    assert buffer.source.element_spec()["reward"].shape == (4,)  # items of single environments
    assert DataLoader(drawn).source.traits.in_place


def test_batches_of_a_stream_are_taken_apart_and_put_together() -> None:
    loader = DataLoader([Counter(), BatchTransform(4), UNBATCH])
    pairs = [(int(x["n"]), bool(m)) for x, m in loader.iterate(loader.init_state(0), steps=10)]
    assert pairs == [(n, (n + 1) % 3 != 0) for n in range(10)]
    again = DataLoader([Counter(), BatchTransform(4), UNBATCH, BatchTransform(3)])
    check_loader(again)
    check_resume(again)


def test_random_keys_can_be_elements_too() -> None:
    keys = jax.random.split(jax.random.key(0), 6)
    source = ArraySampleSource(keys, ordering="sequential")
    loader = DataLoader([source, BatchTransform(3), MapTransform(lambda k: k), UNBATCH])
    found = [key for key, _ in loader.iterate(loader.init_state(0))]
    np.testing.assert_array_equal(
        [jax.random.key_data(key) for key in found], jax.random.key_data(keys)
    )


def test_elements_are_handed_out_on_the_device_of_their_batches() -> None:
    there = jax.devices()[2]
    put = cereal.DevicePutTransform(there)
    for stages in ([BatchTransform(4), put, UNBATCH], [put, BatchTransform(4), DOUBLE, UNBATCH]):
        batch, mask = next(DataLoader([RangeSource(8), *stages]).iterate())
        assert batch.devices() == {there}
        assert mask.devices() == {there}


def test_batches_spread_over_devices_are_not_taken_apart() -> None:
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    put = cereal.DevicePutTransform(NamedSharding(mesh, PartitionSpec("data")))
    with pytest.raises(cereal.PipelineError, match="DevicePutTransform with a sharding"):
        DataLoader([RangeSource(8), BatchTransform(4), put, UNBATCH])


# Elements that are batches


def unstacked(ordering: str = "sequential") -> Any:
    return UNBATCH(ArraySampleSource(STACKED, ordering=ordering))


def test_elements_that_are_batches_stay_indexed() -> None:
    source = unstacked()
    assert isinstance(source, cereal.IndexedSource)
    assert len(source) == 12
    assert source.element_spec()["x"] == jax.ShapeDtypeStruct((2,), jnp.float32)
    batch, _ = DataLoader([source, BatchTransform(5)]).batch_at(0, 1)
    assert batch["n"].tolist() == [5, 6, 7, 8, 9]
    np.testing.assert_array_equal(batch["x"], STACKED["x"].reshape(12, 2)[5:10])


@pytest.mark.slow
def test_they_are_shuffled_as_elements_and_keep_the_contract(strict_jax: None) -> None:
    loader = DataLoader([unstacked("shuffle"), BatchTransform(5, pad_last_batch=True)])
    check_loader(loader)
    check_resume(loader, epochs=1)
    batches = loader.iterate(loader.init_state(0))
    epoch = [n for batch, mask in batches for n in batch["n"][mask].tolist()]
    assert sorted(epoch) == list(range(12))
    assert epoch != list(range(12))


def test_they_give_what_the_reshaped_array_gives() -> None:
    flat = {"x": STACKED["x"].reshape(12, 2), "n": STACKED["n"].reshape(12)}
    arrays = ArraySampleSource(flat, ordering="shuffle")
    for stages in ([BatchTransform(5)], [BatchTransform(2), BatchTransform(3, drop_last=True)]):
        loaders = [DataLoader([each, *stages]) for each in (unstacked("shuffle"), arrays)]
        mine, theirs = (list(each.iterate(each.init_state(1), steps=4)) for each in loaders)
        assert_same(mine, theirs, "the batches")


def test_they_are_split_without_sharing_an_element() -> None:
    train, val = cereal.split(unstacked(), (0.75, 0.25), key=3)
    loaders = [DataLoader([part, BatchTransform(len(part))]) for part in (train, val)]
    parts = [loader.batch_at(0, 0)[0]["n"].tolist() for loader in loaders]
    assert sorted(parts[0] + parts[1]) == list(range(12))
    assert len(parts[1]) == 3


def test_masks_and_augmentation_of_the_whole_go_to_its_parts() -> None:
    odd = FilterTransform(lambda element: element["n"][0] % 2 == 1)

    def shift(element: Any, key: Any) -> Any:
        return {"x": element["x"] + jax.random.uniform(key), "n": element["n"]}

    source = ArraySampleSource(STACKED, ordering="sequential")
    stages = [odd, RandomMapTransform(shift), UNBATCH, BatchTransform(12)]
    batch, mask = DataLoader([source, *stages]).batch_at(0, 0)
    assert mask.tolist() == [False] * 3 + [True] * 3 + [False] * 3 + [True] * 3
    moved = np.asarray(batch["x"] - STACKED["x"].reshape(12, 2)).reshape(4, 6)
    assert (np.ptp(moved, axis=1) < 1e-5).all()
    assert len(np.unique(moved[:, 0].round(4))) == 4


def test_windows_that_overlap_are_not_split_after_being_taken_apart() -> None:
    source = UNBATCH(cereal.WindowSource(np.arange(20), 4))
    with pytest.raises(cereal.PipelineError, match="overlap, so parts of it would share data"):
        cereal.split(source, (0.5, 0.5), key=0)


def test_indexed_elements_are_handed_out_on_the_device_of_their_source() -> None:
    there = jax.devices()[2]
    source = cereal.DevicePutTransform(there)(ArraySampleSource(STACKED))
    batch, mask = DataLoader([source, UNBATCH, BatchTransform(4)]).batch_at(0, 0)
    assert batch["n"].devices() == {there}
    assert mask.devices() == {there}


# What goes wrong


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (RangeSource(4), r"needs values with one first axis, got int32\[\]"),
        (
            ArraySampleSource({"x": np.zeros((4, 3)), "y": np.zeros((4, 2))}),
            r"one first axis, got \{x: float32\[3\], y: float32\[2\]\}; take the others out",
        ),
        (ArraySampleSource({"x": np.zeros((4, 3)), "y": np.zeros(4)}), "needs values with one fir"),
        (ArraySampleSource(np.zeros((4, 0))), r"one first axis, got float32\[0\]"),
        (Counter(), r"needs values with one first axis, got \{n: int32\[\]\}"),
        (ArraySampleSource(np.zeros((4, 3)), ordering=[1, 2]), "which chooses among its elements"),
        (
            cereal.HostCallbackTransform(lambda b, m: None)(BatchTransform(2)(RangeSource(4))),
            "comes after a HostCallbackTransform",
        ),
    ],
)
def test_what_cannot_be_taken_apart_is_refused_when_built(source: Any, message: str) -> None:
    with pytest.raises(cereal.PipelineError, match=f"^stage 1: UnbatchTransform.*{message}"):
        DataLoader([source, UNBATCH])


def test_a_stream_of_elements_has_nothing_to_take_apart() -> None:
    pairs = MapTransform(lambda element: jnp.stack([element["n"]] * 2))(Counter())
    with pytest.raises(cereal.PipelineError, match="over a stream of elements: batch it first"):
        UNBATCH(pairs)


@pytest.mark.parametrize(
    "change",
    [
        lambda batch: jnp.concatenate([batch, batch]),
        lambda batch: batch[:2],
        lambda batch: batch.reshape(2, 2),
    ],
)
def test_a_stage_that_changed_the_batchs_first_axis_is_refused(change: Any) -> None:
    with pytest.raises(cereal.PipelineError, match="UnbatchTransform"):
        DataLoader([RangeSource(8), BatchTransform(4), MapTransform(change), UNBATCH])


def test_something_that_is_no_source_is_refused() -> None:
    with pytest.raises(cereal.PipelineError, match="must be called with a source, got ndarray"):
        UNBATCH(np.arange(3))  # type: ignore[arg-type]
