"""CelebA: 202,599 faces, read from the archive one by one."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from ..base.errors import DatasetError
from ..base.extras import needs
from ..base.numbers import AHEAD
from ..sources.disk import DiskSampleSource
from .readers.archives import ZipMembers
from .record import Form, Record, RemoteFile
from .storage import CacheDir, SplitFiles, errors_begin_with

Split = Literal["train", "valid", "test"]
_SPLITS = ("train", "valid", "test")
_DRIVE = "https://drive.google.com/uc?export=download&id="
_FILES = (
    RemoteFile(
        "img_align_celeba.zip",
        "md5:00d2c5bc6d35e252742224ab0c1e8fcb",
        ("https://s3-us-west-1.amazonaws.com/udacity-dlnfd/datasets/celeba.zip",),
    ),
    RemoteFile(
        "list_eval_partition.txt",
        "md5:d32c9cbf5e040fd4025c592c306e6668",
        (f"{_DRIVE}0B7EVK8r0v71pY0NSMzRuSXJEVkk", f"{_DRIVE}1ih_VMokoI774ErNWrb26lDeWlanUBpnX"),
    ),
    RemoteFile(
        "list_attr_celeba.txt",
        "md5:75e246fa4810816ffd6ee81facbd244c",
        (f"{_DRIVE}0B7EVK8r0v71pblRyaVFSWGxPY0U", f"{_DRIVE}1gxmFoeEPgF9sT65Wpo85AnHl3zsQ4NvS"),
    ),
)


def _nothing(*_: Any) -> Any:
    raise DatasetError("CelebA is read image by image")


class CelebADataset:
    """Faces with forty attributes: 162,770 for training, 19,867 for validation, 19,962 for testing.

        CelebADataset(split="train")[7]
        {"image": uint8[218,178,3], "attributes": int32[40]}      1: has it, 0: does not have it

    An image is read from the archive when you ask for it; Pillow decodes it (the extra `images`).
    As arrays the images take 24 GB, so use `make_disk_source` for training. `classes` are the names
    of the attributes. The files (1.4 GB) are downloaded and kept as for `MNISTDataset`. By Z. Liu,
    P. Luo, X. Wang and X. Tang, for non-commercial research.
    """

    record = Record("CelebA", "celeba", _SPLITS, (Form(_nothing, dict.fromkeys(_SPLITS, _FILES)),))

    def __init__(
        self, split: Split = "train", cache_dir: CacheDir = None, *, verify: bool = True
    ) -> None:
        owner = type(self).__name__
        self.record.check_split(split, owner)
        _, paths = SplitFiles(self.record, split, cache_dir, verify, owner).located()
        self.split = split
        with errors_begin_with(owner):
            self._archive = ZipMembers(paths[0])
            names = _names_of(paths[1], _SPLITS.index(split))
            self.classes, self._attributes = _attributes_of(paths[2], names)
            inside = {name.rpartition("/")[2]: name for name in self._archive}
            _check_all_in(names, inside, f"{paths[0]} has no image")
            self._members = [inside[name] for name in names]

    @classmethod
    def make_disk_source(
        cls,
        split: Split = "train",
        ordering: Any = "shuffle",
        prefetch_size: int = AHEAD,
        cache_dir: CacheDir = None,
        *,
        verify: bool = True,
    ) -> DiskSampleSource:
        """A source that reads and decodes images in the loader's threads."""
        faces = cls(split, cache_dir, verify=verify)
        return DiskSampleSource(
            len(faces), faces.__getitem__, faces.element_spec(), ordering, prefetch_size
        )

    def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes and dtypes of an element, taken from the first one."""
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), self[0])

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        image = needs("PIL.Image", "images", "CelebADataset")
        name = self._members[index]
        data = self._archive.read(name)
        try:
            with image.open(io.BytesIO(data)) as opened:
                pixels = np.asarray(opened.convert("RGB"))
        except (OSError, ValueError, SyntaxError) as error:
            raise DatasetError(
                f"CelebADataset: {self._archive.path}: {name!r} is no whole image; delete it, "
                f"so that it is fetched again."
            ) from error
        return {"image": pixels, "attributes": self._attributes[index]}

    def as_array_dict(self) -> dict[str, np.ndarray]:
        """All images and attributes as arrays; 24 GB for "train"."""
        spec = self.element_spec()["image"]
        images = np.empty((len(self), *spec.shape), spec.dtype)
        for index, name in enumerate(self._members):
            image = self[index]["image"]
            if image.shape != spec.shape:
                raise DatasetError(
                    f"CelebADataset: {self._archive.path}: {name!r} has the shape "
                    f"{list(image.shape)}, and the first image {list(spec.shape)}."
                )
            images[index] = image
        return {"image": images, "attributes": self._attributes.copy()}

    def __repr__(self) -> str:
        return f"CelebADataset({self.split!r}): {len(self):,} elements"


def _check_all_in(names: list[str], found: dict[str, str], otherwise: str) -> None:
    missing = next((name for name in names if name not in found), None)
    if missing is not None:
        raise DatasetError(f"{otherwise} {missing!r}; fetch it again.")


def _lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def _names_of(path: Path, number: int) -> list[str]:
    """The names of the images of a split."""
    names = []
    for at, line in enumerate(_lines_of(path), 1):
        words = line.split()
        if len(words) != 2 or words[1] not in ("0", "1", "2"):
            raise DatasetError(f"{path}, line {at}: {line!r:.60} is no name and number of a split.")
        if int(words[1]) == number:
            names.append(words[0])
    if not names:
        raise DatasetError(f"{path} names no image of the split {_SPLITS[number]!r}.")
    return names


def _attributes_of(path: Path, names: list[str]) -> tuple[tuple[str, ...], np.ndarray]:
    """The names of the attributes, and 0 or 1 for each of them and each image."""
    lines = _lines_of(path)
    titles = tuple(lines[1].split()) if len(lines) > 1 else ()
    rows = {}
    for at, line in enumerate(lines[2:], 3):
        name, *marks = line.split() or ("",)
        if len(marks) != len(titles) or not titles or not set(marks) <= {"-1", "1"}:
            raise DatasetError(
                f"{path}, line {at}: {line!r:.60} has no name and {len(titles)} times -1 or 1."
            )
        rows[name] = line[len(name) :]
    _check_all_in(names, rows, f"{path} has no attributes of")
    table = np.array(" ".join(rows[name] for name in names).split(), np.int32)
    table = (table.reshape(len(names), len(titles)) + 1) // 2
    table.flags.writeable = False
    return titles, table
