"""Handwritten digits that come with the package.

"Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (1998), UCI Machine
Learning Repository, https://doi.org/10.24432/C50P49, licensed CC BY 4.0. These are its 1,797 test
images; here they are in a fixed random order, split into 1,500 and 297, and their 17 grey levels
are spread over 0 to 255.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np

from .base import RecordedDataset
from .record import Arrays, Form, Record

Split = Literal["train", "test"]
_TRAIN = 1_500


def _read(paths: Sequence[Path], split: str) -> Arrays:
    del paths
    part = slice(None, _TRAIN) if split == "train" else slice(_TRAIN, None)
    return {name: array[part] for name, array in _load().items()}


@cache
def _load() -> Arrays:
    path = resources.files("cereal.datasets") / "digits.npz"
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        levels, labels = stored["image"], stored["label"]
    images = ((levels.astype(np.uint16) * 255 + 8) // 16).astype(np.uint8)
    arrays = {"image": images[..., None], "label": labels.astype(np.int32)}
    for array in arrays.values():
        array.flags.writeable = False
    return arrays


class DigitsDataset(RecordedDataset[Split]):
    """1,797 handwritten digits: `image` uint8[8,8,1], `label` int32.

    `split` is "train" (1,500) or "test" (297). They come with the package: there is no download.

    >>> import cereal
    >>> digits = cereal.DigitsDataset("train")
    >>> len(digits), digits[0]["image"].shape
    (1500, (8, 8, 1))
    """

    record = Record("digits", "digits", ("train", "test"), (Form(_read),), tuple(string.digits))
