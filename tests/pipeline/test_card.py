"""The contract that fits on a card: what a user's own source must have, and may be called."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal import BatchTransform, DataLoader, PipelineError
from cereal.base.pytree import made_classes
from cereal.pipeline.source import Source
from cereal.testing import check_loader, check_source

# What properties and methods of sources were called before they went behind one attribute.
FORMER = (  # noqa: SIM905
    "step step_many inner lanes mask_shape callbacks host light placement label order length "
    "remainder random_stages masks varies random route fetch next_rows read produces "
    "masks_on_host produce sample filler passes quick ahead stream moved unknown_length "
    "bookmark service plan fingerprint walk wide keyed fixed once roots members on_host "
    "overlap"
).split()


@cereal.pytree_dataclass
class Pictures(cereal.IndexedSource[Any]):
    image: jax.Array
    label: jax.Array
    length: int = cereal.static_field(default=6)
    order: str = cereal.static_field(default="mine")
    random: bool = cereal.static_field(default=True)
    ordering: str = cereal.static_field(default="shuffle")

    def __len__(self) -> int:
        return self.length

    def element_spec(self) -> Any:
        return {
            "image": jax.ShapeDtypeStruct((2,), jnp.float32),
            "label": jax.ShapeDtypeStruct((), jnp.int32),
        }

    def take(self, indices: Any) -> Any:
        return {"image": self.image[indices], "label": self.label[indices]}


PICTURES = Pictures(jnp.arange(12.0).reshape(6, 2), jnp.arange(6))


def test_a_source_may_call_its_fields_what_it_likes() -> None:
    check_source(PICTURES)
    loader = DataLoader([PICTURES, BatchTransform(3)])
    check_loader(loader)
    labels = [int(x) for batch, _ in loader.iterate(loader.init_state(1)) for x in batch["label"]]
    assert sorted(labels) == list(range(6))


@pytest.mark.parametrize("name", FORMER)
def test_no_name_that_the_library_once_took_is_taken(name: str) -> None:
    made = type(
        "Own",
        (cereal.IndexedSource,),
        {
            "__annotations__": {name: Any},
            "__len__": lambda self: 4,
            "element_spec": lambda self: jax.ShapeDtypeStruct((), jnp.int32),
            "take": lambda self, indices: indices + getattr(self, name),
        },
    )
    source: Any = cereal.pytree_dataclass(made)(jnp.int32(7))
    loader = DataLoader([source, BatchTransform(2)])
    assert [batch.tolist() for batch, _ in loader] == [[7, 8], [9, 10]]


@pytest.mark.parametrize("name", ["next", "take", "traits", "element_spec", "steps_per_epoch"])
def test_a_field_that_collides_is_refused_with_its_name(name: str) -> None:
    fields: dict[str, Any] = {"__annotations__": {name: int}}
    with pytest.raises(PipelineError, match=f"^Own: a field cannot be called `{name}`, because"):
        cereal.pytree_dataclass(type("Own", (cereal.IndexedSource,), fields))


def test_a_stream_may_have_the_steps_of_an_epoch_as_a_field() -> None:
    @cereal.pytree_dataclass
    class Own(cereal.Source[Any]):
        steps_per_epoch: int = cereal.static_field(default=3)
        label: str = cereal.static_field(default="mine")

        def element_spec(self) -> Any:
            return jax.ShapeDtypeStruct((), jnp.int32)

        def init_state(self, key: Any) -> Any:
            return jnp.int32(0)

        def next(self, state: Any) -> Any:
            return state, jnp.bool_(True), state + 1

    loader = DataLoader(Own())
    assert [int(x) for x, _ in loader.iterate(loader.init_state(0))] == [0, 1, 2]


OURS = [cls for cls in made_classes if cls.__module__.partition(".")[0] == "cereal"]
SOURCES = [cls for cls in OURS if issubclass(cls, Source)]


@pytest.mark.parametrize("cls", SOURCES, ids=lambda cls: cls.__name__)
def test_a_source_shows_few_names(cls: Any) -> None:
    fields = {field.name for field in dataclasses.fields(cls)}
    shown = [name for name in {*dir(cls), *fields} if not name.startswith("_")]
    assert len(shown) <= 14, sorted(shown)


def test_what_a_users_own_source_shows() -> None:
    fields = {field.name for field in dataclasses.fields(Pictures)}
    shown = sorted(name for name in dir(PICTURES) if not name.startswith("_"))
    assert set(shown) - fields == {
        *("close", "element_spec", "init_state", "next", "next_many", "steps_per_epoch"),
        *("take", "traits"),
    }


@pytest.mark.parametrize("cls", OURS, ids=lambda cls: cls.__name__)
def test_no_class_is_made_of_many(cls: Any) -> None:
    ours = [base for base in cls.__mro__ if base.__module__.partition(".")[0] == "cereal"]
    assert len(ours) <= 6, ours


def test_traits_are_found_out_once_and_stay_with_the_pipeline() -> None:
    calls = []

    @cereal.pytree_dataclass
    class Own(Pictures):
        def __len__(self) -> int:
            calls.append(self)
            return 6

    source = Own(PICTURES.image, PICTURES.label)
    pipeline = BatchTransform(2)(cereal.MapTransform(lambda x: x)(source))
    before = len(calls)
    assert pipeline.traits is pipeline.traits
    assert (pipeline.traits.lanes, pipeline.traits.length) == ((2,), 6)
    assert pipeline.traits.random
    assert len(calls) == before
    with pytest.raises(dataclasses.FrozenInstanceError):
        pipeline.traits.lanes = (3,)  # type: ignore[misc]
    assert hash(pipeline.traits) == hash(pipeline.traits.but())


def test_a_pipeline_is_a_source_and_a_list_of_stages() -> None:
    numbers = np.arange(12.0)
    pipeline: Any = DataLoader(
        [
            cereal.ArraySampleSource({"x": numbers}),
            cereal.HostMapTransform(lambda x: x),
            BatchTransform(2),
            cereal.HostMapTransform(lambda x: x),
            BatchTransform(3),
            cereal.MapTransform(lambda x: x),
        ]
    ).source
    names = [type(placed.stage).__name__ for placed in pipeline.stages[:-1]]
    assert names == ["HostMapTransform", "BatchTransform", "HostMapTransform", "BatchTransform"]
    assert [placed.lanes for placed in pipeline.stages] == [(), (), (2,), (2,), (3, 2)]
    assert len(pipeline._host_stages) == 3
