"""Records: descriptions of datasets, their splits, their files and how to read them.

Record("MNIST", folder="mnist")
  └─ Form                          one file format of the data; the first is downloaded
       ├─ files   by split         RemoteFile: a name, a hash, mirrors
       └─ read(paths, split)       {"image": uint8[n,28,28,1], "label": int32[n]}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..base.errors import PipelineError

Arrays = dict[str, np.ndarray]
Reader = Callable[[Sequence[Path], str], Arrays]


@dataclass(frozen=True)
class RemoteFile:
    """A file: its name, its hash, and the addresses from which it can be fetched."""

    name: str
    hash: str  # "sha256:..." or "md5:..."
    urls: tuple[str, ...] = ()


@dataclass(frozen=True)
class Form:
    """One file format of a dataset: the files of each split, and the function that reads them."""

    read: Reader
    files: Mapping[str, tuple[RemoteFile, ...]] = field(default_factory=dict)

    def files_of(self, split: str) -> tuple[RemoteFile, ...]:
        """The files that a split needs; none for data that comes with the package."""
        return self.files.get(split, ())

    def is_remote(self, split: str) -> bool:
        """Whether all files of a split can be fetched."""
        return all(file.urls for file in self.files_of(split))


@dataclass(frozen=True)
class Record:
    """The description of a dataset."""

    name: str
    folder: str  # inside the folder of all datasets
    splits: tuple[str, ...]
    forms: tuple[Form, ...]
    classes: tuple[str, ...] = ()

    def check_split(self, split: str, owner: str) -> None:
        """Refuses a split that the dataset does not have."""
        if split not in self.splits:
            known = ", ".join(map(repr, self.splits))
            raise PipelineError(f"{owner}: unknown split {split!r}; {self.name} has {known}.")


def mirrored(folder_urls: Sequence[str], name: str, hash: str) -> RemoteFile:
    """A file that several servers have under the same name."""
    return RemoteFile(name, hash, tuple(f"{url}/{name}" for url in folder_urls))
