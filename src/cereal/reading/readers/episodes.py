"""Reads transitions of recorded episodes, or windows of them, with NumPy.

index  ->  step, or the steps of a window     rows of actions, rewards, ends
       ->  row of the observation             `state`; the row after it is `next_state`
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from ..structure import Structure
from .arrays import Arrays, take_rows
from .reader import TakeReader

Rowed = Literal["step", "row", "next", "last", "index"]


@dataclasses.dataclass
class EpisodesReader(TakeReader):
    """Elements of recorded episodes.

    The arrays are: for each element, its place; for each step, how many rows after its own it
    bootstraps from; and then one for each leaf, except for the index.
    """

    label: str
    arrays: Arrays
    structure: Structure
    rowed: Sequence[Rowed]  # for each leaf, which rows of its array it has
    window: int | None

    @property
    def own_memory(self) -> bool:
        return True

    def take(self, indices: np.ndarray) -> list[np.ndarray]:
        places, ahead, *arrays = self.arrays.leaves
        step, row = indices, places[indices]
        if self.window is not None:
            offset = np.arange(self.window)
            step, row = row[:, :1] + offset, row[:, 1:2] + offset
        at = {"step": step, "row": row, "next": row + 1}
        if "last" in self.rowed:
            at["last"] = row + ahead[step]
        rest, found = iter(arrays), []
        for kind in self.rowed:
            if kind == "index":
                found.append(indices.astype(np.int32))
            else:
                taken = take_rows(array := next(rest), at[kind].reshape(-1), "")
                found.append(taken.reshape(at[kind].shape + array.shape[1:]))
        return found
