"""A folder of images as a table: encoded bytes, and a label from the name of a folder or a CSV."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...base.errors import PipelineError
from ..images.names import ENCODED, SUFFIXES
from ..leaves import ArrayForm
from ..tables.table import Table, objects
from ..tables.words import Words

_FILE, _LABEL = "file", "label"


class Labelled(NamedTuple):
    """Images and their labels, as they were found."""

    files: list[str]  # from the folder on, with slashes
    labels: list[int]
    classes: tuple[str, ...] | None  # None: the labels were numbers
    ignored: int


class ImageFolderTable(Table):
    """`{"image": bytes, "label": int}` for each image."""

    def __init__(self, folder: Path, found: Labelled, owner: str) -> None:
        self._folder, self._owner = os.path.abspath(folder), owner
        self._files, self._labels = Words.of(found.files), np.array(found.labels, np.int64)
        # The size and time of each file, to notice when one changes.
        paths = (os.path.join(self._folder, file) for file in found.files)
        seen = [_seen(os.stat(path)) for path in paths]
        self._seen = np.array(seen, np.int64).reshape(len(found.files), 2)
        self.classes = {} if found.classes is None else {_LABEL: found.classes}
        self.form = {"image": objects(ENCODED), _LABEL: ArrayForm((), np.dtype(np.int64))}
        self.name = folder.name
        self.name += "" if found.classes is None else f", {len(found.classes)} classes"
        self.name += f", {found.ignored} files ignored" if found.ignored else ""

    def __len__(self) -> int:
        return len(self._labels)

    def take(self, indices: np.ndarray) -> list[Any]:
        return [[self._image(index) for index in indices.tolist()], self._labels[indices]]

    def path(self, index: int) -> str:
        """The file of an image."""
        return os.path.join(self._folder, self._files[index])

    def _image(self, index: int) -> bytes:
        path = self.path(index)
        try:
            with open(path, "rb", buffering=0) as file:
                now, data = _seen(os.fstat(file.fileno())), file.readall()
        except FileNotFoundError as error:
            raise PipelineError(
                f"{self._owner}: the file {path!r} is gone; build the source and the loader again."
            ) from error
        if now != tuple(self._seen[index].tolist()):
            raise PipelineError(
                f"{self._owner}: the file {path!r} has changed since the source was built; build "
                f"the source and the loader again."
            )
        return data

    def digest(self) -> Any:
        return [self._folder, self._files.letters, self._labels, self._seen]


def _seen(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def by_folder(folder: Path, classes: Sequence[str] | None, owner: str) -> Labelled:
    """The images below `folder`; the first folder on the way to an image is its class."""
    there = sorted(entry.name for entry in folder.iterdir() if _is_class(entry))
    if not there:
        raise PipelineError(
            f"{owner}: {str(folder)!r} has no folders, one for each class, with images in them; "
            f'for labels in a table, write `labels="labels.csv"`.'
        )
    names = _classes(there, classes, folder, owner)
    files: list[str] = []
    labels: list[int] = []
    ignored = sum(1 for entry in folder.iterdir() if not _hidden(entry.name)) - len(there)
    for name in there:
        found = list(_files_below(folder / name, name, (os.path.realpath(folder),)))
        images = sorted(file for file in found if is_image(file))
        ignored += len(found) - len(images)
        if not images and classes is None:
            raise PipelineError(
                f"{owner}: the folder {str(folder / name)!r} of a class has no images "
                f"({', '.join(SUFFIXES)}); remove it, or state the classes: "
                f"`classes=('cat', 'dog', ...)`."
            )
        files += images
        labels += [names.index(name)] * len(images)
    return Labelled(files, labels, names, ignored)


def _classes(there: list[str], classes: Any, where: Any, owner: str) -> tuple[str, ...]:
    if classes is None:
        return tuple(there)
    unknown = [name for name in there if name not in classes]
    if unknown:
        raise PipelineError(
            f"{owner}: {str(where)!r} has a class {unknown[0]!r}, which is not among `classes` "
            f"({', '.join(map(repr, list(classes)[:4]))}, ...)."
        )
    return tuple(classes)


def _hidden(name: str) -> bool:
    return name.startswith(".")


def _is_class(entry: Path) -> bool:
    return entry.is_dir() and not _hidden(entry.name)


def is_image(file: str) -> bool:
    """Whether the name of a file is that of an image."""
    return file.rpartition(".")[2].lower() in SUFFIXES


def _files_below(folder: Path, name: str, above: tuple[str, ...]) -> Iterator[str]:
    """All files below a folder that are not hidden. A link to a folder above is not followed."""
    own = os.path.realpath(folder)
    if own in above:
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if _hidden(entry.name):
                continue
            inside = f"{name}/{entry.name}"
            if entry.is_dir():
                yield from _files_below(folder / entry.name, inside, (*above, own))
            elif entry.is_file():
                yield inside


def by_table(folder: Path, path: Path, classes: Sequence[str] | None, owner: str) -> Labelled:
    """The images that a CSV names, in its order: columns `file` and `label`."""
    files: dict[str, int] = {}
    labels: list[str] = []
    with open(path, encoding="utf-8-sig", newline="") as opened:
        rows = csv.DictReader(opened)
        names = [name.strip() for name in rows.fieldnames or ()]
        if not {_FILE, _LABEL} <= set(names):
            raise PipelineError(
                f"{owner}: {str(path)!r} must have columns `file` and `label`, named in its first "
                f"line; that is {','.join(names)!r:.80}."
            )
        rows.fieldnames = names
        for row in rows:
            file, label = (row[name] or "" for name in (_FILE, _LABEL))
            where = f"{owner}: {str(path)!r}, line {rows.line_num}"
            file = _checked(file.strip(), folder, where)
            if file in files:
                raise PipelineError(f"{where}: {file!r} stands in line {files[file]} already.")
            if not label.strip():
                raise PipelineError(f"{where}: {file!r} has no label; write one, or leave it out.")
            files[file] = rows.line_num
            labels.append(label.strip())
    return _numbered(list(files), labels, classes, path, owner)


def _checked(file: str, folder: Path, where: str) -> str:
    if not file or os.path.isabs(file) or ".." in file.replace("\\", "/").split("/"):
        raise PipelineError(
            f"{where}: the file {file!r} must be a path from {str(folder)!r} on, inside of it."
        )
    if not (folder / file).is_file():
        raise PipelineError(f"{where}: there is no file {file!r} in {str(folder)!r}.")
    return file


def _numbered(
    files: list[str], labels: list[str], classes: Any, path: Path, owner: str
) -> Labelled:
    """Labels that are whole numbers stay as they are; others are numbered in their sorted order."""
    if classes is None and all(label.removeprefix("-").isdecimal() for label in labels):
        return Labelled(files, [int(label) for label in labels], None, 0)
    names = _classes(sorted(set(labels)), classes, path, owner)
    number = {name: at for at, name in enumerate(names)}
    return Labelled(files, [number[label] for label in labels], names, 0)
