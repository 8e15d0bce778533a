"""Features of TFDS that can be decoded without it, in the words of `ExampleDecoder`.

numbers       an array of their shape
text          bytes
Image         bytes, and an `ImageFeature` that decodes them
Dataset       the same with one axis more: all its steps lie one after another in the record
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..images.png import decode_png
from ..images.png_batch import decode_pngs
from ..leaves import ArrayForm
from ..read_context import read_context
from ..records.example_column import RecordError
from ..tables.table import objects

_PNG, _JPEG, _PALETTE = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", 3
_NUMBERS = ("Tensor", "Scalar", "ClassLabel", "BBoxFeature")


def is_plain(cls: type) -> bool:
    """Whether this is a class of TFDS itself, not one that a user has made of it."""
    return cls.__module__.partition(".")[0] == "tensorflow_datasets"


class ImageFeature:
    """An encoded image among the features, and how TFDS decodes it.

    TFDS's own object is pickled for itself, and unpickled only when it is needed: a worker process
    need not import TFDS for small PNG files.
    """

    def __init__(self, feature: Any, pickled: bytes = b"") -> None:
        self._feature, self._pickled = feature, pickled
        if feature is not None:
            self.shape, self.dtype = tuple(feature.shape), np.dtype(feature.np_dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        pickled = self._pickled or pickle.dumps(self._feature)
        return _restored, (pickled, self.shape, self.dtype)

    @property
    def is_fixed(self) -> bool:
        return None not in self.shape

    @property
    def form(self) -> ArrayForm:
        if self.is_fixed:
            return ArrayForm(self.shape, self.dtype)
        return objects(
            "an image, of another size in each element; resize them, by "
            "`DecodeImageTransform(size=(224, 224))`"
        )

    def column(self, files: list[bytes], owner: str) -> Any:
        """The pixels of all images."""
        if self.is_fixed and self.dtype == np.uint8 and len(self.shape) == 3:
            found = decode_pngs(files, self.shape, owner)
            if found is not None:
                return found
        return self._one_by_one(files)

    def doubt(self, files: list[bytes], pixels: Any) -> str:
        """Words for images that TFDS decodes otherwise with NumPy than with TensorFlow: without
        TensorFlow it gives the numbers of colours in a palette, and channels that it should drop.
        """
        bits = 16 if self.dtype == np.uint16 else 8
        for number, file in enumerate(files):
            png = file.startswith(_PNG)
            if png and (file[24] != bits or file[25] == _PALETTE):
                what = "with a palette" if file[25] == _PALETTE else f"of {file[24]} bits"
                return f"image {number} is a PNG file {what}"
            if not png and not file.startswith(_JPEG):
                return f"image {number} is neither a PNG file nor a JPEG file"
        for number, each in enumerate(pixels if isinstance(pixels, list) else pixels[:1]):
            fits = len(each.shape) == len(self.shape) and all(
                there in (None, here) for here, there in zip(each.shape, self.shape, strict=True)
            )
            if not fits:
                return f"image {number} has the shape {each.shape}, not {self.shape}"
        return ""

    def _one_by_one(self, files: list[bytes]) -> Any:
        found = []
        for lane, file in enumerate(files):
            pixels = self._quickly(file)
            try:
                found.append(self._own(file) if pixels is None else pixels)
            except Exception as error:
                raise RecordError(lane, f"has an image that cannot be decoded ({error})") from error
        if not self.is_fixed or any(each.shape != self.shape for each in found):
            return found
        out = read_context().empty((len(found), *self.shape), self.dtype)
        return np.stack(found, out=out)

    def _quickly(self, file: bytes) -> np.ndarray | None:
        """The pixels of a small PNG file; None for others."""
        pixels = decode_png(file) if self.dtype == np.uint8 else None
        if pixels is None:
            return None
        pixels = pixels[..., None] if pixels.ndim == 2 else pixels
        return pixels if pixels.shape[2] == self.shape[-1] else None

    def _own(self, file: bytes) -> np.ndarray:
        """As TFDS decodes it."""
        if self._feature is None:
            self._feature = pickle.loads(self._pickled)
        return self._feature.decode_example_np(file)


def _restored(pickled: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> ImageFeature:
    made = ImageFeature(None, pickled)
    made.shape, made.dtype = shape, dtype
    return made


def plain_features(
    features: Any,
) -> tuple[Any, dict[str, ImageFeature], dict[str, Any]] | None:
    """For `ExampleDecoder`; the images; names of classes. None: a feature that TFDS must decode."""
    images: dict[str, ImageFeature] = {}
    classes: dict[str, Any] = {}
    try:
        specs = dict(_specs(features, "", images, classes))
    except _UnknownError:
        return None
    return (specs, images, classes) if specs else None


def plain_steps(
    dataset: Any, name: str, wanted: set[str]
) -> tuple[Any, dict[str, ImageFeature]] | None:
    """The same of a `Dataset` among the features: some keys of its steps."""
    images: dict[str, ImageFeature] = {}
    if type(dataset).__name__ != "Dataset" or not is_plain(type(dataset)):
        return None
    steps = dataset.feature
    if type(steps).__name__ != "FeaturesDict" or not is_plain(type(steps)):
        return None
    chosen = {key: feature for key, feature in steps.items() if key in wanted}
    try:
        specs = dict(_items(chosen, f"{name}/", images, {}, steps=True))
    except _UnknownError:
        return None
    return ({name: specs}, images) if specs else None


class _UnknownError(Exception):
    """A feature that only TFDS can decode."""


def _specs(
    features: Any,
    before: str,
    images: dict[str, ImageFeature],
    classes: Any,
    *,
    steps: bool = False,
) -> Iterator[tuple[str, Any]]:
    if type(features).__name__ != "FeaturesDict" or not is_plain(type(features)) or not features:
        raise _UnknownError
    yield from _items(dict(features.items()), before, images, classes, steps=steps)


def _items(
    features: dict[str, Any],
    before: str,
    images: dict[str, ImageFeature],
    classes: dict[str, Any],
    *,
    steps: bool,
) -> Iterator[tuple[str, Any]]:
    for key, feature in features.items():
        name, kind = before + key, type(feature).__name__
        if not is_plain(type(feature)) or "/" in key:
            raise _UnknownError
        if kind == "FeaturesDict":
            yield key, dict(_specs(feature, f"{name}/", images, classes, steps=steps))
        elif kind == "Image":
            images[name] = ImageFeature(feature)
            yield key, _text(steps)
        elif kind == "Text" and feature.encoder is None:
            yield key, _text(steps)
        elif kind == "Sequence" and not steps:  # among steps it is stored as ragged
            yield key, _number(feature.feature, (feature._length,))
        else:
            if kind == "ClassLabel" and feature.num_classes and not before:
                classes[key] = tuple(feature.names)
            yield key, _number(feature, (None,) if steps else ())


def _text(steps: bool) -> Any:
    return ((None,), bytes) if steps else bytes


def _number(feature: Any, outer: tuple[Any, ...]) -> Any:
    """The spec of a feature of numbers."""
    if type(feature).__name__ not in _NUMBERS or not is_plain(type(feature)):
        raise _UnknownError  # (one that has parts has a dict of dtypes)
    shape, dtype = (*outer, *feature.shape), np.dtype(feature.np_dtype)
    if None in shape and 0 in shape:  # rows of nothing cannot be counted
        raise _UnknownError
    as_it_is = (
        not getattr(feature, "_encoded_to_bytes", True)
        and not getattr(feature, "_optional", True)
        and tuple(feature._serialized_shape) == tuple(feature.shape)
        and feature._serialized_dtype == feature.np_dtype
    )
    if not as_it_is or None in shape[1:] or dtype.kind not in "biuf" or dtype == np.uint64:
        raise _UnknownError
    return shape, dtype
