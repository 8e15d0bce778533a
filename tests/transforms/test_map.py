from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal.testing import check_loader, check_transform

DATA = {"x": np.arange(21, dtype=np.float32).reshape(7, 3), "y": np.arange(7, dtype=np.int32)}
SOURCE = cereal.ArraySampleSource(DATA, ordering="sequential")
BATCH = cereal.BatchTransform(4, pad_last_batch=True)


@cereal.pytree_dataclass
class Scale:
    """A callable with an array, as a module of a neural network library is."""

    weight: jax.Array

    def __call__(self, element: Any) -> Any:
        return {**element, "x": element["x"] * self.weight}


def double(element: Any) -> Any:
    return {**element, "x": element["x"] * 2}


def batches(*stages: Any, steps: int | None = None) -> list[Any]:
    return [batch for batch, _ in cereal.DataLoader([SOURCE, *stages]).iterate(steps=steps)]


def test_a_map_keeps_the_contract() -> None:
    check_transform(cereal.MapTransform(double), SOURCE)


def test_it_is_the_same_before_and_after_batching() -> None:
    stage = cereal.MapTransform(double)
    for before, after in zip(batches(stage, BATCH), batches(BATCH, stage), strict=True):
        jax.tree.map(np.testing.assert_array_equal, before, after)


def test_a_function_of_one_argument_sees_the_batch() -> None:
    seen = []
    batches(BATCH, cereal.MapTransform(lambda batch: seen.append(batch["x"].shape) or batch))
    assert set(seen) == {(4, 3)}


def test_before_batching_it_sees_one_element() -> None:
    seen = []
    batches(cereal.MapTransform(lambda element: seen.append(element["x"].shape) or element), BATCH)
    assert set(seen) == {(3,)}


def test_a_function_of_two_arguments_sees_the_mask() -> None:
    def blank(batch: Any, mask: Any) -> Any:
        return {**batch, "y": jnp.where(mask, batch["y"], -1)}

    last = batches(BATCH, cereal.MapTransform(blank))[-1]
    assert last["y"].tolist() == [4, 5, 6, -1]


def test_before_batching_the_mask_is_that_of_the_element() -> None:
    def blank(element: Any, mask: Any) -> Any:
        assert mask.shape == ()
        return {**element, "y": jnp.where(mask, element["y"], -1)}

    last = batches(cereal.MapTransform(blank), BATCH)[-1]
    assert last["y"].tolist() == [4, 5, 6, -1]


def test_keys_may_be_added_dropped_and_renamed() -> None:
    stage = cereal.MapTransform(lambda b: {"image": b["x"], "sum": b["x"].sum(-1)})
    for stages in ([stage, BATCH], [BATCH, stage]):
        spec = cereal.DataLoader([SOURCE, *stages]).element_spec()
        assert {name: leaf.shape for name, leaf in spec.items()} == {"image": (4, 3), "sum": (4,)}


def test_a_scalar_for_the_whole_batch_is_legal() -> None:
    stage = cereal.MapTransform(lambda b: {**b, "mean": b["x"].mean(), "n": 3})
    loader = cereal.DataLoader([SOURCE, BATCH, stage])
    check_loader(loader)
    assert loader.element_spec()["mean"].shape == ()
    batch, _ = loader.batch_at(0, 0)
    assert float(batch["mean"]) == DATA["x"][:4].mean()
    assert int(batch["n"]) == 3


def test_other_structures_and_single_arrays_are_legal() -> None:
    stage = cereal.MapTransform(lambda b: (b["x"], [b["y"]]))
    (x, (y,)) = batches(BATCH, stage)[0]
    assert (x.shape, y.tolist()) == ((4, 3), [0, 1, 2, 3])


def test_partials_jnp_functions_and_jitted_functions_are_functions() -> None:
    source = cereal.RangeSource(4)
    for fn in (jnp.square, jax.jit(lambda x: x * x), functools.partial(jnp.power, 1), abs):
        loader = cereal.DataLoader([source, cereal.MapTransform(fn), cereal.BatchTransform(4)])
        expected = [int(fn(jnp.int32(value))) for value in range(4)]
        assert loader.batch_at(0, 0)[0].tolist() == expected


def test_the_arrays_of_a_callable_are_leaves_of_the_loader() -> None:
    stage = cereal.MapTransform(Scale(jnp.float32(3)))
    loader = cereal.DataLoader([SOURCE, BATCH, stage])
    assert any(leaf is stage.fn.tree.weight for leaf in jax.tree.leaves(loader))
    np.testing.assert_array_equal(loader.batch_at(0, 0)[0]["x"], DATA["x"][:4] * 3)


def test_one_program_serves_callables_that_differ_in_their_arrays() -> None:
    traces = []

    @jax.jit
    def first(loader: cereal.DataLoader[Any]) -> Any:
        traces.append(1)
        return loader.next_batch(loader.init_state(0))[0]["x"]

    for weight in (1.0, 2.0, 3.0):
        loader = cereal.DataLoader([SOURCE, BATCH, cereal.MapTransform(Scale(jnp.float32(weight)))])
        np.testing.assert_array_equal(first(loader), DATA["x"][:4] * weight)
    assert len(traces) == 1


def test_gradients_reach_the_arrays_of_a_callable() -> None:
    def total(weight: jax.Array) -> jax.Array:
        loader = cereal.DataLoader([SOURCE, BATCH, cereal.MapTransform(Scale(weight))])
        return loader.next_batch(loader.init_state(0))[0]["x"].sum()

    assert float(jax.grad(total)(jnp.float32(2))) == DATA["x"][:4].sum()


def test_a_right_override_is_accepted_and_a_wrong_one_refused() -> None:
    right = {"x": jax.ShapeDtypeStruct((4, 3), jnp.float32), "y": np.zeros(4, np.int64)}
    stage = cereal.MapTransform(double, element_spec_override=right)
    assert cereal.DataLoader([SOURCE, BATCH, stage]).element_spec()["y"].dtype == jnp.int32
    wrong = {**right, "x": jax.ShapeDtypeStruct((4, 4), jnp.float32)}
    message = (
        r"^stage 2: MapTransform\(double\) returns \{x: float32\[4,3\], .*, not the "
        r"`element_spec_override` \{x: float32\[4,4\], .*; correct one of them"
    )
    with pytest.raises(cereal.PipelineError, match=message):
        cereal.DataLoader([SOURCE, BATCH, cereal.MapTransform(double, element_spec_override=wrong)])


def test_an_override_that_is_no_spec_is_refused_when_built() -> None:
    with pytest.raises(
        cereal.PipelineError, match=r"^MapTransform: `element_spec_override\['x'\]`"
    ):
        cereal.MapTransform(double, element_spec_override={"x": 3})


@pytest.mark.parametrize("fn", [None, 7, "double"])
def test_what_cannot_be_called_is_refused_when_built(fn: Any) -> None:
    message = (
        rf"^MapTransform: `fn` must be callable, got {type(fn).__name__} .*MapTransform\(lambda"
    )
    with pytest.raises(cereal.PipelineError, match=message):
        cereal.MapTransform(fn)


def test_a_stateful_numpy_function_is_told_that_it_is_traced() -> None:
    stage = cereal.MapTransform(lambda batch: np.asarray(batch["x"]))
    with pytest.raises(cereal.PipelineError, match=r"^stage 2: MapTransform\(<lambda>\) failed on"):
        cereal.DataLoader([SOURCE, BATCH, stage])
