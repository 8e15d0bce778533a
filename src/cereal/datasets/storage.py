"""Data of a dataset: loaded from its files, or mapped into memory as arrays in a folder.

cache/mnist/train-images-idx3-ubyte.gz  --load-->  arrays in memory
             train-labels-idx1-ubyte.gz --map--->  cache/mnist/arrays/train-5f3a.../image.npy
                                                   written once, read by the row
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from ..core.errors import DatasetError, PipelineError
from ..sources.array_files import open_arrays, save_arrays
from .fetching import VARIABLE, cannot_write, data_dir, locked, obtain, user_cache
from .record import Arrays, Form, Record, RemoteFile

CacheDir = str | os.PathLike[str] | None


def located(
    record: Record, split: str, cache_dir: CacheDir, verify: bool, owner: str
) -> tuple[Form, list[Path]]:
    """The files of a split, fetched if need be, and the form that they have."""
    if not any(form.files_of(split) for form in record.forms):  # it comes with the package
        return record.forms[0], []
    folder = data_dir(cache_dir) / record.folder
    at_hand = _form_at_hand(record, split, folder)
    remote = [form for form in record.forms if form.is_remote(split)]
    forms = [at_hand] if at_hand else remote or [record.forms[0]]
    errors: list[DatasetError] = []
    for form in forms:
        try:
            return form, [obtain(file, folder, verify=verify) for file in form.files_of(split)]
        except DatasetError as error:
            errors.append(error)
            if isinstance(error.__cause__, OSError):  # of the disk: others would fail as well
                break
    said = "\n".join(map(str, errors))
    hint = _by_hand(forms[0].files_of(split), folder, record)
    raise DatasetError(f"{owner}: {said}\n{hint}") from errors[0]


def _form_at_hand(record: Record, split: str, folder: Path) -> Form | None:
    """The first form whose files are there."""
    for form in record.forms:
        if all((folder / file.name).is_file() for file in form.files_of(split)):
            return form
    return None


def _by_hand(files: tuple[RemoteFile, ...], folder: Path, record: Record) -> str:
    names = "".join(f"\n  {file.name}  ({file.hash})" for file in files)
    return (
        f"To get them by hand, put these files into {folder}:{names}\n"
        f"or set {VARIABLE} to a folder that has them in its subfolder {record.folder!r}."
    )


@contextlib.contextmanager
def said_by(owner: str) -> Iterator[None]:
    """Errors begin with the one whose call it was."""
    try:
        yield
    except DatasetError as error:
        raise DatasetError(f"{owner}: {error}") from error


def load(record: Record, split: str, cache_dir: CacheDir, verify: bool, owner: str) -> Arrays:
    """A split's arrays, in memory and read-only."""
    form, paths = located(record, split, cache_dir, verify, owner)
    with said_by(owner):
        arrays = form.read(paths, split)
    for array in arrays.values():
        array.flags.writeable = False
    return arrays


def mapped(record: Record, split: str, cache_dir: CacheDir, verify: bool, owner: str) -> Arrays:
    """A split's arrays, in files that are mapped into memory; written at the first call."""
    if not verify:  # its word is of the files that are there
        located(record, split, cache_dir, verify, owner)
    name = f"{split}-{_version(record, split, cache_dir, verify)}"
    shelves = [data_dir(cache_dir) / record.folder / "arrays"]
    if not _can_write(shelves[0]):  # data on a read-only drive
        shelves.append(user_cache() / record.folder / "arrays")
    for shelf in shelves:
        if (shelf / name).is_dir():
            return _opened(shelf / name, owner)
    shelf = shelves[-1]
    try:
        with locked(shelf) as alone:
            if not (shelf / name).is_dir():
                arrays = load(record, split, cache_dir, verify, owner)
                for left in shelf.glob(f".{split}-*") if alone else ():  # by one that was killed
                    shutil.rmtree(left, ignore_errors=True)
                with contextlib.suppress(PipelineError):  # where there are no locks: it is there
                    save_arrays(shelf / name, arrays)
    except DatasetError:
        raise
    except OSError as error:
        raise DatasetError(f"{owner}: {cannot_write(shelf / name, error)}") from error
    return _opened(shelf / name, owner)


def _opened(folder: Path, owner: str) -> Arrays:
    try:
        return open_arrays(folder, owner)
    except PipelineError as error:
        raise DatasetError(
            f"{error}\nThese are unpacked data: delete {folder}, and they are unpacked anew."
        ) from error


def _version(record: Record, split: str, cache_dir: CacheDir, verify: bool) -> str:
    """A word that is another one when the data is."""
    folder = data_dir(cache_dir) / record.folder
    # All forms hold the same: the hashes of the first one stand for the data.
    words = [record.name, *(file.hash for file in record.forms[0].files_of(split))]
    form = None if verify else _form_at_hand(record, split, folder)
    if form is not None:
        files = form.files_of(split)
        stats = [(folder / file.name).stat() for file in files if (folder / file.name).is_file()]
        words += [f"{folder} {stat.st_size} {stat.st_mtime_ns}" for stat in stats]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:12]


def _can_write(folder: Path) -> bool:
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    return os.access(there, os.W_OK | os.X_OK)
