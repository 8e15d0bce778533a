"""The data of a dataset: loaded from its files, or unpacked to arrays that are mapped into memory.

cache/mnist/train-images-idx3-ubyte.gz  --load-->  arrays in memory
             train-labels-idx1-ubyte.gz --map--->  cache/mnist/arrays/train-5f3a.../image.npy
                                                   written once, read row by row
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..base.errors import DatasetError, PipelineError
from ..base.paths import user_cache
from ..sources.files.array_files import open_arrays, save_arrays
from .fetching import VARIABLE, cannot_write, data_dir, locked, obtain
from .record import Arrays, Form, Record

CacheDir = str | os.PathLike[str] | None


@contextlib.contextmanager
def errors_begin_with(owner: str) -> Iterator[None]:
    """Puts the name of the dataset before the text of a DatasetError."""
    try:
        yield
    except DatasetError as error:
        raise DatasetError(f"{owner}: {error}") from error


@dataclass(frozen=True)
class SplitFiles:
    """The files of one split of a dataset; `owner` is the caller's name, for errors."""

    record: Record
    split: str
    cache_dir: CacheDir
    verify: bool
    owner: str

    @property
    def folder(self) -> Path:
        return data_dir(self.cache_dir) / self.record.folder

    def located(self) -> tuple[Form, list[Path]]:
        """The form of the files, and their paths; missing files are fetched."""
        forms, split, folder = self.record.forms, self.split, self.folder
        if not any(form.files_of(split) for form in forms):  # it comes with the package
            return forms[0], []
        at_hand = self._form_at_hand()
        remote = [form for form in forms if form.is_remote(split)]
        tried = [at_hand] if at_hand else remote or [forms[0]]
        errors: list[DatasetError] = []
        for form in tried:
            try:
                paths = [obtain(file, folder, verify=self.verify) for file in form.files_of(split)]
                return form, paths
            except DatasetError as error:
                errors.append(error)
                if isinstance(error.__cause__, OSError):  # the disk: other forms would fail too
                    break
        said = "\n".join(map(str, errors))
        names = "".join(f"\n  {file.name}  ({file.hash})" for file in tried[0].files_of(split))
        raise DatasetError(
            f"{self.owner}: {said}\nTo get them by hand, put these files into {folder}:{names}\n"
            f"or set {VARIABLE} to a folder that has them in its subfolder {self.record.folder!r}."
        ) from errors[0]

    def _form_at_hand(self) -> Form | None:
        """The first form whose files are all in the folder."""
        for form in self.record.forms:
            if all((self.folder / file.name).is_file() for file in form.files_of(self.split)):
                return form
        return None

    def load(self) -> Arrays:
        """The arrays, in memory and read-only."""
        form, paths = self.located()
        with errors_begin_with(self.owner):
            arrays = form.read(paths, self.split)
        for array in arrays.values():
            array.flags.writeable = False
        return arrays

    def mapped(self) -> Arrays:
        """The arrays, in files that are mapped into memory; written at the first call."""
        if not self.verify:  # then the version follows from the existing files
            self.located()
        name = f"{self.split}-{self._version()}"
        folders = [self.folder / "arrays"]
        if not _can_write(folders[0]):  # data on a read-only drive
            folders.append(user_cache() / self.record.folder / "arrays")
        for folder in folders:
            if (folder / name).is_dir():
                return self._opened(folder / name)
        folder = folders[-1]
        try:
            with locked(folder) as alone:
                if not (folder / name).is_dir():
                    arrays = self.load()
                    # Leftovers of a process that was killed.
                    for left in folder.glob(f".{self.split}-*") if alone else ():
                        shutil.rmtree(left, ignore_errors=True)
                    # If there are no locks, another process may have written the folder first.
                    with contextlib.suppress(PipelineError):
                        save_arrays(folder / name, arrays)
        except DatasetError:
            raise
        except OSError as error:
            raise DatasetError(f"{self.owner}: {cannot_write(folder / name, error)}") from error
        return self._opened(folder / name)

    def _opened(self, folder: Path) -> Arrays:
        try:
            return open_arrays(folder, self.owner)
        except PipelineError as error:
            raise DatasetError(
                f"{error}\nThis is unpacked data: delete {folder}, and it is unpacked again."
            ) from error

    def _version(self) -> str:
        """A word that changes when the data changes."""
        # All forms hold the same data, so the hashes of the first form are enough.
        words = [
            self.record.name,
            *(file.hash for file in self.record.forms[0].files_of(self.split)),
        ]
        form = None if self.verify else self._form_at_hand()
        for file in form.files_of(self.split) if form else ():
            stat = (self.folder / file.name).stat()
            words.append(f"{self.folder} {stat.st_size} {stat.st_mtime_ns}")
        return hashlib.sha256("\n".join(words).encode()).hexdigest()[:12]


def _can_write(folder: Path) -> bool:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return os.access(there, os.W_OK | os.X_OK)
