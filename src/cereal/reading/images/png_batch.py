"""Many small PNG files of one size, decoded at once by Pillow.

Pillow takes 25 to 50 us to open a file, however small it is. So the rows of all files are joined,
still filtered as PNG has them, and Pillow is given one tall image:

    file 0   --zlib-->  28 rows, filtered  \\
    a row of zeros                          >  one image of 29 x 128 rows, in uncompressed blocks
    file 1   --zlib-->  28 rows, filtered  /

The first row of a file is filtered as if a row of zeros came before it, and here one does.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...base.extras import needs
from ..read_context import read_context
from .png import NO_MATTER, packed_pixels

_BEGIN = b"\x89PNG\r\n\x1a\n"
_MODES = {1: ("L", 0), 2: ("LA", 4), 3: ("RGB", 2), 4: ("RGBA", 6)}  # channels: Pillow's, PNG's
# Text may say that an image lies on its side: whoever cares about that looks for it first.
_HARMLESS = NO_MATTER | {b"iCCP", b"tEXt", b"zTXt", b"iTXt"}
_BLOCK = 65535  # bytes of a block that is not compressed
_MOST_BYTES = 1 << 18  # of images that are decoded together: they stay in the processor's caches


def decode_pngs(files: Sequence[bytes], shape: tuple[int, ...], owner: str) -> np.ndarray | None:
    """uint8[n, height, width, channels]; None if a file is not of the plainest kind.

    That is: 8 bits a channel, of this shape, without a palette and not interlaced. The checksum of
    the compressed data is checked, as always.
    """
    height, width, channels = shape
    if channels not in _MODES or not height or not width:
        return None
    at_once = max(1, _MOST_BYTES // (height * (width * channels + 1)))
    if at_once < 8:  # the copies take longer than opening the files
        return None
    head, size = _head(height, width, channels), height * (width * channels + 1)
    out = read_context().empty((len(files), *shape), np.uint8)
    for begin in range(0, len(files), at_once):
        rows = [_filtered(file, head, size) for file in files[begin : begin + at_once]]
        if None in rows:
            return None
        out[begin : begin + at_once] = _decoded(rows, shape, owner)
    return out


@functools.lru_cache(maxsize=64)
def _head(height: int, width: int, channels: int) -> bytes:
    """The content of the chunk that such a file begins with."""
    sizes = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    return sizes + bytes((8, _MODES[channels][1], 0, 0, 0))


def _filtered(file: bytes, head: bytes, size: int) -> Any:
    """The rows of a file, still filtered; None if it is not of the plainest kind."""
    if file[:8] != _BEGIN or file[12:16] != b"IHDR" or file[16:29] != head:
        return None
    packed = packed_pixels(file, _HARMLESS)
    if packed is None:
        return None
    try:
        rows = zlib.decompress(packed, bufsize=size)
    except zlib.error:
        return None  # who decodes it alone says what is wrong
    return rows if len(rows) == size else None


def _decoded(rows: list[bytes], shape: tuple[int, ...], owner: str) -> np.ndarray:
    height, width, channels = shape
    mode = _MODES[channels][0]
    separator = bytes(width * channels + 1)
    data = separator.join(rows)
    tall = (height + 1) * len(rows) - 1
    image = needs("PIL.Image", "images", owner).frombytes(
        mode, (width, tall), _not_compressed(data), "zip", mode
    )
    pixels = np.frombuffer(image.tobytes() + bytes(width * channels), np.uint8)
    return pixels.reshape(len(rows), height + 1, width, channels)[:, :height]


def _not_compressed(data: bytes) -> bytes:
    """The data as zlib has it, in blocks that are only copied."""
    parts = [b"\x78\x01"]
    for begin in range(0, len(data), _BLOCK):
        block = data[begin : begin + _BLOCK]
        n = len(block)
        last = b"\x01" if begin + n == len(data) else b"\x00"
        parts += [last, n.to_bytes(2, "little"), (n ^ 0xFFFF).to_bytes(2, "little"), block]
    parts.append(zlib.adler32(data).to_bytes(4, "big"))
    return b"".join(parts)
