"""Iterates a pipeline with a host part: workers read ahead, a batch is on its way to the device.

workers     read step 4, 5, 6, ...
this        take step 3 when it is read  ->  start its transfer and its compiled stages
the user    has step 2
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from ..core.callback import raising
from ..core.errors import PipelineError
from ..core.execute import Delivery
from ..core.source import Mask
from ..core.state import PipelineState, make_words
from .iterator import PositionalIterator

T = TypeVar("T")


class HostIterator(PositionalIterator[T]):
    """Gives what the loader's readers read."""

    _source: Any
    _track: Any
    _close: Any

    def __init__(self, *args: Any) -> None:
        self._track = self._close = None
        super().__init__(*args)

    def _start(self, state: PipelineState) -> None:
        self.close()
        super()._start(state)
        self._deliver = Delivery(self._source)
        # One at a time: callbacks run when a batch is asked for, and an end must not come early.
        self._plainly = bool(self._source.callbacks) or self._source.unknown_length
        self._failed: Exception | None = None
        self._rows: Any = None  # of the next batch, where it is read but not made
        self._passes = self._epochs  # epochs to go, where their length is not known
        if self._source.stream is not None:
            self._source.stream.adopt(state.bookmark)

    def _plan_calls(self) -> None:
        pass

    def _open(self) -> None:
        self._track = self._source.readers.track(self._words, self._left)
        self._close = weakref.finalize(self, _abandon, self._track)
        self._track.start()

    def close(self) -> None:
        if self._close is not None:
            self._close.detach()
            self._track.close()
            self._track = self._close = None

    def _to_the_end(self) -> int | None:
        return None if self._source.unknown_length else super()._to_the_end()

    def __next__(self) -> tuple[T, Mask]:
        self._end_if_done()
        if self._failed is not None:
            error, self._failed = self._failed, None
            raise error
        if not self._ready:
            self._take()
        pair = self._ready.popleft()
        self._count_one()
        self._handed += 1
        if self._left != 0 and not self._plainly and self._track.ready():
            try:
                self._take()  # on its way while the user is at this one
            except Exception as error:
                self._failed = error  # of the next batch, and for the next call
        return self._with_living_mask(pair)

    def _take(self) -> None:
        if self._track is None:
            self._open()
        if self._rows is None:
            self._rows = self._track.take()  # type: ignore[union-attr]
        while self._source.unknown_length and self._epoch_is_over():
            self._rows = self._next_epoch()
        values, mask = self._delivered(self._rows)
        self._rows = None  # until then the batch has not been made, and may be asked for again
        if not self._source.masks:
            mask = self._mask_of(self._issued)
        self._ready.append((values, mask))
        self._issued += 1

    def _delivered(self, rows: Any) -> tuple[Any, Any]:
        callbacks = self._source.callbacks
        if not callbacks:
            return self._deliver(rows, masked=False)
        with raising(callbacks):
            # The user's function has run, or has failed, when the batch is handed out.
            return jax.block_until_ready(self._deliver(rows, masked=False))

    # Data whose end is not known

    def _epoch_is_over(self) -> bool:
        epoch, offset = self._position(self._issued)
        end = self._source.stream.end_of(epoch)
        dropped = self._arithmetic["remainder"] == "drop"
        least = self._source.plan.batch if dropped else 1
        return end is not None and offset + least > end

    def _next_epoch(self) -> Any:
        epoch, offset = self._position(self._issued)
        dropped = self._arithmetic["remainder"] == "drop"
        least = self._source.plan.batch if dropped else 1
        nothing = offset == 0 and (self._source.stream.end_of(epoch) or 0) < least
        self.close()
        self._rows = None
        self._origin, self._handed, self._issued = (epoch + 1, 0), 0, 0
        self._words = jnp.asarray(make_words(self._key, epoch + 1, 0))
        self._passes = None if self._passes is None else self._passes - 1
        if self._steps is None and (self._passes == 0 or nothing):
            self._left = 0
            self._end_if_done()
        if nothing:
            raise PipelineError(
                f"the iterator of an IterableSource gave {self._source.stream.end_of(epoch)} "
                f"elements in epoch {epoch}, and a batch needs {least}."
            )
        self._open()
        return self._track.take()

    @property
    def state(self) -> PipelineState:
        state = super().state
        return self._source.moved(state, state.words)

    @state.setter
    def state(self, state: PipelineState) -> None:
        PositionalIterator.state.fset(self, state)  # type: ignore[attr-defined]

    @property
    def skipped(self) -> int:
        """Elements that the loader left out because of errors, so far."""
        return self._source.readers.skipped


def _abandon(track: Any) -> None:
    with contextlib.suppress(Exception):
        getattr(track, "abandon", track.close)()
