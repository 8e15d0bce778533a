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

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...base.errors import DatasetError
from ..records.example import ExampleDecoder
from ..records.example_column import RecordError
from ..records.record_table import RecordFiles, RecordTable
from ..tables.table import Stream, Table
from .grain import Iterations, records_of
from .tensorflow import length_of
from .tfds_features import ImageFeature, is_plain, plain_features

_WHOLE = "DESERIALIZE_AND_DECODE"


def recognise(value: Any, owner: str) -> Table | Stream | None:
    """A data source of TFDS, or a stream of its arrays."""
    names = {cls.__name__ for cls in type(value).__mro__}
    if "_IterableDataset" in names:
        return Stream(Iterations(value), length_of(getattr(value, "_ds", None), owner))
    if not is_data_source(value):
        return None
    if getattr(value.deserialize_method, "name", "") == "RAW_BYTES":
        return _records(value, None, owner)
    found = plain_features(value.dataset_info.features) if is_whole(value) else None
    if found is not None:
        return TFDSTable(_records(value, None, owner), found, value.dataset_info.name, owner)
    return _records(value, value._deserialize, owner)


def is_data_source(value: Any) -> bool:
    """Whether this is what `builder.as_data_source()` gives."""
    names = {cls.__name__ for cls in type(value).__mro__}
    return "BaseDataSource" in names and hasattr(value, "data_source")


def is_whole(source: Any) -> bool:
    """Whether a data source gives all features, and decodes them as TFDS does by itself."""
    method = getattr(source.deserialize_method, "name", "")
    return method == _WHOLE and source.decoders is None and is_plain(type(source))


def raw_records(source: Any, owner: str) -> RecordFiles:
    """The records below a data source, as bytes."""
    return _records(source, None, owner).files


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
