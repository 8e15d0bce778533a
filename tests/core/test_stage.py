"""Stages over elements, batches and streams: specs, labels, and errors that name the stage."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import Tracer

import cereal
from cereal.core.pipeline import IndexedPipeline, Pipeline
from cereal.core.stage import Stage
from cereal.core.stream_stages import StreamStage
from cereal.core.traits import StageTraits
from cereal.testing import check_source, check_transform

DATA = {"x": np.arange(14, dtype=np.float32).reshape(7, 2), "y": np.arange(7, dtype=np.int32)}
SOURCE = cereal.ArraySampleSource(DATA, ordering="sequential")
BATCH = cereal.BatchTransform(3)


@cereal.pytree_dataclass
class Countdown(cereal.Source[jax.Array]):
    """A stream: n, n - 1, ..., with a state of its own."""

    n: int = cereal.static_field(default=10)
    steps_per_epoch: int = cereal.static_field(default=5)

    def element_spec(self) -> Any:
        return jax.ShapeDtypeStruct((), jnp.int32)

    def init_state(self, key: Any) -> Any:
        return jnp.int32(self.n)

    def next(self, state: Any) -> Any:
        return state, jnp.bool_(True), state - 1


@cereal.pytree_dataclass
class KeepEven(Stage[Any, Any]):
    """A stage of a user's own that masks: odd labels are not real."""

    traits = StageTraits(changes_mask=True)

    def apply(self, values: Any, mask: Any, keys: Any, lanes: tuple[int, ...]) -> Any:
        return values, mask & (values["y"] % 2 == 0)


@cereal.pytree_dataclass
class PlusOne(cereal.Transform[Any, Any]):
    """A transform of a user's own, by another one."""

    def __call__(self, source: cereal.Source[Any]) -> cereal.Source[Any]:
        return cereal.MapTransform(add_one)(source)


def add_one(element: Any) -> Any:
    return {**element, "y": element["y"] + 1}


def test_where_a_stage_stands_decides_what_it_makes() -> None:
    stage = cereal.MapTransform(add_one)
    assert type(stage(SOURCE)) is IndexedPipeline
    assert type(stage(BATCH(SOURCE))) is Pipeline
    assert isinstance(cereal.MapTransform(jnp.square)(Countdown()), StreamStage)


def test_specs_are_inferred_without_running_the_function() -> None:
    calls = []

    def fn(element: Any) -> Any:
        calls.append(type(element["x"]))
        return {"z": element["x"].astype(jnp.bfloat16).sum(), **element}

    before = cereal.MapTransform(fn)(SOURCE)
    assert before.element_spec()["z"] == jax.ShapeDtypeStruct((), jnp.bfloat16)
    assert all(issubclass(kind, Tracer) for kind in calls)


def test_a_stage_before_batching_is_an_indexed_source() -> None:
    mapped = cereal.MapTransform(add_one)(SOURCE)
    assert isinstance(mapped, cereal.IndexedSource)
    assert len(mapped) == 7
    taken = mapped.take(jnp.array([4, 1], jnp.int32))
    np.testing.assert_array_equal(taken["y"], [5, 2])


def test_random_elements_cannot_be_taken_without_a_key() -> None:
    source = cereal.RandomMapTransform(lambda element, key: element)(SOURCE)
    assert isinstance(source, cereal.IndexedSource)
    message = r"RandomMapTransform\(<lambda>\) is random: .* read them with `next\(state\)`"
    with pytest.raises(cereal.UsageError, match=message):
        source.take(jnp.array([0], jnp.int32))


def test_a_stage_that_masks_keeps_the_rows_and_says_so_on_both_sides_of_batching() -> None:
    check_transform(KeepEven(), SOURCE)
    for stages in ([KeepEven(), BATCH], [BATCH, KeepEven()]):
        loader = cereal.DataLoader([SOURCE, *stages])
        masks = [mask.tolist() for _, mask in loader.iterate(steps=2)]
        assert masks == [[True, False, True], [False, True, False]]


