"""What a loader has learnt from being iterated; nothing in it changes what a batch is."""

from __future__ import annotations

import threading
import warnings

from ..core.compiled import Latest
from ..core.errors import EpochWarning

Key = tuple[int, int]


class Learnt:
    """Belongs to one loader and goes with it; thread-safe.

    `ahead` says whether one call should make many batches of a pipeline with user functions: None
    until the first long iteration has seen what a batch costs. Then it never changes, since to
    change it would compile another program in the middle of a training.
    """

    def __init__(self) -> None:
        self.ahead: bool | None = None
        self._lock = threading.Lock()
        self._ended = Latest()  # by key, the last epoch that was run to its end
        self._warned = False

    def decide(self, ahead: bool) -> bool:
        """Who decides first decides for all."""
        with self._lock:
            if self.ahead is None:
                self.ahead = ahead
            return self.ahead

    def ended(self, key: Key, epoch: int) -> None:
        """An iteration has run this epoch, the last one asked of it, to its end."""
        self._ended.put(key, epoch)

    def forget_epochs(self) -> None:
        """As if nothing had been run yet."""
        with self._lock:
            self._ended.clear()
            self._warned = False

    def begins(self, key: Key, epoch: int, stacklevel: int) -> None:
        """An iteration begins with this epoch: says so, once, if that was the one before too.

        Whoever went on to later epochs and comes back began a training anew, and is left alone.
        """
        with self._lock:
            repeated = self._ended.get(key) == epoch and not self._warned
            self._warned = self._warned or repeated
        if repeated:
            warnings.warn(
                f"this loader has run epoch {epoch} of this key to its end and begins it again: "
                f"the same elements in the same order, with the same augmentation. For the next "
                f"epoch, write `batches = loader.iterate(state)`, and after the loop over it "
                f"`state = batches.state`; or write one loop, `loader.iterate(state, epochs=10)`. "
                f'If it is meant: for evaluation, `ordering="sequential"` never warns; for '
                f"another training with the same key, write `warnings.simplefilter('ignore', "
                f"cereal.EpochWarning)`.",
                EpochWarning,
                stacklevel=stacklevel + 1,
            )
