"""Where an iteration began, and how far it goes."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from ..core.position import starts, steps_left
from ..core.rows import Plan
from ..core.state import make_words
from ..core.transfer import to_host
from .learnt import Key


class Walk:
    """The positions of an iteration's steps.

    An iterator replaces it as a whole when its state is set: who looks from another thread sees one
    walk or the other.
    """

    handed: int = 0  # batches that the user has
    total: int | None = None  # batches to hand out; None: no end, or one that is not known
    epochs: int | None = None  # epochs to go, where nobody knows how long they are

    def __init__(self, plan: Plan, key: Key, epoch: int, offset: int) -> None:
        self._arithmetic = plan.arithmetic
        self.key, self.epoch, self.offset = key, epoch, offset

    @classmethod
    def starting(cls, plan: Plan, words: Any) -> Self:
        """From where the words of a state are."""
        key0, key1, epoch, high, low = to_host(words).tolist()
        return cls(plan, (key0, key1), epoch, (high << 32) | low)

    @property
    def left(self) -> int | None:
        return None if self.total is None else self.total - self.handed

    def at(self, step: int) -> tuple[int, int]:
        """The epoch and offset at which a step starts."""
        epoch, offset = starts(np, self.epoch, self.offset, step, **self._arithmetic)
        return int(epoch), int(offset)

    def words_at(self, step: int) -> np.ndarray:
        """The words of the state from which a step is made."""
        return make_words(self.key, *self.at(step))

    def to_the_end(self, epochs: int) -> int:
        """Steps to the end of its epoch, and of `epochs - 1` more."""
        return steps_left(self.offset, epochs, **self._arithmetic)

    @property
    def from_the_beginning(self) -> bool:
        """Whether it starts with the first batch of an epoch.

        Where batches wrap, an epoch's first batch begins a few elements behind its beginning.
        """
        return self.offset < self._arithmetic["batch"]
