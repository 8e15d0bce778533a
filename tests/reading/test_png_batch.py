"""Small PNG files of one size, decoded at once."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cereal.reading.images.png_batch import decode_pngs


def png(pixels: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(np.squeeze(pixels))
    image.save(out, "PNG", **options)
    return out.getvalue()


def drawn(n: int, *shape: int) -> np.ndarray:
    """Smooth rows, noise and empty ones, so that all filters of PNG are used."""
    rng = np.random.default_rng(0)
    smooth = np.cumsum(rng.integers(0, 4, (n, *shape)), axis=2)
    noise, calm = rng.integers(0, 256, smooth.shape), rng.random((n, shape[0], 1, 1)) < 0.5
    pixels = np.where(calm, smooth, noise)
    pixels[:, ::5] = 0
    return (pixels % 256).astype(np.uint8)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [1, 2, 40])
def test_they_are_what_pillow_decodes_one_by_one(channels: int, n: int) -> None:
    pixels = drawn(n, 19, 13, channels)
    files = [png(each) for each in pixels]
    found = decode_pngs(files, (19, 13, channels), "test")
    assert found is not None
    np.testing.assert_array_equal(found, pixels)


def test_more_than_a_block_of_deflate_and_more_than_a_group() -> None:
    pixels = drawn(40, 100, 100, 3)
    found = decode_pngs([png(each) for each in pixels], (100, 100, 3), "test")
    assert found is not None
    np.testing.assert_array_equal(found, pixels)


def test_words_and_colours_of_a_file_do_not_matter() -> None:
    from PIL.PngImagePlugin import PngInfo

    words = PngInfo()
    words.add_text("title", "a digit", zip=True)
    pixels = drawn(1, 8, 8, 1)
    found = decode_pngs([png(pixels[0], pnginfo=words, dpi=(72, 72))], (8, 8, 1), "test")
    assert found is not None
    np.testing.assert_array_equal(found, pixels)


def test_other_files_are_left_to_others() -> None:
    pixels = drawn(1, 8, 8, 1)[0]
    good, shape = png(pixels), (8, 8, 1)
    grey = Image.fromarray(pixels[..., 0])
    jpeg = io.BytesIO()
    grey.save(jpeg, "JPEG")
    broken = bytearray(good)
    broken[45] ^= 255
    others = {
        "another size": png(pixels[:7]),
        "a palette": png(grey.convert("P")),
        "one bit": png(grey.convert("1")),
        "16 bits": png(Image.fromarray(pixels[..., 0].astype(np.uint16) * 256)),
        "transparency": png(grey, transparency=3),
        "JPEG": jpeg.getvalue(),
        "truncated": good[:-20],
        "damaged": bytes(broken),
        "empty": b"",
    }
    for name, file in others.items():
        assert decode_pngs([good, file], shape, "test") is None, name
    large = drawn(1, 300, 300, 3)
    assert decode_pngs([png(large[0])], (300, 300, 3), "test") is None  # no quicker
    assert decode_pngs([good], (8, 8, 5), "test") is None
