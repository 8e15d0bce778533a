"""Images for tests: noise of all sizes, which compresses like a photo; and what Pillow makes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image, ImageOps


def photo(height: int, width: int, seed: int = 0) -> np.ndarray:
    """uint8[height,width,3]: coarse and strong, fine and weak noise, as photos have it."""
    rng = np.random.default_rng(seed)
    found = np.full((height, width, 3), 128.0)
    for cell, strength in ((96, 45), (24, 22), (6, 8), (1, 2)):
        small = rng.normal(0, strength, (height // cell + 2, width // cell + 2, 3))
        for channel in range(3):
            layer = Image.fromarray(small[:, :, channel].astype(np.float32))
            layer = layer.resize((width, height), Image.Resampling.BICUBIC)
            found[:, :, channel] += np.asarray(layer)
    return np.clip(found, 0, 255).astype(np.uint8)


def encoded(pixels: np.ndarray, kind: str = "JPEG", **options: Any) -> bytes:
    """The file of an image."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def by_pillow(data: bytes, size: tuple[int, int], crop: str | None) -> np.ndarray:
    """The full image, decoded, cut and resized: what anybody would write."""
    with Image.open(io.BytesIO(data)) as opened:
        image = opened.convert("RGB")
    target = (size[1], size[0])
    if crop == "center":
        return np.asarray(ImageOps.fit(image, target, Image.Resampling.BILINEAR))
    return np.asarray(image.resize(target, Image.Resampling.BILINEAR))


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """Grey levels, in the mean over all pixels and channels."""
    return float(np.abs(a.astype(np.int64) - b.astype(np.int64)).mean())
