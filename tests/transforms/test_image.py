from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal.testing import check_transform

pytestmark = pytest.mark.optimized

BATCH = cereal.BatchTransform(3)


def source(dtype: Any, shape: tuple[int, ...] = (4, 6), key: str = "image") -> Any:
    values = np.random.default_rng(0).integers(0, 100, (5, *shape)).astype(dtype)
    values[0] = np.iinfo(dtype).max if np.issubdtype(dtype, np.integer) else 1
    return cereal.ArraySampleSource({key: values, "label": np.arange(5)}, ordering="sequential")


def image(stages: list[Any], key: str = "image") -> jax.Array:
    return cereal.DataLoader(stages).batch_at(0, 0)[0][key]


@pytest.mark.slow
@pytest.mark.parametrize(
    "transform", [cereal.NormalizeImageTransform(), cereal.FlattenImageTransform()], ids=str
)
def test_image_transforms_keep_the_contract(transform: Any) -> None:
    check_transform(transform, source(np.uint8))


# NormalizeImageTransform


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16, np.int32, np.uint32])
def test_integers_are_divided_by_the_largest_of_their_dtype(dtype: Any) -> None:
    data = source(dtype)
    expected = np.asarray(image([data, BATCH])).astype(np.float64) / np.iinfo(dtype).max
    stage = cereal.NormalizeImageTransform()
    before, after = image([data, stage, BATCH]), image([data, BATCH, stage])
    assert before.dtype == jnp.float32
    np.testing.assert_allclose(before, expected, rtol=1e-6)
    np.testing.assert_array_equal(before, after)
    assert float(before.max()) == 1.0


@pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16])
def test_floats_keep_their_values_and_change_their_dtype(dtype: Any) -> None:
    data = source(dtype)
    made = image([data, BATCH, cereal.NormalizeImageTransform()])
    assert made.dtype == jnp.float32
    np.testing.assert_array_equal(made, np.asarray(image([data, BATCH])).astype(np.float32))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, "bfloat16", np.float32])
def test_the_dtype_may_be_chosen(dtype: Any) -> None:
    made = image([source(np.uint8), BATCH, cereal.NormalizeImageTransform(dtype=dtype)])
    assert made.dtype == jnp.dtype(dtype)
    assert float(made.max()) == 1.0


def test_bfloat16_is_rounded_once_after_an_exact_division() -> None:
    every = {"image": np.arange(256, dtype=np.uint8)}
    data = cereal.ArraySampleSource(every, ordering="sequential")
    stage = cereal.NormalizeImageTransform(dtype=jnp.bfloat16)
    made = image([data, cereal.BatchTransform(256), stage])
    exact = (np.arange(256, dtype=np.float32) / np.float32(255)).astype(jnp.bfloat16)
    np.testing.assert_array_equal(np.asarray(made), exact)


def test_booleans_become_zero_and_one() -> None:
    masks = {"image": np.array([[True, False]])}
    data = cereal.ArraySampleSource(masks)
    assert image([data, cereal.BatchTransform(1), cereal.NormalizeImageTransform()]).tolist() == [
        [1, 0]
    ]


def test_the_other_keys_stay_as_they_were() -> None:
    batch, _ = cereal.DataLoader(
        [source(np.uint8), BATCH, cereal.NormalizeImageTransform(), cereal.FlattenImageTransform()]
    ).batch_at(0, 0)
    assert batch["label"].tolist() == [0, 1, 2]
    assert batch["label"].dtype == jnp.int32


def test_the_key_of_the_image_may_be_named() -> None:
    data = source(np.uint8, key="picture")
    stages = [cereal.NormalizeImageTransform("picture"), cereal.FlattenImageTransform("picture")]
    made = image([data, BATCH, *stages], "picture")
    assert (made.dtype, made.shape) == (jnp.float32, (3, 24))


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint8, bool, jnp.complex64, "x", 3])
def test_a_dtype_that_is_no_float_is_refused_when_built(dtype: Any) -> None:
    with pytest.raises(cereal.PipelineError, match="`dtype` must be a float type, got"):
        cereal.NormalizeImageTransform(dtype=dtype)


@pytest.mark.parametrize("stage", [cereal.NormalizeImageTransform, cereal.FlattenImageTransform])
def test_an_image_is_named_by_a_string(stage: Any) -> None:
    name = stage.__name__
    with pytest.raises(cereal.PipelineError, match=rf"got a source; write `{name}\(\)\(source\)`"):
        stage(source(np.uint8))
    with pytest.raises(cereal.PipelineError, match=r"`image_key` must be the name .*got int \(3\)"):
        stage(3)


# FlattenImageTransform


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 3), (24,), ()], ids=str)
def test_images_become_vectors_before_and_after_batching(shape: tuple[int, ...]) -> None:
    data, stage = source(np.uint8, shape), cereal.FlattenImageTransform()
    plain = np.asarray(image([data, BATCH]))
    for stages in ([stage, BATCH], [BATCH, stage]):
        np.testing.assert_array_equal(image([data, *stages]), plain.reshape(3, -1))


def test_microbatches_keep_both_their_axes() -> None:
    twice = [cereal.BatchTransform(2), cereal.BatchTransform(2), cereal.FlattenImageTransform()]
    assert image([source(np.uint8), *twice]).shape == (2, 2, 24)


# What goes wrong


@pytest.mark.parametrize(
    "transform", [cereal.NormalizeImageTransform, cereal.FlattenImageTransform]
)
def test_a_missing_key_and_elements_that_are_no_dicts_are_refused_when_built(
    transform: Any,
) -> None:
    name = transform.__name__
    message = rf"^stage 2: {name}\('pixels'.*there is no key 'pixels'; the element has \['image', "
    with pytest.raises(cereal.PipelineError, match=message + r"'label'\]; pass `image_key=`"):
        cereal.DataLoader([source(np.uint8), BATCH, transform("pixels")])
    message = rf"^stage 1: {name}\('image'.* needs elements that are dicts, .*`\{{\"image\": images"
    with pytest.raises(cereal.PipelineError, match=message):
        cereal.DataLoader([cereal.RangeSource(4), transform()])