def test_masks_of_a_stage_and_of_padding_are_both_heeded() -> None:
    batch = cereal.BatchTransform(4, pad_last_batch=True)
    for stages in ([KeepEven(), batch], [batch, KeepEven()]):
        loader = cereal.DataLoader([SOURCE, *stages])
        masks = [mask.tolist() for _, mask in loader.iterate()]
        assert masks == [[True, False, True, False], [True, False, True, False]]


def test_a_transform_of_a_user_and_a_plain_function_are_stages() -> None:
    check_transform(PlusOne(), SOURCE)
    expected = [1, 2, 3]
    for stage in (PlusOne(), lambda source: PlusOne()(source)):
        batch, _, _ = (loader := cereal.DataLoader([SOURCE, stage, BATCH])).next_batch(
            loader.init_state(0)
        )
        assert batch["y"].tolist() == expected


def test_stages_over_a_stream_keep_its_contract() -> None:
    source = cereal.MapTransform(jnp.square)(Countdown())
    check_source(source)
    loader = cereal.DataLoader(source)
    values = [int(value) for value, _ in loader.iterate(loader.init_state(0))]
    assert values == [100, 81, 64, 49, 36]


def test_transforms_print_as_their_labels() -> None:
    assert repr(cereal.MapTransform(add_one)) == "MapTransform(add_one)"
    assert repr(PlusOne()) == "PlusOne"
    assert repr(cereal.MapTransform(add_one)(SOURCE)) == "MapTransform(add_one)"


# What goes wrong


@pytest.mark.parametrize("value", [3, "source", [SOURCE], None, SOURCE.data])
def test_what_is_no_source_is_refused_with_the_line_to_write(value: Any) -> None:
    for stage in (cereal.MapTransform(add_one), BATCH, cereal.DevicePutTransform("cpu:0")):
        message = rf"\(.*\) must be called with a source, got {type(value).__name__}; write `"
        with pytest.raises(cereal.PipelineError, match=message):
            stage(value)


def test_the_error_of_a_function_names_the_stage_its_position_and_what_it_was_given() -> None:
    def broken(batch: Any) -> Any:
        return batch["z"]

    message = r"^stage 2: MapTransform\(broken\) failed on \{x: float32\[3,2\], .*KeyError: 'z'"
    with pytest.raises(cereal.PipelineError, match=message) as caught:
        cereal.DataLoader([SOURCE, BATCH, cereal.MapTransform(broken)])
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("text", r"its result is str \('text'\); return arrays of fixed shape and dtype"),
        ({"x": "a"}, r"\['x'\] is str"),
        ([object()], r"\[0\] is object"),
        (np.array(["a"]), "its result is ndarray"),
        (None, r"returned None, which holds no array; did `fn` forget to `return` the batch\?"),
        ({}, r"returned \{\}, which holds no array"),
    ],
)
def test_a_function_that_returns_no_arrays_is_refused_when_built(result: Any, message: str) -> None:
    for stages in ([BATCH], []):
        with pytest.raises(
            cereal.PipelineError, match=r"stage \d: MapTransform\(<lambda>\) .*" + message
        ):
            cereal.DataLoader([SOURCE, *stages, cereal.MapTransform(lambda batch: result)])


@pytest.mark.parametrize("source", [SOURCE, BATCH(SOURCE), Countdown()])
def test_a_function_whose_result_changes_between_traces_is_told_so(source: Any) -> None:
    names = iter("abcdef")
    stage = cereal.MapTransform(lambda element: {next(names): jnp.float32(0)})
    mapped = stage(source)
    message = (
        r"MapTransform\(<lambda>\) now returns \{b: .*, but returned \{a: .* when the pipeline"
    )
    with pytest.raises(cereal.PipelineError, match=message):
        mapped.next(mapped.init_state(0))


def test_a_function_whose_dtype_changes_between_traces_is_told_so() -> None:
    dtypes = iter([jnp.float32, jnp.int32])
    mapped = cereal.MapTransform(lambda x: x.astype(next(dtypes)))(cereal.RangeSource(4))
    with pytest.raises(cereal.PipelineError, match=r"now returns int32\[\], but returned float32"):
        mapped.next(mapped.init_state(0))
