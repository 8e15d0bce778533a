"""Encoded images become arrays."""

from __future__ import annotations

from typing import Any

from ...base.errors import PipelineError
from ...base.extras import needs
from ...base.numbers import as_count
from ...base.pytree import pytree_dataclass, set_fields, static_field
from ...host.host_data import HostFunction
from ...pipeline.host_stage import HostStage
from ...pipeline.source import Source
from ...pipeline.traits import StageTraits
from ...reading.images.codecs import found_codec, pillow
from ...reading.images.decoder import ImageDecoder
from ...reading.stages import ElementStage, MapStage, RandomStage
from ..image import check_image_key

_OWNER = "DecodeImageTransform"


@pytree_dataclass
class DecodeImageTransform(HostStage):
    """Decodes images, and brings them to one size: `image` becomes uint8[height,width,channels].

        {"image": b"\\xff\\xd8...", "label": 3}  -->  {"image": uint8[224,224,3], "label": 3}

        crop=None       the whole image, resized to `size`; its sides may change their ratio
        crop="center"   the largest part in the middle that has the ratio of `size`, resized
                        (Pillow's `ImageOps.fit`)
        crop="random"   a random part (8 to 100 % of the area, sides from 3:4 to 4:3), resized;
                        another one in every epoch, as other random stages have it

    An image is encoded bytes (JPEG, PNG, what Pillow reads), the path of a file, a PIL image, or an
    array of uint8 that is only resized. It stands under `image_key`, or is the whole element. The
    workers of the loader decode. It needs Pillow: `pip install 'cereal-jax[images]'`.

    >>> import cereal, io
    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (640, 480), "red").save(file, "JPEG")
    >>> data = [{"image": file.getvalue(), "label": 3}] * 4
    >>> decode = cereal.DecodeImageTransform(size=(224, 224), crop="center")
    >>> loader = cereal.DataLoader([data, decode, cereal.BatchTransform(2)])
    >>> next(iter(loader))[0]["image"].shape
    (2, 224, 224, 3)

    Args:
        size: Height and width of the images that come out. None (default): each keeps its size.
        crop: Which part is kept, see above. Default: None, all of it.
        image_key: The name of the image in elements that are dicts. Default: "image".
        mode: "RGB" (default) or "L", grey. Other images are converted as Pillow does it: grey
            becomes three equal channels, and transparency is left out.
        upright: Whether to turn a photo as its EXIF says. False (default) leaves the pixels as they
            are stored, as Pillow and torchvision do.
        codec: What decodes JPEG: "simplejpeg" or "pillow". Default: simplejpeg, if it is installed
            (`pip install 'cereal-jax[jpeg]'`).

    A JPEG that is much larger than `size` is decoded at 1/2, 1/4 or 1/8 of its size, never below
    what `size` needs, and then resized (bilinear, over all pixels, as Pillow does it). This takes a
    third to a half of the time. Against the full image, resized, photos differ by 0.4 to 1.6 grey
    levels in the mean; all other images are exactly those of Pillow.
    """

    fn: HostFunction
    decoder: ImageDecoder = static_field()

    def __init__(
        self,
        size: tuple[int, int] | None = None,
        crop: Any = None,
        *,
        image_key: str = "image",
        mode: Any = "RGB",
        upright: bool = False,
        codec: Any = None,
    ) -> None:
        _check_word(crop, "crop", ("center", "random", None))
        _check_word(mode, "mode", ("RGB", "L"))
        _check_word(codec, "codec", ("simplejpeg", "pillow", None))
        checked = _as_size(size)
        if crop is not None and checked is None:
            raise PipelineError(
                f"{_OWNER}: `crop={crop!r}` needs a size; write `{_OWNER}(size=(224, 224), "
                f"crop={crop!r})`."
            )
        check_image_key(image_key, _OWNER)
        pillow()
        if codec == "simplejpeg":
            needs("simplejpeg", "jpeg", _OWNER)
        used = codec or found_codec()
        made = ImageDecoder(checked, crop, mode, image_key, used, bool(upright), _OWNER)
        set_fields(self, fn=HostFunction(made), decoder=made)

    @property
    def traits(self) -> StageTraits:  # type: ignore[override]
        return StageTraits(random=self.decoder.crop == "random")

    @property
    def _label(self) -> str:
        decoder = self.decoder
        size = "" if decoder.size is None else f"size={decoder.size}"
        return f"{_OWNER}({size}{f', crop={decoder.crop!r}' if decoder.crop else ''})"

    def over_elements(self, number: int) -> ElementStage:
        if self.traits.random:
            return RandomStage(self._label, self.decoder, number)
        return MapStage(self._label, self.decoder, False)


def _check_word(value: Any, name: str, known: tuple[Any, ...]) -> None:
    if not any(value is each or (isinstance(value, str) and value == each) for each in known):
        raise PipelineError(
            f"{_OWNER}: `{name}` must be one of {', '.join(map(repr, known))}, got {value!r:.60}."
        )


def _as_size(size: Any) -> tuple[int, int] | None:
    if size is None:
        return None
    if isinstance(size, Source):
        raise PipelineError(
            f"{_OWNER}: the first argument is the size, got a source; write `{_OWNER}(size=(224, "
            f"224))(source)`, or put `{_OWNER}(size=(224, 224))` into the loader's list."
        )
    if not isinstance(size, tuple | list) or len(size) != 2:
        example = (size, size) if type(size) is int else (224, 224)
        raise PipelineError(
            f"{_OWNER}: `size` must be a height and a width, got {size!r:.60}; write "
            f"`size={example}`."
        )
    return as_count(size[0], "size[0]", _OWNER), as_count(size[1], "size[1]", _OWNER)
