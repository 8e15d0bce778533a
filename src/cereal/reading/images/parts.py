"""Which part of an image is kept, and how far it may be shrunk while it is decoded."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .codecs import pillow

SHRINKS = (8, 4, 2)  # what JPEG decoders can do on the way
_AREA = (0.08, 1.0)  # the share of the image that a random part has
_RATIO = (3 / 4, 4 / 3)  # its width / its height
_TRIES = 10


class Part(NamedTuple):
    """A rectangle of an image, in pixels."""

    left: float
    top: float
    width: float
    height: float

    def shrunk(self, times: int) -> Part:
        """The same part of an image that was made so many times smaller."""
        return Part(self.left / times, self.top / times, self.width / times, self.height / times)

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right, bottom, as Pillow has it."""
        return self.left, self.top, self.left + self.width, self.top + self.height


def whole(height: int, width: int) -> Part:
    """All of it."""
    return Part(0, 0, width, height)


def middle(height: int, width: int, size: tuple[int, int]) -> Part:
    """The largest part in the middle that has the ratio of `size`."""
    scale = min(height / size[0], width / size[1])
    tall, wide = size[0] * scale, size[1] * scale
    return Part((width - wide) / 2, (height - tall) / 2, wide, tall)


def anywhere(height: int, width: int, rng: np.random.Generator) -> Part:
    """A part of random area and ratio, at a random place: 8 to 100 % of the image, 3:4 to 4:3.

    If ten such parts do not fit (the image is very long), it is the largest part in the middle that
    is not longer than 4:3.
    """
    low, high = math.log(_RATIO[0]), math.log(_RATIO[1])
    for _ in range(_TRIES):
        area = height * width * rng.uniform(*_AREA)
        ratio = math.exp(rng.uniform(low, high))
        wide, tall = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            left = int(rng.integers(width - wide + 1))
            return Part(left, int(rng.integers(height - tall + 1)), wide, tall)
    ratio = min(max(width / height, _RATIO[0]), _RATIO[1])
    return middle(height, width, (1000, max(1, round(1000 * ratio))))


def shrink_for(part: Part, size: tuple[int, int]) -> int:
    """How many times smaller the image may be decoded, so that the part is still not smaller than
    `size`: 1, 2, 4 or 8."""
    for shrink in SHRINKS:
        if part.height >= shrink * size[0] and part.width >= shrink * size[1]:
            return shrink
    return 1


def resized(image: Any, part: Part, size: tuple[int, int]) -> Any:
    """The part of a Pillow image, as an image of this size (bilinear, over all pixels)."""
    target = (size[1], size[0])
    if image.size == target and part.box == (0, 0, *target):
        return image
    # Rounding errors must not lead out of the image.
    left, top, right, bottom = part.box
    box = (max(left, 0), max(top, 0), min(right, image.width), min(bottom, image.height))
    return image.resize(target, pillow().Resampling.BILINEAR, box)
