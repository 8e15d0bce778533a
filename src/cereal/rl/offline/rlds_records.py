"""Episodes of RLDS from their records, without TensorFlow: all steps of one are in one record.

    steps/reward         float list of L                  float32[L]
    steps/observation    float list of L * 17             float32[L, 17]
    steps/is_last        integer list of L                bool[L]

TFDS takes 13 to 36 microseconds a step, and one or less is enough here (`benchmarks/offline.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ...base.errors import DatasetError, PipelineError
from ...reading.bridges.tfds import is_data_source, is_whole, raw_records
from ...reading.bridges.tfds_features import plain_steps
from ...reading.records.array_record import ArrayRecordFiles
from ...reading.records.example import ExampleDecoder
from ...reading.records.example_column import RecordError
from ...reading.records.record_table import RecordFiles
from ...reading.records.tfrecord import TFRecordFiles

_AT_ONCE = 16 << 20  # bytes of arrays
_MOST = 256  # episodes at once


class Keys(NamedTuple):
    """Which keys of steps are read: those that must be there, and some or all others."""

    needed: set[str]
    if_there: set[str]
    others: bool

    def of(self, has: set[str]) -> set[str] | None:
        if not self.needed <= has:
            return None
        return has if self.others else has & (self.needed | self.if_there)


def check_files(parts: Any, owner: str) -> None:
    """Refuses a split some of whose files are missing; those in a cloud are not looked up."""
    for part in parts:
        name = os.fspath(part.filename)
        if "://" not in name and not os.path.exists(name):
            raise DatasetError(f"{owner}: the file {name!r} is missing; get it again.")


def episodes_of_files(builder: Any, split: str, keys: Keys, owner: str) -> Any:
    """The episodes of a split that TFDS wrote as TFRecord files; None if TFDS must decode them."""
    parts = builder.info.splits[split].file_instructions
    decoder = _decoder(builder.info.features, keys, owner)
    if decoder is None or not all(os.path.isfile(part.filename) for part in parts):  # in a cloud
        return None
    files = TFRecordFiles([part.filename for part in parts], owner)
    rows, begin = [np.zeros(0, np.int64)], 0
    for part, length in zip(parts, files.lengths, strict=True):
        end = _checked_end(part, length, owner)
        rows.append(np.arange(begin + part.skip, begin + end))
        begin += length
    try:
        return _tried(files, np.concatenate(rows), decoder, owner)
    except ImageDoubtError:  # TensorFlow can
        return None


def _checked_end(part: Any, length: int, owner: str) -> int:
    """Where the part of a file ends; refuses a file that has not the records it is said to have."""
    end = part.skip + part.take if part.take >= 0 else length
    if end > length:  # otherwise records of the next file would be read instead
        raise DatasetError(
            f"{owner}: {part.filename!r} has {length} records, and {end} are needed; it was cut "
            f"off, or 'dataset_info.json' is of another dataset, so get both again."
        )
    said = getattr(part, "examples_in_shard", length)
    if length > said:
        raise DatasetError(
            f"{owner}: {part.filename!r} has {length} records, and 'dataset_info.json' says "
            f"{said}; they are not of one dataset, so get both again."
        )
    return end


def check_source(source: Any, place: str, owner: str) -> None:
    """Refuses a data source of TFDS that has other episodes than its split."""
    try:
        split = source.dataset_info.splits[source.split]
        wanted, parts = split.num_examples, split.file_instructions
    except (AttributeError, KeyError, TypeError, ValueError):  # it cannot be told
        return
    _check_part(source, wanted, parts, f"{owner}: {place or f'split {source.split!r}'}")
    if type(source.data_source).__name__ != "ArrayRecordDataSource":
        return
    names = [os.fspath(part.filename) for part in parts]
    if all(map(os.path.isfile, names)):  # not in a cloud
        for part, length in zip(parts, ArrayRecordFiles(names, owner).lengths, strict=True):
            _checked_end(part, length, owner)


def _check_part(source: Any, wanted: int, parts: Any, owner: str) -> None:
    """Refuses what TFDS does with Parquet: of a part of a split, it gives the whole split."""
    found = len(source)
    if found == wanted:
        return
    if wanted == sum(part.examples_in_shard for part in parts):
        raise DatasetError(
            f"{owner} has {found} episodes, and 'dataset_info.json' says {wanted}; they are not of "
            f"one dataset, so get both again."
        )
    whole = re.sub(r"\[[^]]*\]", "", source.split) if isinstance(source.split, str) else "train"
    raise PipelineError(
        f"{owner}: TFDS gives {found} episodes, and {wanted} were asked for: of a Parquet file it "
        f"gives all. Choose episodes yourself: `source = builder.as_data_source({whole!r})`, "
        f"`RLDSSource([source[i] for i in range({wanted})])`; or store it as ArrayRecord."
    )


def episodes_of_source(source: Any, keys: Keys, owner: str) -> Any:
    """The episodes of a data source of TFDS; None if TFDS must decode them, or it is another."""
    if not is_data_source(source) or not is_whole(source):
        return None
    decoder = _decoder(source.dataset_info.features, keys, owner)
    if decoder is None:
        return None
    files = raw_records(source, owner)
    try:
        return _tried(files, np.arange(len(files)), decoder, owner)
    except ImageDoubtError as error:  # TFDS would not say so
        raise DatasetError(f"{owner}: {files.place(0)} {error.words}.") from error


def _decoder(features: Any, keys: Keys, owner: str) -> StepsDecoder | None:
    try:
        steps = features["steps"]
        wanted = keys.of(set(steps.feature.keys()))
    except (KeyError, TypeError, AttributeError):
        return None
    found = None if wanted is None else plain_steps(steps, "steps", wanted)
    return None if found is None else StepsDecoder(*found, owner)


def _tried(
    files: RecordFiles, rows: np.ndarray, decoder: StepsDecoder, owner: str
) -> RecordedEpisodes | None:
    """The episodes, if the first record is stored as its features say; versions of TFDS differ."""
    try:
        decoder.trees(files.read(rows[:1]))
    except ImageDoubtError:
        raise
    except RecordError:
        return None
    return RecordedEpisodes(files, rows, decoder, owner)


class ImageDoubtError(RecordError):
    """An image that is decoded rightly only by TensorFlow."""


class StepsDecoder:
    """Makes trees of arrays of records, one tree for each."""

    def __init__(self, specs: Any, images: dict[str, Any], owner: str) -> None:
        self._decoder, self._images, self._owner = ExampleDecoder(specs, owner), images, owner

    def trees(self, records: Any) -> list[dict[str, Any]]:
        columns = self._decoder.columns(records)
        made: list[dict[str, Any]] = [{} for _ in records]
        for spec, column in zip(self._decoder.specs, columns, strict=True):
            _, *outer, key = spec.name.split("/")
            for lane, value in enumerate(column):
                tree = made[lane]
                for name in outer:
                    tree = tree.setdefault(name, {})
                tree[key] = self._leaf(spec, value, lane)
        return made

    def _leaf(self, spec: Any, value: Any, lane: int) -> Any:
        image = self._images.get(spec.name)
        if image is None:
            return np.array(value, object) if spec.is_text else value
        try:
            pixels = image.column(value, self._owner)
        except RecordError as error:
            raise RecordError(lane, f"{error.words}, in step {error.lane}") from error
        if words := image.doubt(value, pixels):
            raise ImageDoubtError(
                lane,
                f"cannot be decoded without TensorFlow: {words}, in {spec.name!r}; pass what "
                f"`tfds.builder_from_directory(folder).as_dataset(split=...)` gives",
            )
        if len({each.shape for each in pixels}) > 1:
            raise RecordError(lane, f"has images of several sizes in {spec.name!r}")
        return np.asarray(pixels)


class RecordedEpisodes:
    """Episodes as `{"steps": arrays}`, in the order of their files."""

    def __init__(
        self, files: RecordFiles, rows: np.ndarray, decoder: StepsDecoder, owner: str
    ) -> None:
        self._files, self._rows, self._decoder, self._owner = files, rows, decoder, owner

    def __iter__(self) -> Iterator[dict[str, Any]]:
        at, count = 0, 1
        while at < len(self._rows):
            found = self._read(self._rows[at : at + count])
            yield from ({"steps": steps} for steps in found)
            at += len(found)
            size = sum(map(_bytes_of, found)) // len(found)
            count = max(1, min(_MOST, _AT_ONCE // max(size, 1)))

    def _read(self, rows: np.ndarray) -> list[dict[str, Any]]:
        try:
            return self._decoder.trees(self._files.read(rows))
        except RecordError as error:
            place = self._files.place(int(rows[error.lane]))
            raise DatasetError(f"{self._owner}: {place} {error.words}.") from error


def _bytes_of(tree: Any) -> int:
    if isinstance(tree, dict):
        return sum(map(_bytes_of, tree.values()))
    return tree.nbytes
