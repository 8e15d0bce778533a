"""Where an iteration began, and how far it goes."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from ..device.transfer import to_host
from ..order.position import starts, steps_left
from ..order.rows import Plan
from .state import make_words

Key = tuple[int, int]  # the two words of a random key


class Walk:
    """The positions of an iteration's steps.

    When the user sets an iterator's state, the iterator gets a new walk. So another thread sees the
    old walk or the new one, and never a mixture.
    """

    handed: int = 0  # batches that the user has got
    total: int | None = None  # batches in all; None: no end, or the end is not known
    epochs: int | None = None  # epochs that are left, if their length is not known

    def __init__(self, plan: Plan, key: Key, epoch: int, offset: int) -> None:
        self._arithmetic = plan.arithmetic
        self.key, self.epoch, self.offset = key, epoch, offset

    @classmethod
    def starting(cls, plan: Plan, words: Any) -> Self:
        """A walk from the position of a state's words."""
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
        """Steps to the end of its epoch, plus those of `epochs - 1` more epochs."""
        return steps_left(self.offset, epochs, **self._arithmetic)

    @property
    def from_the_beginning(self) -> bool:
        """Whether it starts with the first batch of an epoch.

        If batches wrap around, an epoch's first whole batch begins a few elements after its start.
        """
        return self.offset < self._arithmetic["batch"]
