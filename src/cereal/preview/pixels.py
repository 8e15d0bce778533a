"""Turns arrays into pixels: which arrays are images, and which values are black and white.

integers in 0 to 255, floats in 0 to 1   as they are
False and True, only 0 and 1             black and white
other values                             stretched: the least is black, the greatest white
nan, inf                                 red
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

RED = (230, 0, 60)
IMAGE_SHAPES = "[H, W], [H, W, 1], [H, W, 3] or [H, W, 4]"
_NEARLY = 1e-3  # how far floats may lie outside of 0 to 1, by rounding


def numeric(leaf: Any) -> np.ndarray | None:
    """A NumPy array of an array, tensor, Pillow image, number or list; None if not numbers."""
    if leaf is None or isinstance(leaf, str | bytes | dict):
        return None
    if hasattr(leaf, "getbands") and leaf.mode not in ("1", "L", "RGB", "RGBA", "F", "I", "I;16"):
        transparent = "A" in leaf.getbands() or "transparency" in leaf.info
        leaf = leaf.convert("RGBA" if transparent else "RGB")
    try:
        array = np.asarray(leaf)
    except (ValueError, TypeError, RuntimeError):  # ragged lists, random keys, tensors with grads
        return None
    if array.dtype.kind in "biuf":
        return array
    # Types that NumPy does not know: bfloat16, float8, int4.
    narrow = array.dtype.kind == "V" and jnp.issubdtype(array.dtype, jnp.number)
    return array.astype(np.float32) if narrow else None


def as_image(array: np.ndarray) -> np.ndarray | None:
    """The array as [H, W], [H, W, 3] or [H, W, 4]; None if it is not an image.

    [H, W, 1]       one channel
    [3, H, W]       channels first, as torch has them
    [784], [3072]   flattened squares, of one channel or of three
    """
    if array.size == 0:
        return None
    if array.ndim == 1:
        return _square(array)
    if array.ndim == 2:
        return array
    if array.ndim == 3 and array.shape[2] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
        array = np.moveaxis(array, 0, 2)
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4):
        return None
    return array[:, :, 0] if array.shape[2] == 1 else array


def _square(flat: np.ndarray) -> np.ndarray | None:
    for channels in (1, 3):
        side = math.isqrt(flat.size // channels)
        if side * side * channels == flat.size:
            shape = (side, side) if channels == 1 else (side, side, channels)
            return flat.reshape(shape)
    return None


class Range(NamedTuple):
    """The values that are drawn black and white, and a note about them for the sheet."""

    black: float
    white: float
    note: str


def range_of(images: Sequence[np.ndarray]) -> Range:
    """One range for all images of a sheet, so that they can be compared."""
    colours = [_colours(image) for image in images]
    least, most, broken = extremes(colours)
    kinds = {colour.dtype.kind for colour in colours}
    note = f"values {number(least)} to {number(most)}"
    black, white = (0.0, 255.0) if kinds <= {"u", "i"} else (0.0, 1.0)
    if kinds <= {"u", "i"} and least >= 0 and most == 1:  # a mask
        white, note = 1.0, "values 0 and 1, drawn black and white"
    margin = _NEARLY if "f" in kinds else 0.0
    if least < black - margin or most > white + margin:
        black, white = least, most
        note = f"stretched: black is {number(least)}, white is {number(most)}"
        if least == most:
            black, white = least - 1, most + 1
            note = f"all values are {number(least)}, drawn grey"
    if broken:
        note = f"{note}; not finite, drawn red: {broken:,}"
    return Range(black, white, note)


def extremes(arrays: Sequence[np.ndarray]) -> tuple[float, float, int]:
    """The least and the greatest finite value, and the number of values that are not finite."""
    least, most, broken = math.inf, -math.inf, 0
    for array in arrays:
        if array.dtype.kind == "f":
            finite = array[np.isfinite(array)]
            broken += array.size - finite.size
            array = finite
        if array.size:
            least, most = min(least, float(array.min())), max(most, float(array.max()))
    return (least, most, broken) if least <= most else (0.0, 0.0, broken)


def number(value: float) -> str:
    """A number as text, with few digits; whole numbers below a million in full."""
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e6 else f"{value:.3g}"


def to_pixels(image: np.ndarray, shown: Range) -> np.ndarray:
    """The pixels, uint8 [H, W, 3]; transparent parts are drawn over white."""
    colours = _colours(image)
    finite = np.isfinite(colours)
    if colours.dtype == np.uint8 and (shown.black, shown.white) == (0.0, 255.0):
        pixels = colours
    else:
        values = np.where(finite, colours, 0).astype(np.float64)
        # Half of the difference: the difference of two floats may be more than a float can hold.
        span = shown.white / 2 - shown.black / 2
        parts = np.clip((values / 2 - shown.black / 2) / span, 0, 1)
        pixels = np.floor(parts * 255 + 0.5).astype(np.uint8)
    pixels = np.broadcast_to(pixels, (*pixels.shape[:2], 3))
    if image.ndim == 3 and image.shape[2] == 4:
        opaque = _opacity(image[:, :, 3:])
        pixels = np.floor(pixels * opaque + 255 * (1 - opaque) + 0.5).astype(np.uint8)
    if not finite.all():
        pixels = np.where(finite.all(axis=2, keepdims=True), pixels, np.array(RED, np.uint8))
    return np.ascontiguousarray(pixels)


def _colours(image: np.ndarray) -> np.ndarray:
    """The colour channels: without the fourth, which says how opaque a pixel is."""
    return image[:, :, None] if image.ndim == 2 else image[:, :, :3]


def _opacity(alpha: np.ndarray) -> np.ndarray:
    whole = {"u": 255, "i": 255}.get(alpha.dtype.kind, 1)
    if alpha.dtype.kind in "ui" and alpha.max() > 255:
        whole = np.iinfo(alpha.dtype).max
    return np.clip(np.nan_to_num(alpha.astype(np.float64) / whole), 0, 1)
