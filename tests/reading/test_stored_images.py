"""Encoded images of a table: small PNG files at once, with Pillow's pixels; others by Pillow."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import PIL.PngImagePlugin
import pytest

from cereal.reading.images.stored import StoredImages
from cereal.reading.leaves import ArrayForm

RNG = np.random.default_rng(0)
CHANNELS = {"L": (), "LA": (2,), "RGB": (3,), "RGBA": (4,)}


def smooth(shape: tuple[int, ...]) -> np.ndarray:
    """Pixels that PNG stores by every kind of difference from their neighbours."""
    ramps = np.add.outer(np.arange(shape[0]) * 3, np.arange(shape[1]) * 5)
    ramps = ramps.reshape(*ramps.shape, *(1,) * len(shape[2:]))
    noise = RNG.integers(0, 12, shape) * (RNG.random(shape[:1] + (1,) * (len(shape) - 1)) < 0.5)
    return (ramps + noise).astype(np.uint8)


def encoded(image: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()


def by_pillow(data: bytes) -> np.ndarray:
    return np.asarray(PIL.Image.open(io.BytesIO(data)))


def block(files: list[bytes], layout: Any = "array") -> np.ndarray | None:
    """All images at once, in the form of the first."""
    images = StoredImages(files, [None] * len(files), None, layout)
    first = images.array(0)
    assert first is not None
    return images.block(range(len(files)), ArrayForm(first.shape, first.dtype))


@pytest.mark.parametrize("mode", CHANNELS)
@pytest.mark.parametrize("size", [(1, 1), (28, 28), (31, 7)])
def test_pixels_are_those_of_pillow(mode: str, size: tuple[int, int]) -> None:
    shape = (*size, *CHANNELS[mode])
    pixels = [smooth(shape), np.zeros(shape, np.uint8), smooth(shape)]
    files = [encoded(PIL.Image.fromarray(x, mode), dpi=(72, 72)) for x in pixels]
    wanted = np.stack([by_pillow(file) for file in files])
    np.testing.assert_array_equal(block(files), wanted)
    np.testing.assert_array_equal(wanted, np.stack(pixels))
    first = np.moveaxis(wanted.reshape(3, *size, -1), 3, 1)
    np.testing.assert_array_equal(block(files, "channels first"), first)


def odd() -> dict[str, bytes]:
    grey = PIL.Image.fromarray(smooth((20, 20)))
    exif, text = PIL.Image.Exif(), PIL.PngImagePlugin.PngInfo()
    exif[0x0112] = 6  # it lies on its side
    text.add_text("by", "somebody")
    whole = encoded(grey)
    return {
        "a palette": encoded(grey.convert("P")),
        "one bit": encoded(grey.convert("1")),
        "16 bits": encoded(PIL.Image.fromarray(smooth((9, 9)).astype(np.uint16))),
        "transparency": encoded(grey, transparency=3),
        "a turned image": encoded(grey, exif=exif),
        "text": encoded(grey, pnginfo=text),
        "an animation": encoded(grey, save_all=True, append_images=[grey.rotate(90)]),
        "a large image": encoded(PIL.Image.new("L", (600, 600))),
        "another format": b"\xff\xd8\xff" + bytes(100),
        "nothing": b"",
        "a cut file": whole[:-40],
        "a cut header": whole[:30],
        "no pixels": whole[:33] + whole[-12:],
        "wrong pixels": whole.replace(b"IDAT", b"IDAT" + b"\xff" * 8, 1),
    }


@pytest.mark.parametrize("name", odd())
def test_what_is_not_simple_is_left_to_pillow(name: str) -> None:
    simple = encoded(PIL.Image.fromarray(smooth((20, 20))))
    assert block([simple] * 8) is not None
    assert block([simple] * 8 + [odd()[name]]) is None


def test_an_image_on_its_side_is_turned_as_in_the_library() -> None:
    data = odd()["a turned image"]
    found = StoredImages([data], [None], None, "array").array(0)
    np.testing.assert_array_equal(found, np.rot90(by_pillow(data), -1))


def test_a_file_is_read_where_there_are_no_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    pixels = smooth((4, 5))
    path.write_bytes(encoded(PIL.Image.fromarray(pixels)))
    images = StoredImages([None, None], [str(path), None], None, "array")
    np.testing.assert_array_equal(images.array(0), pixels)
    assert images.array(1) is None
    assert images.block(range(2), ArrayForm((4, 5), np.dtype(np.uint8))) is None


def test_it_never_gives_what_pillow_would_not() -> None:
    data = encoded(PIL.Image.fromarray(smooth((12, 12, 3))))
    for _ in range(400):
        broken = bytearray(data)
        at = RNG.integers(33, len(data))  # the checksum of the header is not looked at
        broken[at] ^= 1 << int(RNG.integers(8))
        found = block([data, bytes(broken)])
        if found is not None:
            np.testing.assert_array_equal(found[1], by_pillow(bytes(broken)))
