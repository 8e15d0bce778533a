"""What a loader has learnt from earlier iterations; it changes no batch."""

from __future__ import annotations

import threading
import warnings

from ...base.errors import EpochWarning
from ...functions.compiled import Latest
from ...pipeline.walk import Key


class Learnt:
    """What one loader has learnt; thread-safe.

    `ahead` says whether one call should make many batches, in a pipeline with user functions. It is
    None until the first long iteration has measured a batch. Then it never changes: a change would
    compile another program in the middle of a training.
    """

    def __init__(self) -> None:
        self.ahead: bool | None = None
        self._lock = threading.Lock()
        self._ended = Latest()  # by key, the last epoch that was run to its end
        self._warned = False

    def decide(self, ahead: bool) -> bool:
        """Sets `ahead`, if it is not set yet; returns its value."""
        with self._lock:
            if self.ahead is None:
                self.ahead = ahead
            return self.ahead

    def ended(self, key: Key, epoch: int) -> None:
        """Records that an iteration has ended with this epoch."""
        self._ended.put(key, epoch)

    def forget_epochs(self) -> None:
        """Forgets which epochs were run."""
        with self._lock:
            self._ended.clear()
            self._warned = False

    def begins(self, key: Key, epoch: int, stacklevel: int) -> None:
        """An iteration begins with this epoch: warns, once, if the last one ended with it too.

        If later epochs ran in between, a new training has begun, and there is no warning.
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
                f'If you want this: for evaluation, `ordering="sequential"` never warns; for '
                f"another training with the same key, write `warnings.simplefilter('ignore', "
                f"cereal.EpochWarning)`.",
                EpochWarning,
                stacklevel=stacklevel + 1,
            )
