"""Images as Hugging Face stores them: the bytes of a file, or its path."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ...base.extras import needs
from ..leaves import ArrayForm
from ..tables.table import Later
from .png import decode_png
from .png_batch import decode_pngs

# What elements are: Pillow's images, as the library gives them; arrays; arrays, channels first.
Layout = Literal["image", "array", "channels first"]
_ORIENTATION = 0x0112
_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_OWNER = "an image of a Hugging Face dataset"


class StoredImages(Later):
    """Some encoded images, decoded as `datasets.Image(mode)` would."""

    def __init__(
        self, data: Sequence[Any], paths: Sequence[Any], mode: str | None, layout: Layout
    ) -> None:
        self._data, self._paths, self._mode, self._layout = data, paths, mode, layout

    def __getitem__(self, lane: int) -> Any:
        if self._layout != "image":
            return self.array(lane)
        data, path = self._data[lane], self._paths[lane]
        return None if data is None and path is None else opened(data, path, self._mode)

    def array(self, lane: int) -> np.ndarray | None:
        data, path = self._data[lane], self._paths[lane]
        if data is None and path is None:
            return None
        pixels = None if data is None or self._mode is not None else decode_png(data)
        if pixels is None:
            pixels = np.asarray(opened(data, path, self._mode))
        if self._layout != "channels first":
            return pixels
        return np.moveaxis(pixels if pixels.ndim == 3 else pixels[:, :, None], 2, 0)

    def block(self, lanes: range, form: ArrayForm) -> np.ndarray | None:
        data, first = self._data[lanes.start : lanes.stop], self._layout == "channels first"
        if self._mode is not None or form.dtype != np.uint8 or not all(map(_is_plain, data)):
            return None
        *size, channels = form.shape if len(form.shape) == 3 else (*form.shape, 1)
        if first:
            channels, *size = form.shape
        found = decode_pngs(data, (*size, channels), _OWNER)
        if found is None or len(form.shape) == 2:
            return None if found is None else found[..., 0]
        return np.moveaxis(found, 3, 1) if first else found


def _is_plain(data: bytes | None) -> bool:
    """Whether there is an image, and no text in it, which may say that it lies on its side."""
    return data is not None and not any(chunk in data for chunk in _TEXTS)


def opened(data: bytes | None, path: str | None, mode: str | None) -> Any:
    """A Pillow image, upright, in this mode (None: that of the file)."""
    pillow = needs("PIL.Image", "images", _OWNER)
    if data is None and "://" in str(path):  # of the library's own kinds of addresses
        image = needs("datasets", "huggingface", _OWNER).Image(mode=mode)
        return image.decode_example({"bytes": None, "path": path})
    image = pillow.open(path if data is None else io.BytesIO(data))
    image.load()  # and closes the file
    if image.getexif().get(_ORIENTATION) is not None:
        image = needs("PIL.ImageOps", "images", _OWNER).exif_transpose(image)
    return image.convert(mode) if mode and mode != image.mode else image
