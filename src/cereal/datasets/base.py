"""The base classes of datasets that are arrays; a record describes each dataset."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from ..base.numbers import AHEAD
from ..pipeline.positional import IndexedSource
from ..sources.dataset import InMemoryDataset
from ..sources.files.on_disk import source_on_disk
from .record import Arrays, Record
from .storage import CacheDir, SplitFiles

S = TypeVar("S", bound=str)
TRAIN: Any = "train"


class ArrayDataset(InMemoryDataset, Generic[S]):
    """A dataset that is a dict of arrays of one length."""

    split: S
    classes: tuple[str, ...] = ()  # names of the labels 0, 1, 2, ...
    _arrays: Arrays

    def __len__(self) -> int:
        return len(next(iter(self._arrays.values())))

    def __getitem__(self, index: Any) -> dict[str, Any]:
        return {name: array[index] for name, array in self._arrays.items()}

    def as_array_dict(self) -> dict[str, np.ndarray]:
        """All elements, as a dict of new NumPy arrays."""
        return {name: array.copy() for name, array in self._arrays.items()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.split!r}): {len(self):,} elements"


class RecordedDataset(ArrayDataset[S]):
    """A dataset that a record describes: its files, how they are read, and its classes.

        dataset = MNISTDataset("train")      files are downloaded once, and checked
        dataset[7]                           {"image": uint8[28,28,1], "label": int32[]}
        dataset.as_array_dict()              {"image": uint8[60000,28,28,1], "label": ...}
        MNISTDataset.make_disk_source()      a source whose data stays on disk

    Elements are read-only views of the data; `as_array_dict` makes copies.
    """

    record: ClassVar[Record]

    def __init__(
        self, split: S = TRAIN, cache_dir: CacheDir = None, *, verify: bool = True
    ) -> None:
        self._fill(self.record, split, cache_dir, verify)

    def _fill(self, record: Record, split: S, cache_dir: CacheDir, verify: bool) -> None:
        owner = type(self).__name__
        record.check_split(split, owner)
        self.split, self.classes = split, record.classes
        self._arrays = SplitFiles(record, split, cache_dir, verify, owner).load()

    @classmethod
    def make_disk_source(
        cls,
        split: S = TRAIN,
        ordering: Any = "shuffle",
        prefetch_size: int = AHEAD,
        cache_dir: CacheDir = None,
        *,
        verify: bool = True,
    ) -> IndexedSource[dict[str, Any]]:
        """A source whose data stays in files; they are unpacked once, into the cache folder.

            MNISTDataset.make_disk_source(split="train", ordering="shuffle", prefetch_size=1024)

        The files are mapped into memory: the operating system keeps what was read in its cache, and
        frees it when memory is short. On the CPU, compiled code reads the files directly. For other
        devices, the loader reads `prefetch_size` elements ahead and transfers only batches.
        """
        return cls._on_disk(cls.record, ordering, prefetch_size, split, cache_dir, verify)

    @classmethod
    def _on_disk(
        cls,
        record: Record,
        ordering: Any,
        prefetch_size: int,
        split: str,
        cache_dir: CacheDir,
        verify: bool,
    ) -> IndexedSource[dict[str, Any]]:
        owner = f"{cls.__name__}.make_disk_source"
        record.check_split(split, owner)
        arrays = SplitFiles(record, split, cache_dir, verify, owner).mapped()
        return source_on_disk(arrays, ordering, prefetch_size, owner)
