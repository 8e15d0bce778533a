"""Handwritten digits that come with the package.

"Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (1998), UCI Machine
Learning Repository, https://doi.org/10.24432/C50P49, licensed CC BY 4.0. These are its 1,797 test
images; here they are in a fixed random order, split into 1,500 and 297, and their 17 grey levels
are spread over 0 to 255.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

import numpy as np

from ..core.errors import PipelineError

Split = Literal["train", "test"]
_TRAIN = 1_500


class DigitsDataset:
    """1,797 handwritten digits: `image` uint8[8,8], `label` int32.

    `split` is "train" (1,500) or "test" (297).

    >>> import cereal
    >>> digits = cereal.DigitsDataset("train")
    >>> len(digits), digits[0]["image"].shape
    (1500, (8, 8))
    """

    def __init__(self, split: Split = "train") -> None:
        if split not in get_args(Split):
            raise PipelineError(
                f"DigitsDataset: unknown split {split!r}; it has {' and '.join(get_args(Split))}."
            )
        images, labels = _load()
        part = slice(None, _TRAIN) if split == "train" else slice(_TRAIN, None)
        self.split = split
        self._arrays = {"image": images[part], "label": labels[part]}

    def __len__(self) -> int:
        return len(self._arrays["label"])

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: array[index] for name, array in self._arrays.items()}

    def as_array_dict(self) -> dict[str, np.ndarray]:
        """All images and labels, as fresh NumPy arrays."""
        return {name: array.copy() for name, array in self._arrays.items()}

    def __repr__(self) -> str:
        return f"DigitsDataset({self.split!r}): {len(self)} elements"


@cache
def _load() -> tuple[np.ndarray, np.ndarray]:
    path = resources.files("cereal.datasets") / "digits.npz"
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        levels, labels = stored["image"], stored["label"]
    images = ((levels.astype(np.uint16) * 255 + 8) // 16).astype(np.uint8)
    labels = labels.astype(np.int32)
    images.flags.writeable = labels.flags.writeable = False
    return images, labels
