from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from cereal.preview.pixels import RED, as_image, numeric, range_of, to_pixels


def drawn(image: Any) -> np.ndarray:
    array = numeric(image)
    assert array is not None
    shaped = as_image(array)
    assert shaped is not None
    return to_pixels(shaped, range_of([shaped]))


def note(image: Any) -> str:
    return range_of([np.asarray(image)]).note


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((5, 7), (5, 7)),
        ((5, 7, 1), (5, 7)),
        ((5, 7, 3), (5, 7, 3)),
        ((5, 7, 4), (5, 7, 4)),
        ((3, 5, 7), (5, 7, 3)),
        ((1, 5, 7), (5, 7)),
        ((784,), (28, 28)),
        ((3072,), (32, 32, 3)),
        ((1,), (1, 1)),
        ((30,), None),
        ((), None),
        ((5, 7, 2), None),
        ((2, 5, 7, 3), None),
        ((0, 7), None),
    ],
)
def test_an_image_is_told_by_its_shape(shape: Any, expected: Any) -> None:
    found = as_image(np.zeros(shape, np.uint8))
    assert (None if found is None else found.shape) == expected


def test_flattened_and_channels_first_images_keep_their_pixels() -> None:
    image = np.arange(5 * 5 * 3).reshape(5, 5, 3)
    for given in (image.reshape(-1), image.transpose(2, 0, 1), image):
        found = as_image(given)
        assert found is not None
        np.testing.assert_array_equal(found, image)


def test_bytes_are_drawn_as_they_are_however_dark() -> None:
    image = np.arange(16, dtype=np.uint8).reshape(4, 4)
    np.testing.assert_array_equal(drawn(image), np.stack([image] * 3, axis=2))
    assert note(image) == "values 0 to 15"
    colour = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    np.testing.assert_array_equal(drawn(colour), colour)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, jnp.bfloat16])
def test_floats_from_0_to_1_are_drawn_as_they_are(dtype: Any) -> None:
    image = np.linspace(0.25, 0.5, 16).reshape(4, 4).astype(dtype)
    wanted = np.floor(image.astype(np.float64) * 255 + 0.5).astype(np.uint8)
    np.testing.assert_array_equal(drawn(image)[:, :, 1], wanted)
    assert "stretched" not in range_of([numeric(image)]).note  # type: ignore[list-item]


def test_rounding_does_not_count_as_leaving_0_to_1() -> None:
    assert "stretched" not in note(np.array([[-1e-6, 1.0001]]))
    assert "stretched" in note(np.array([[-0.1, 1.0]]))


def test_other_values_are_stretched_and_the_note_says_so() -> None:
    image = np.array([[-2.0, 0.5], [1.0, 3.0]], np.float32)
    assert drawn(image)[:, :, 0].tolist() == [[0, 128], [153, 255]]
    assert note(image) == "stretched: black is -2, white is 3"
    wide = np.array([[0, 1000], [500, 250]], np.int32)
    assert drawn(wide)[:, :, 0].tolist() == [[0, 255], [128, 64]]
    assert note(wide) == "stretched: black is 0, white is 1000"


def test_wide_integers_within_a_byte_are_drawn_as_they_are() -> None:
    image = np.array([[0, 7], [99, 200]], np.int32)
    assert drawn(image)[:, :, 2].tolist() == image.tolist()


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int32, np.float32])
def test_ones_of_a_mask_are_white(dtype: Any) -> None:
    assert drawn(np.eye(2, dtype=dtype))[:, :, 0].tolist() == [[255, 0], [0, 255]]
    assert drawn(np.zeros((2, 2), dtype)).max() == 0


def test_one_value_outside_of_the_range_is_drawn_grey() -> None:
    assert set(drawn(np.full((3, 3), 7.5)).reshape(-1)) == {128}
    assert note(np.full((3, 3), 7.5)) == "all values are 7.5, drawn grey"


def test_one_range_holds_for_all_images() -> None:
    low, high = np.zeros((2, 2)), np.full((2, 2), 4.0)
    shown = range_of([low, high])
    assert to_pixels(low, shown).max() == 0
    assert to_pixels(high, shown).min() == 255


def test_what_is_not_finite_is_red_and_does_not_stretch() -> None:
    image = np.array([[0.0, np.nan], [np.inf, 1.0]])
    pixels = drawn(image)
    assert pixels[0, 1].tolist() == pixels[1, 0].tolist() == list(RED)
    assert pixels[0, 0].tolist() == [0, 0, 0]
    assert pixels[1, 1].tolist() == [255, 255, 255]
    assert note(image) == "values 0 to 1; not finite, drawn red: 2"
    assert (drawn(np.full((2, 2), np.nan)) == RED).all()


def test_the_widest_floats_do_not_overflow() -> None:
    most = np.finfo(np.float64).max
    assert drawn(np.array([[-most, 0.0, most]]))[0, :, 0].tolist() == [0, 128, 255]


@pytest.mark.parametrize(("whole", "dtype"), [(255, np.uint8), (1, np.float32)])
def test_transparent_pixels_lie_on_white(whole: int, dtype: Any) -> None:
    image = np.zeros((1, 2, 4), dtype)
    image[0, 0, 3] = whole  # opaque black, then nothing
    assert drawn(image).tolist() == [[[0, 0, 0], [255, 255, 255]]]


def test_arrays_of_jax_and_lists_are_arrays() -> None:
    np.testing.assert_array_equal(drawn(jnp.eye(3)), drawn(np.eye(3).tolist()))


def test_pictures_of_pillow_are_drawn_in_their_colours() -> None:
    colours = np.array([[[250, 0, 0], [0, 0, 250]]], np.uint8)
    palette = Image.fromarray(colours).convert("P")
    np.testing.assert_array_equal(drawn(palette), np.asarray(palette.convert("RGB")))
    print_colours = Image.fromarray(colours).convert("CMYK")
    np.testing.assert_array_equal(drawn(print_colours), np.asarray(print_colours.convert("RGB")))
    grey = Image.fromarray(np.array([[0, 200]], np.uint8))
    assert drawn(grey)[0, :, 0].tolist() == [0, 200]


@pytest.mark.parametrize(
    "leaf", [None, "text", b"bytes", [[1], [1, 2]], {"a": 1}, np.array(["a"]), jax.random.key(0)]
)
def test_what_has_no_numbers_is_no_array(leaf: Any) -> None:
    assert numeric(leaf) is None
