"""One small PNG file, decoded by Pillow's C code without its Python around it.

    signature | IHDR | IDAT ... | IEND      size and mode; the pixels, packed by zlib

Pillow needs 27 us for a digit of MNIST, most of it in Python; this way takes 15. A file that has
anything else (a palette, 16 bits, interlacing, EXIF, text) is left to Pillow itself. Many files of
one size are decoded together (`png_batch`).
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np

from ...base.extras import needs

_BEGIN = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_HEADER = struct.Struct(">IIBBBBBI")  # width, height, bits, colours, three zeros, checksum
_CHUNK = struct.Struct(">I4s")
_MODES = {0: ("L", 1), 2: ("RGB", 3), 4: ("LA", 2), 6: ("RGBA", 4)}
NO_MATTER = frozenset({b"pHYs", b"gAMA", b"cHRM", b"sRGB", b"tIME"})  # they change no pixel
_MOST = 1 << 18  # pixels; for larger images Pillow's Python does not count


def decode_png(data: bytes) -> np.ndarray | None:
    """The pixels, uint8[height,width] or [height,width,channels], as NumPy has a Pillow image.

    None if this is not a simple PNG file: then Pillow must decode it, or say what is wrong.
    """
    if data[:16] != _BEGIN or len(data) < 45:
        return None
    width, height, bits, colours, *zeros, check = _HEADER.unpack_from(data, 16)
    if bits != 8 or colours not in _MODES or zeros != [0, 0, 0] or not 0 < width * height <= _MOST:
        return None
    if zlib.crc32(data[12:29]) != check:
        return None
    packed = packed_pixels(data, NO_MATTER)
    mode, channels = _MODES[colours]
    if packed is None:
        return None
    pillow: Any = needs("PIL.Image", "images", "decoding an image")
    try:
        raw = pillow.frombytes(mode, (width, height), packed, "zip", mode).tobytes()
    except (ValueError, OSError):
        return None
    shape = (height, width) if channels == 1 else (height, width, channels)
    return np.frombuffer(raw, np.uint8).reshape(shape)


def packed_pixels(data: bytes, no_matter: frozenset[bytes]) -> bytes | None:
    """The packed pixels; None if a chunk is of another kind than these, or the end is missing."""
    at, parts = 33, []
    while at + 12 <= len(data):
        length, kind = _CHUNK.unpack_from(data, at)
        if kind == b"IDAT":
            parts.append(data[at + 8 : at + 8 + length])
        elif kind == b"IEND":
            return parts[0] if len(parts) == 1 else b"".join(parts)
        elif kind not in no_matter:
            return None
        at += 12 + length
    return None
