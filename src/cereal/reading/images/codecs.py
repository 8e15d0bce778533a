"""What decodes images: Pillow, and for JPEG simplejpeg where it is installed.

Both use libjpeg-turbo. Decoded at full size, they give the same pixels if their versions do.
"""

from __future__ import annotations

import importlib.util
import io
from typing import Any, Literal, Protocol

import numpy as np

from ...base.errors import PipelineError
from ...base.extras import needs

Mode = Literal["RGB", "L"]
Codec = Literal["simplejpeg", "pillow"]
_JPEG = b"\xff\xd8\xff"
_ORIENTATION = 0x0112
# What EXIF says about the first row and column, as Pillow's name of what turns the image upright.
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
_DEEP = ("I", "F")  # more than eight bits a channel: Pillow would cut them off without a word


def found_codec() -> Codec:
    """The codec for JPEG files in this environment."""
    return "simplejpeg" if importlib.util.find_spec("simplejpeg") else "pillow"


def pillow() -> Any:
    """The module `PIL.Image`."""
    return needs("PIL.Image", "images", "DecodeImageTransform")


class Picture(Protocol):
    """An image whose size is known, and which is not decoded yet."""

    height: int
    width: int

    def image(self, shrink: int) -> tuple[Any, int]:
        """A Pillow image, `shrink` times smaller where its format can, and how much smaller it is.

        Sizes are rounded up: 101 pixels, shrunk twice, are 51, of which the last is half empty.
        """
        ...

    def array(self) -> np.ndarray:
        """uint8[height,width,channels]."""
        ...


class PillowPicture:
    """An image that Pillow decodes."""

    def __init__(self, image: Any, mode: Mode, *, upright: bool, own: bool) -> None:
        self._image, self._own = image, own
        self._mode: Mode = mode
        turn = image.getexif().get(_ORIENTATION, 1) if upright else 1
        self._turn = _TURNS.get(turn)
        self._lies = turn in (5, 6, 7, 8)  # its rows are stored as columns
        self.width, self.height = image.size[::-1] if self._lies else image.size

    def image(self, shrink: int) -> tuple[Any, int]:
        image, before = self._image, self._image.size
        while self._turn and (before[0] % shrink or before[1] % shrink):
            shrink //= 2  # turned, the pixel that is half empty would be the first
        if shrink > 1 and self._own:  # others may use an image that we have not opened ourselves
            image.draft(self._mode, (before[0] // shrink, before[1] // shrink))
        shrink = 1 if image.size == before else shrink
        image = _converted(image, self._mode)
        if self._turn is not None:
            image = image.transpose(pillow().Transpose[self._turn])
        return image, shrink

    def array(self) -> np.ndarray:
        return as_pixels(self.image(1)[0])


def _converted(image: Any, mode: Mode) -> Any:
    if image.mode.partition(";")[0] in _DEEP:
        raise PipelineError(
            f"the image has more than 8 bits a channel (Pillow's mode {image.mode!r}), which would "
            f"be cut off; decode it in a HostMapTransform, with a scale of your own"
        )
    if image.mode == mode:
        return image
    if image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
        image = image.convert("RGBA")  # else Pillow warns; the colours are the same
    return image.convert(mode)


def as_pixels(image: Any) -> np.ndarray:
    """A Pillow image as uint8[height,width,channels]."""
    array = np.asarray(image)
    return array[:, :, None] if array.ndim == 2 else array


class JpegPicture:
    """A JPEG that simplejpeg decodes."""

    def __init__(self, data: bytes, codec: Any, header: Any, mode: Mode) -> None:
        self._data, self._codec = data, codec
        self._colours = "GRAY" if mode == "L" else mode
        self.height, self.width = header[:2]

    def _decoded(self, shrink: int) -> np.ndarray:
        least = {"min_height": -(-self.height // shrink), "min_width": -(-self.width // shrink)}
        try:
            return self._codec.decode_jpeg(self._data, self._colours, **least if shrink > 1 else {})
        except ValueError as error:
            raise OddJpegError(str(error)) from error

    def image(self, shrink: int) -> tuple[Any, int]:
        array = self._decoded(shrink)
        array = array[:, :, 0] if array.shape[2] == 1 else array
        return pillow().fromarray(array), shrink

    def array(self) -> np.ndarray:
        return self._decoded(1)


class OddJpegError(ValueError):
    """simplejpeg refuses this file. Pillow may accept it, or say more about what is wrong."""


def open_jpeg(data: bytes, mode: Mode) -> JpegPicture | None:
    """For simplejpeg; None if Pillow has to look at it."""
    if data[:3] != _JPEG:
        return None
    codec = needs("simplejpeg", "jpeg", "DecodeImageTransform")
    try:
        header = codec.decode_jpeg_header(data)
    except ValueError:
        return None
    height, width, colours = header[:3]
    most = pillow().MAX_IMAGE_PIXELS
    if colours not in ("YCbCr", "Gray") or (most is not None and height * width > most):
        return None  # print colours; or so large that Pillow warns or refuses
    return JpegPicture(data, codec, header, mode)


def open_with_pillow(data: bytes, mode: Mode, upright: bool) -> PillowPicture:
    """For Pillow, which says what is wrong with the file."""
    image = pillow().open(io.BytesIO(data))
    return PillowPicture(image, mode, upright=upright, own=True)
