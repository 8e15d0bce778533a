"""IDX files, the format of MNIST.

00 00 08 03 | 0000ea60 0000001c 0000001c | pixels ...
      |  |      60000       28       28
      |  number of axes
      type: 08 is uint8
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...base.errors import DatasetError
from ..record import Arrays
from .archives import ZipMembers, unzipped

_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def parse_idx(data: bytes, where: Path | str) -> np.ndarray:
    """The array that an IDX file holds, plain or gzipped; a view of the bytes."""
    data = unzipped(data, Path(where))
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _TYPES or data[3] < 1:
        raise DatasetError(
            f"{where} is no IDX file: it begins with {data[:4].hex() or 'nothing'}, and 0000, a "
            f"type and a number of axes should be there. Is it another file, or a web page?"
        )
    axes, dtype = data[3], np.dtype(_TYPES[data[2]])
    begin = 4 + 4 * axes
    if len(data) < begin:
        raise DatasetError(
            f"{where} is truncated: it has {len(data)} bytes, and its header alone {begin}. Delete "
            f"it, so that it is fetched again."
        )
    shape = tuple(np.frombuffer(data[4:begin], ">u4").tolist())
    size = begin + math.prod(shape) * dtype.itemsize
    if len(data) != size:
        said = "x".join(map(str, shape))
        raise DatasetError(
            f"{where} is {'truncated' if len(data) < size else 'too long'}: it has {len(data):,} "
            f"bytes, and {said} numbers need {size:,}. Delete it, so that it is fetched again."
        )
    array = np.frombuffer(data, dtype, offset=begin).reshape(shape)
    return array.astype(dtype.newbyteorder("=")) if dtype.itemsize > 1 else array


def read_pair(paths: Sequence[Path], split: str) -> Arrays:
    """Images and labels from two files."""
    del split
    return pair(*((path.read_bytes(), path) for path in paths))


def read_zipped_pair(paths: Sequence[Path], names: Sequence[str]) -> Arrays:
    """Images and labels from two members of a zip archive."""
    archive = ZipMembers(paths[0])
    return pair(*((archive.read(name), f"{paths[0]}/{name}") for name in names))


def pair(images: tuple[bytes, Path | str], labels: tuple[bytes, Path | str]) -> Arrays:
    """The images and labels of two files; refuses files that do not belong together."""
    image, label = parse_idx(*images), parse_idx(*labels)
    for array, axes, what, where in (
        (image, 3, "images", images[1]),
        (label, 1, "labels", labels[1]),
    ):
        if array.ndim != axes or array.dtype != np.uint8:
            raise DatasetError(
                f"{where} holds {array.dtype}{list(array.shape)}; {what} are uint8 of {axes} axes. "
                f"Are the files of images and labels swapped?"
            )
    if len(image) != len(label):
        raise DatasetError(
            f"{images[1]} has {len(image):,} images, and {labels[1]} has {len(label):,} labels; "
            f"the two files do not belong together."
        )
    return {"image": image[..., None], "label": label.astype(np.int32)}
