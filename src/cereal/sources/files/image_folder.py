"""Folders of images."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ...base.errors import PipelineError
from ...base.numbers import as_count
from ...base.paths import as_path
from ...base.pytree import pytree_dataclass
from ...reading.formats.image_folder import ImageFolderTable, by_folder, by_table
from ..table import TableSource

_OWNER = "ImageFolderSource"


@pytree_dataclass
class ImageFolderSource(TableSource):
    """Images in folders, one for each class; or in one folder, with a table of their labels.

        pets/                              source.classes   {"label": ("cat", "dog")}
          cat/1.jpg  cat/2.jpg             an element       {"image": b"...", "label": 0}
          dog/old/7.png

        pets/
          labels.csv    file,label         labels="labels.csv"
          1.jpg 2.jpg   1.jpg,cat

    An image is the bytes of its file; `DecodeImageTransform` decodes it, on the workers:

        decode = DecodeImageTransform(size=(224, 224), crop="center")
        loader = DataLoader([ImageFolderSource("pets"), decode, BatchTransform(32)])

    Args:
        folder: The folder.
        labels: A CSV file with the columns `file` and `label`, in the folder or anywhere. Labels
            that are whole numbers are used as they are; others are numbered in sorted order.
            Default: the folder below `folder` in which an image is, at any depth, is its class.
        ordering: "shuffle" (default), "sequential", or any other order. The order of the images is
            that of their sorted names, or that of the CSV.
        classes: The names of the classes, in the order of their numbers: pass those of the training
            data for other data, `classes=train.classes["label"]`. Default: those that are there,
            sorted.
        index_key: The name under which the index of each element is added. Default: it is not.

    Hidden files are ignored. So are files that are no images by their suffix; the drawing says how
    many. If an element fails, the error names its index, and `source.path(index)` is its file.
    """

    def __init__(
        self,
        folder: Any,
        labels: Any = None,
        ordering: Any = "shuffle",
        *,
        classes: Any = None,
        index_key: str | None = None,
    ) -> None:
        place = as_path(folder, "folder", _OWNER)
        if not place.is_dir():
            what = "is a file" if place.exists() else "does not exist"
            raise PipelineError(
                f"{_OWNER}: the folder {str(place)!r} {what}; you are in {os.getcwd()!r}."
            )
        _check_classes(classes)
        if labels is None:
            found = by_folder(place, classes, _OWNER)
        else:
            found = by_table(place, _table(labels, place), classes, _OWNER)
        if not found.files:
            raise PipelineError(f"{_OWNER}: there are no images in {str(place)!r}.")
        self._open(ImageFolderTable(place, found, _OWNER), ordering, index_key)

    def path(self, index: int) -> str:
        """The file of the image at an index."""
        return self.data.table.path(as_count(index, "index", _OWNER, 0, len(self) - 1))


def _check_classes(classes: Any) -> None:
    if classes is None:
        return
    named = isinstance(classes, list | tuple) and all(isinstance(each, str) for each in classes)
    if not named or len(set(classes)) < len(classes):
        raise PipelineError(
            f"{_OWNER}: `classes` must be different names, such as ('cat', 'dog'), got "
            f"{classes!r:.80}."
        )


def _table(labels: Any, folder: Path) -> Path:
    path = as_path(labels, "labels", _OWNER)
    for place in (folder / path, path):
        if place.is_file():
            return place
    raise PipelineError(
        f"{_OWNER}: there is no {str(path)!r} in {str(folder)!r}, nor in {os.getcwd()!r}."
    )
