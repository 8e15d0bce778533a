"""Files of records as a table: bytes, or what `decode=` makes of them.

decode=None                        bytes
decode=function                    function(bytes): any element, one record at a time
decode=((28, 28), "uint8")         a record is the array's bytes
decode={"image": ..., ...}         a record is a tf.train.Example with these features
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...base.errors import DatasetError, PipelineError
from ..leaves import ArrayForm
from ..tables.table import Table, objects
from .example import ExampleDecoder
from .example_column import RecordError, filled
from .features import FeatureSpec, specs_of

_BYTES = objects("the bytes of a record; pass `decode=`, or read them in a HostMapTransform")


class RecordFiles(ABC):
    """Files of records: numbered through all files."""

    lengths: Sequence[int]
    """The number of records of each file."""

    @abstractmethod
    def read_file(self, number: int, records: list[int]) -> Sequence[bytes]:
        """Records of one file."""

    @abstractmethod
    def path(self, number: int) -> str:
        """The path of a file."""

    @abstractmethod
    def digest(self) -> Any:
        """What names these files as they are now."""

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum(np.asarray(self.lengths, np.int64))

    @property
    def name(self) -> str:
        """What they are called in drawings."""
        more = f" and {len(self.lengths) - 1} more" if len(self.lengths) > 1 else ""
        return f"{os.path.basename(self.path(0))}{more}"

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self.lengths) else 0

    def read(self, indices: np.ndarray) -> Sequence[bytes]:
        """Records by index."""
        if len(self.lengths) == 1:
            return self.read_file(0, indices.tolist())
        owner = np.searchsorted(self._ends, indices, side="right")
        found: list[Any] = [None] * len(indices)
        for number in np.unique(owner).tolist():
            lanes = np.flatnonzero(owner == number)
            local = indices[lanes] - (self._ends[number] - self.lengths[number])
            records = self.read_file(number, local.tolist())
            for lane, record in zip(lanes.tolist(), records, strict=True):
                found[lane] = record
        return found

    def place(self, index: int) -> str:
        """A record in an error message."""
        number = int(np.searchsorted(self._ends, index, side="right"))
        inside = index - int(self._ends[number]) + self.lengths[number]
        return f"record {inside} of {self.path(number)!r}"


class RecordTable(Table):
    """The records of files."""

    def __init__(self, files: RecordFiles, decode: Any, owner: str, name: str = "") -> None:
        self.files, self.name, self._owner = files, name or files.name, owner
        self._decoder, self.decode = decoder_of(decode, owner)
        self.form = _BYTES if self._decoder is None else self._decoder.form
        if self._decoder is not None and len(files):
            self.take(np.zeros(1, np.int64))  # what the first record lacks is known at once

    def __len__(self) -> int:
        return len(self.files)

    def take(self, indices: np.ndarray) -> list[Any]:
        records = self.files.read(indices)
        if self._decoder is None:
            return [records]
        try:
            return self._decoder.columns(records)
        except RecordError as error:
            place = self.files.place(int(indices[error.lane]))
            raise DatasetError(f"{self._owner}: {place} {error.words}.") from error

    def digest(self) -> Any:
        return [self.files.digest(), None if self._decoder is None else self._decoder.digest()]


def decoder_of(decode: Any, owner: str) -> tuple[Any, Callable[[bytes], Any] | None]:
    """What makes columns of records, and the function that makes an element of one."""
    if decode is None:
        return None, None
    if isinstance(decode, Mapping):
        return ExampleDecoder(decode, owner), None
    if isinstance(decode, tuple):
        return ArrayDecoder(decode, owner), None
    if callable(decode):
        return None, decode
    raise PipelineError(
        f"{owner}: `decode` must be a function from bytes to an element, the features of a "
        f'tf.train.Example (`{{"label": ((), "int64")}}`), or the shape and dtype of an array '
        f'(`((28, 28), "uint8")`), got {type(decode).__name__} ({decode!r:.60}).'
    )


class ArrayDecoder:
    """Records that are the bytes of arrays of one shape."""

    def __init__(self, decode: Any, owner: str) -> None:
        spec = specs_of({"decode": decode}, owner)["decode"]
        if not spec.is_fixed or spec.has_default:
            raise PipelineError(
                f'{owner}: `decode={decode}` must be a shape and a dtype, `((28, 28), "uint8")`.'
            )
        self._spec: FeatureSpec = spec
        self.form = ArrayForm(spec.shape, spec.dtype)

    def digest(self) -> Any:
        return repr(self._spec)

    def columns(self, records: Sequence[bytes]) -> list[Any]:
        size = math.prod(self.form.shape) * self.form.dtype.itemsize
        for lane, record in enumerate(records):
            if len(record) != size:
                form = f"{self.form.dtype}{list(self.form.shape)}"
                raise RecordError(lane, f"has {len(record)} bytes, where {form} has {size}")
        raw = np.frombuffer(b"".join(records), np.uint8).reshape(len(records), size)
        return [filled(self._spec, raw)]
