"""TFDS: data sources, which are read by index; and what `tfds.as_numpy` gives, a stream.

    records, a batch in one call  ->  features of their tf.train.Example, without TensorFlow
                                      ├── numbers       arrays
                                      ├── text          bytes
                                      └── images        small PNG files of one size all at once,
                                                        others by TFDS's own function, one by one

A feature that is not among these is decoded by TFDS itself, record by record; so are all, if the
source has `decoders`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ...base.errors import DatasetError
from ..images.png import decode_png
from ..images.png_batch import decode_pngs
from ..leaves import ArrayForm
from ..read_context import read_context
from ..records.example import ExampleDecoder
from ..records.example_column import RecordError
from ..records.record_table import RecordFiles, RecordTable
from ..tables.table import Stream, Table, objects
from .grain import Iterations, records_of
from .tensorflow import length_of

_NUMBERS = ("Tensor", "Scalar", "ClassLabel", "BBoxFeature")
_WHOLE = "DESERIALIZE_AND_DECODE"


def recognise(value: Any, owner: str) -> Table | Stream | None:
    """A data source of TFDS, or a stream of its arrays."""
    names = {cls.__name__ for cls in type(value).__mro__}
    if "_IterableDataset" in names:
        return Stream(Iterations(value), length_of(getattr(value, "_ds", None), owner))
    if "BaseDataSource" not in names or not hasattr(value, "data_source"):
        return None
    method = getattr(value.deserialize_method, "name", "")
    if method == "RAW_BYTES":
        return _records(value, None, owner)
    features = getattr(value.dataset_info, "features", None)
    if method == _WHOLE and value.decoders is None and _is_plain(type(value)):
        found = _features(features)
        if found is not None:
            return TFDSTable(_records(value, None, owner), found, value.dataset_info.name, owner)
    return _records(value, value._deserialize, owner)


def _is_plain(cls: type) -> bool:
    """Whether this is a class of TFDS itself, not one that a user has made of it."""
    return cls.__module__.partition(".")[0] == "tensorflow_datasets"


def _records(value: Any, decode: Callable[[bytes], Any] | None, owner: str) -> RecordTable:
    """The records below a data source: of its files, or as it gives them itself."""
    found = records_of(value.data_source, owner, decode)
    if found is not None:
        return found
    return RecordTable(_Items(value.data_source), decode, owner, value.dataset_info.name)


class _Items(RecordFiles):
    """Records that a source gives by its own `__getitems__`: those in Parquet files."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.lengths = [len(source)]

    def read_file(self, number: int, records: list[int]) -> Sequence[bytes]:
        return [bytes(each) for each in self._source.__getitems__(records)]

    def path(self, number: int) -> str:
        return type(self._source).__name__

    def digest(self) -> Any:
        return self._source


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


class TFDSTable(Table):
    """Records of TFDS, by their features."""

    def __init__(self, records: RecordTable, features: Any, name: str, owner: str) -> None:
        self._files, self.name, self._owner = records.files, name, owner
        specs, self._images, self.classes = features
        self._decoder = ExampleDecoder(specs, owner)
        names = enumerate(spec.name for spec in self._decoder.specs)
        self._at = [(at, self._images[name]) for at, name in names if name in self._images]
        self.form = _with_images(self._decoder.form, self._images)

    def __len__(self) -> int:
        return len(self._files)

    def take(self, indices: np.ndarray) -> list[Any]:
        try:
            columns = self._decoder.columns(self._files.read(indices))
            for at, image in self._at:
                columns[at] = image.column(columns[at], self._owner)
        except RecordError as error:
            place = self._files.place(int(indices[error.lane]))
            raise DatasetError(f"{self._owner}: {place} {error.words}.") from error
        return columns

    def digest(self) -> Any:
        return [self._files.digest(), self._decoder.digest()]


def _with_images(form: Any, images: dict[str, ImageFeature], before: str = "") -> Any:
    """The form, with that of decoded images where encoded ones are."""
    made = {}
    for key, inner in form.items():
        name = before + key
        if isinstance(inner, dict):
            made[key] = _with_images(inner, images, f"{name}/")
        else:
            made[key] = images[name].form if name in images else inner
    return made


def _features(features: Any) -> tuple[Any, dict[str, ImageFeature], dict[str, Any]] | None:
    """For `ExampleDecoder`; the images; names of classes. None: a feature that TFDS must decode."""
    images: dict[str, ImageFeature] = {}
    classes: dict[str, Any] = {}
    try:
        specs = dict(_specs(features, "", images, classes))
    except _UnknownError:
        return None
    return (specs, images, classes) if specs else None


class _UnknownError(Exception):
    """A feature that only TFDS can decode."""


def _specs(
    features: Any, before: str, images: dict[str, ImageFeature], classes: dict[str, Any]
) -> Iterator[tuple[str, Any]]:
    if type(features).__name__ != "FeaturesDict" or not _is_plain(type(features)):
        raise _UnknownError
    for key, feature in features.items():
        name, kind = before + key, type(feature).__name__
        if not _is_plain(type(feature)) or "/" in key:
            raise _UnknownError
        if kind == "FeaturesDict":
            yield key, dict(_specs(feature, f"{name}/", images, classes))
        elif kind == "Image":
            images[name] = ImageFeature(feature)
            yield key, bytes
        elif kind == "Sequence":
            yield key, _number(feature.feature, (feature._length,))
        else:
            if kind == "ClassLabel" and feature.num_classes and not before:
                classes[key] = tuple(feature.names)
            yield key, _number(feature, ())


def _number(feature: Any, outer: tuple[Any, ...]) -> Any:
    """The spec of a feature of numbers, or of text."""
    kind, dtype = type(feature).__name__, np.dtype(feature.np_dtype)
    if kind == "Text" and not outer and feature.encoder is None:
        return bytes
    if kind not in _NUMBERS or not _is_plain(type(feature)):
        raise _UnknownError
    shape = (*outer, *feature.shape)
    as_it_is = (
        not getattr(feature, "_encoded_to_bytes", True)
        and not getattr(feature, "_optional", True)
        and tuple(feature._serialized_shape) == tuple(feature.shape)
        and feature._serialized_dtype == feature.np_dtype
    )
    if not as_it_is or None in shape[1:] or dtype.kind not in "biuf" or dtype == np.uint64:
        raise _UnknownError
    return shape, dtype
