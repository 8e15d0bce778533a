from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import cereal
from cereal.monitor.drawing import draw, lines_of, summary


class Pair(NamedTuple):
    image: Any
    label: Any


@cereal.pytree_dataclass
class Ones(cereal.Source[jax.Array]):
    steps_per_epoch: int = cereal.static_field(default=5_000)

    def element_spec(self) -> Any:
        return jax.ShapeDtypeStruct((3,), jnp.bfloat16)

    def init_state(self, key: Any) -> Any:
        return jnp.int32(0)

    def next(self, state: Any) -> Any:
        return jnp.ones(3, jnp.bfloat16), jnp.bool_(True), state


def flip(element: Any, key: jax.Array) -> Any:
    return element


def brightness(batch: Any) -> Any:
    return {**batch, "low": batch["image"].min() * 1.0}


DATA = {"image": np.zeros((1_500, 8, 8), np.uint8), "y": np.zeros(1_500)}

DRAWING = """
DataLoader: 1,500 elements, 24 steps an epoch
ArraySampleSource(ordering=shuffle)            {image: uint8[8,8], y: float32[]}
└─ RandomMapTransform(flip)                    {image: uint8[8,8], y: float32[]}
   └─ BatchTransform(64, pad_last_batch=True)  {image: uint8[64,8,8], y: float32[64]}
      └─ FlattenImageTransform('image')        {image: uint8[64,64], y: float32[64]}
         └─ MapTransform(brightness)           {image: uint8[64,64], low: float32[], y: float32[64]}
            └─ RenameTransform(y->t)           {image: uint8[64,64], low: float32[], t: float32[64]}
"""


def test_a_loader_prints_as_the_drawing_of_its_pipeline() -> None:
    loader = cereal.DataLoader(
        [
            cereal.ArraySampleSource(DATA),
            cereal.RandomMapTransform(flip),
            cereal.BatchTransform(64, pad_last_batch=True),
            cereal.FlattenImageTransform(),
            cereal.MapTransform(brightness),
            cereal.RenameTransform({"y": "t"}),
        ]
    )
    assert repr(loader) == DRAWING.strip()


def test_a_source_alone_is_one_line() -> None:
    assert draw(cereal.RangeSource(3, 9)) == "RangeSource(3, 9, ordering=sequential)  int32[]"


def test_a_pipeline_called_by_hand_is_drawn_like_one_in_a_list() -> None:
    source, stage, batch = (
        cereal.RangeSource(9),
        cereal.MapTransform(jnp.square),
        cereal.BatchTransform(3),
    )
    assert repr(cereal.DataLoader(batch(stage(source)))) == repr(
        cereal.DataLoader([source, stage, batch])
    )


def test_stages_come_in_the_order_of_the_flow() -> None:
    source = cereal.RangeSource(9)
    batched = cereal.BatchTransform(3)(source)
    mapped = cereal.MapTransform(jnp.square)(batched)
    assert lines_of(mapped)[0].of is source
    labels = [line.of._label for line in lines_of(mapped)]
    assert labels == [source._label, batched._label, mapped._label]


def test_named_tuples_indices_and_index_keys_are_drawn() -> None:
    pair = cereal.ArraySampleSource(Pair(np.zeros((4, 2)), np.arange(4)), ordering=[2, 1])
    label, _, spec = draw(pair).partition("  ")
    assert label == f"ArraySampleSource(ordering={pair._order.name})"
    assert spec == "Pair(image=float32[2], label=int32[])"
    indexed = cereal.ArraySampleSource({"x": np.zeros(4)}, index_key="i")
    assert draw(indexed) == (
        "ArraySampleSource(ordering=shuffle, index_key='i')  {x: float32[], i: int32[]}"
    )


def test_what_nobody_shuffles_is_drawn_in_its_own_order() -> None:
    batch = cereal.BatchTransform(2)
    for bare in ([1, 2, 3, 4], np.arange(4), cereal.split(cereal.RangeSource(4), (1.0,))[0]):
        loader = cereal.DataLoader([bare, batch])
        wanted = "4 elements, the data in its own order, 2 steps an epoch"
        assert summary(loader.source) == wanted
        assert repr(loader).splitlines()[0] == f"DataLoader: {wanted}"
    shuffled = cereal.DatasetSource([1, 2, 3, 4], ordering="shuffle")
    assert summary(batch(shuffled)) == "4 elements, 2 steps an epoch"
    stream = cereal.IterableSource(lambda: iter([1, 2, 3]))
    assert summary(batch(stream)) == "as many elements as it gives"


def test_data_that_varies_without_the_key_is_drawn_as_such() -> None:
    def make(epoch: int) -> Any:
        return iter([epoch])

    def draw_from(epoch: int, key: Any) -> Any:
        return iter([epoch + int(key[1])])

    alone, batch = cereal.IterableSource(make, length=1), cereal.BatchTransform(1)
    said = "1 elements, epochs differ by the data itself, whatever the key, 1 steps an epoch"
    assert summary(batch(alone)) == said
    keyed = cereal.IterableSource(draw_from, length=1)
    drawn = cereal.HostRandomMapTransform(lambda x, rng: x + int(rng.integers(9)))(alone)
    for other in (keyed, drawn):
        assert summary(batch(other)) == "1 elements, 1 steps an epoch"


def test_a_forgotten_batch_is_drawn() -> None:
    loader = cereal.DataLoader([cereal.ArraySampleSource(np.arange(4))])
    assert summary(loader.source) == (
        "4 elements, 4 steps an epoch of one element each: there is no BatchTransform"
    )


def test_a_stream_is_drawn_with_its_steps() -> None:
    source = cereal.BatchTransform(2)(Ones())
    assert summary(source) == "2,500 steps an epoch"
    assert draw(source) == "Ones                  bfloat16[3]\n└─ BatchTransform(2)  bfloat16[2,3]"


def test_placements_and_callbacks_are_drawn_by_name() -> None:
    def log(batch: Any, mask: Any) -> None: ...

    stages = [cereal.HostCallbackTransform(log), cereal.DevicePutTransform("cpu:1")]
    lines = repr(cereal.DataLoader([cereal.RangeSource(4), *stages])).splitlines()
    assert lines[2].startswith("└─ HostCallbackTransform(log)")
    assert "DevicePutTransform(" in lines[3]
