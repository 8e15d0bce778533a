"""Small PNG files: the same pixels as Pillow, or left to Pillow."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import PIL.Image
import PIL.PngImagePlugin
import pytest

from cereal.reading.images.png import decode_png

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


@pytest.mark.parametrize("mode", CHANNELS)
@pytest.mark.parametrize("size", [(1, 1), (28, 28), (31, 7), (200, 300)])
def test_pixels_are_those_of_pillow(mode: str, size: tuple[int, int]) -> None:
    for pixels in (smooth((*size, *CHANNELS[mode])), np.zeros((*size, *CHANNELS[mode]), np.uint8)):
        data = encoded(PIL.Image.fromarray(pixels, mode), dpi=(72, 72))
        found = decode_png(data)
        assert found is not None
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, by_pillow(data))
        np.testing.assert_array_equal(found, pixels)


def test_several_chunks_of_pixels_are_one() -> None:
    data = encoded(PIL.Image.fromarray(smooth((40, 40))))
    at = data.index(b"IDAT")
    (length,) = struct.unpack(">I", data[at - 4 : at])
    body = data[at + 4 : at + 4 + length]

    def chunk(part: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(b"IDAT" + part))
        return struct.pack(">I", len(part)) + b"IDAT" + part + checksum

    cut = data[: at - 4] + chunk(body[:9]) + chunk(body[9:]) + data[at + 8 + length :]
    np.testing.assert_array_equal(decode_png(cut), by_pillow(data))


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
        "a wrong header": whole[:17] + b"\1" + whole[18:],
        "no pixels": whole[:33] + whole[-12:],
        "wrong pixels": whole.replace(b"IDAT", b"IDAT" + b"\xff" * 8, 1),
    }


@pytest.mark.parametrize("name", odd())
def test_what_is_not_simple_is_left_to_pillow(name: str) -> None:
    assert decode_png(odd()[name]) is None


def test_it_never_gives_what_pillow_would_not() -> None:
    data = encoded(PIL.Image.fromarray(smooth((12, 12, 3))))
    for _ in range(400):
        broken = bytearray(data)
        broken[RNG.integers(8, len(data))] ^= 1 << int(RNG.integers(8))
        found = decode_png(bytes(broken))
        if found is not None:
            np.testing.assert_array_equal(found, by_pillow(bytes(broken)))
