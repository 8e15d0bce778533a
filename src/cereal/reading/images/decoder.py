"""The function behind `DecodeImageTransform`: an element with an encoded image, to one with pixels.

    bytes, path, ...  -->  Picture (its size is known)  -->  Part  -->  decoded, cut and resized
                           codecs                            parts

It is plain data, so it can be sent to another process; nothing here imports JAX.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Literal

import numpy as np

from ...base.errors import CerealError, DatasetError, PipelineError, in_one_line
from .codecs import (
    Codec,
    Mode,
    OddJpegError,
    Picture,
    PillowPicture,
    as_pixels,
    open_jpeg,
    open_with_pillow,
    pillow,
)
from .parts import Part, anywhere, middle, resized, shrink_for, whole

Crop = Literal["center", "random"] | None
_SKIP = 'or leave such elements out: `DataLoader(..., on_error="skip")`'
_ENCODED = (bytes, bytearray, memoryview)


@dataclasses.dataclass(frozen=True)
class ImageDecoder:
    """`decoder(element)`, or with a random part `decoder(element, rng)`."""

    size: tuple[int, int] | None
    crop: Crop
    mode: Mode
    image_key: str
    codec: Codec
    upright: bool
    owner: str

    def __call__(self, element: Any, rng: np.random.Generator | None = None) -> Any:
        if not isinstance(element, dict) or _is_file(element):
            return self._decode(element, "the image", rng)
        if self.image_key not in element:
            raise PipelineError(
                f"{self.owner}: there is no {self.image_key!r}; the element has "
                f"{sorted(map(str, element))}; pass `image_key=`."
            )
        name = f"the image {self.image_key!r}"
        if isinstance(element.get("__key__"), str):
            name += f" of {element['__key__']!r}"
        pixels = self._decode(element[self.image_key], name, rng)
        return {**element, self.image_key: pixels}

    def _decode(self, value: Any, name: str, rng: np.random.Generator | None) -> np.ndarray:
        if _is_file(value):  # as Hugging Face has images that it has not decoded
            value = value["path"] if value["bytes"] is None else value["bytes"]
        if isinstance(value, str | os.PathLike):
            name, value = f"{os.fspath(value)!r}", _content(value)
        elif isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 1:
            value = value.tobytes()
        try:
            if isinstance(value, _ENCODED):
                return self._of_bytes(bytes(value), rng)
            picture = self._opened(value, name)
            return self._pixels(picture, self._part(picture, rng))
        except (CerealError, OSError, SyntaxError, ValueError, EOFError) as error:
            raise self._refused(error, name, value) from error
        except pillow().DecompressionBombError as error:
            raise self._refused(error, name, value) from error

    def _of_bytes(self, data: bytes, rng: np.random.Generator | None) -> np.ndarray:
        fast = None
        if self.codec == "simplejpeg" and not self.upright:
            fast = open_jpeg(data, self.mode)
        picture = fast or open_with_pillow(data, self.mode, self.upright)
        part = self._part(picture, rng)
        try:
            return self._pixels(picture, part)
        except OddJpegError:
            return self._pixels(open_with_pillow(data, self.mode, self.upright), part)

    def _opened(self, value: Any, name: str) -> Picture:
        """An image that somebody has opened or decoded already."""
        image = pillow()
        if isinstance(value, np.ndarray) and _is_pixels(value):
            value = image.fromarray(value[:, :, 0] if value.shape[2:] == (1,) else value)
        if isinstance(value, image.Image):
            return PillowPicture(value, self.mode, upright=self.upright, own=False)
        kind = type(value).__name__
        if isinstance(value, np.ndarray):
            kind = f"an array {value.dtype}[{','.join(map(str, value.shape))}]"
        raise PipelineError(
            f"{self.owner}: {name} must be encoded bytes, a path, a PIL image or an array "
            f"uint8[height,width,channels], got {kind} ({value!r:.40}); pass `image_key=`, or make "
            f"it one of these in a HostMapTransform."
        )

    def _part(self, picture: Picture, rng: np.random.Generator | None) -> Part:
        height, width = picture.height, picture.width
        if self.crop == "center" and self.size is not None:
            return middle(height, width, self.size)
        if self.crop == "random":
            assert rng is not None
            return anywhere(height, width, rng)
        return whole(height, width)

    def _pixels(self, picture: Picture, part: Part) -> np.ndarray:
        height, width = picture.height, picture.width
        if self.size is None or (part == whole(height, width) and self.size == (height, width)):
            return picture.array()
        image, shrunk = picture.image(shrink_for(part, self.size))
        return as_pixels(resized(image, part.shrunk(shrunk), self.size))

    def _refused(self, error: BaseException, name: str, value: Any) -> BaseException:
        if isinstance(error, CerealError):
            words = str(error)
            if words.startswith(self.owner):
                return error
            return type(error)(f"{self.owner}: {name}: {words.rstrip('.')}.")
        data = bytes(value[:16]) if isinstance(value, _ENCODED) else b""
        if isinstance(error, pillow().UnidentifiedImageError):
            why = f"is no image that Pillow knows: {len(value)} bytes, which begin with {data!r}"
        else:
            why = f"cannot be decoded ({in_one_line(error)})"
        return DatasetError(f"{self.owner}: {name} {why}; replace it, {_SKIP}.")


def _is_file(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"bytes", "path"}


def _is_pixels(value: np.ndarray) -> bool:
    if value.dtype != np.uint8 or value.size == 0:
        return False
    return value.ndim == 2 or (value.ndim == 3 and value.shape[2] in (1, 3, 4))


def _content(path: Any) -> bytes:
    with open(path, "rb") as file:
        return file.read()
