"""Iterates a stream, one step at a time; its state is the one that the step returned."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from ...base.errors import UsageError
from ...device.placement import is_spread, place
from ...functions.packed import packed, unpacked
from ...host.callbacks import raising
from ...pipeline.source import Mask, Source
from ..progress import progress_bar
from .batch_iterator import BatchIterator
from .in_place import changed_in_place, is_gone, step_from
from .saved_stream import saved_stream, stream_from

T = TypeVar("T")
R = TypeVar("R")


class StreamIterator(BatchIterator[T]):
    """Iterates a stream: each batch is made from the state that the last step returned.

    If the state holds a buffer, a step changes it in place, and the state before it is gone.
    """

    def __init__(
        self,
        source: Source[T],
        state: Any,
        steps: int | None,
        epochs: int | None,
        progress: bool | str,
    ) -> None:
        super().__init__()
        self._source = source
        if steps is None and epochs is not None:
            steps = epochs * source.steps_per_epoch
        self._begin(state, steps)
        self._bar = progress_bar(progress, steps)

    def _begin(self, state: Any, steps: int | None) -> None:
        self._broken = False
        # The number of the batch that was made last; (batch, mask, state after it), packed; and the
        # state that `feed_back` made of that one, packed, or None. It is one entry, which C code
        # replaces: if a state is overwritten, the next one is never lost.
        made = (0, packed((None, None, _copied(state))), None)
        self._made: deque[tuple[int, Any, Any]] = deque([made], maxlen=1)
        self._handed, self._total = 0, steps

    @property
    def _state(self) -> Any:
        if self._broken:
            raise UsageError(
                "a step of this iterator failed while it changed its buffer in place, and the "
                "buffer is lost; begin again from a state that you saved, `loader.iterate(state)`."
            )
        return self._state_kept()

    def _state_kept(self) -> Any:
        _, step, changed = self._made[0]
        return unpacked(step)[2] if changed is None else unpacked(changed)

    @property
    def _left(self) -> int | None:
        return None if self._total is None else self._total - self._handed

    def _advance(self) -> tuple[T, Mask]:
        self._end_if_done()
        state, number = self._state, self._made[0][0]
        if number == self._handed:  # otherwise an interrupt came before a batch was handed out
            steps = step_from(self._source, state)
            self._replace(state, zip((number + 1,), steps, (None,), strict=True))
        number, step, _ = self._made[0]
        batch, mask, _ = unpacked(step)
        placement = self._source.traits.placement
        if self._in_place and placement is not None and not is_spread(placement):
            batch, mask = place((batch, mask), placement)
        self._bar.update()
        self._handed = number
        return batch, mask

    def _change(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        state, (number, step, _) = self._state, self._made[0]
        changed = changed_in_place(fn, state, args)
        self._replace(state, zip((number,), (step,), changed, strict=True))

    def _looked(self, fn: Callable[..., R], args: tuple[Any, ...]) -> R:
        return fn(self._state, *args)

    def _replace(self, state: Any, entries: Iterator[tuple[int, Any, Any]]) -> None:
        """Makes the next entry by an iterator of one, which calls a program with the state."""
        before, callbacks = self._made[0], self._source.traits.callbacks
        try:
            with raising(callbacks) if self._in_place else contextlib.nullcontext():
                self._made.extend(entries)
                if callbacks and self._in_place:
                    jax.block_until_ready(self._made[0][2] or self._made[0][1])
        except BaseException as error:
            stored = self._made[0] is not before
            # An interrupt that came during the program is raised after the new entry is stored.
            failed = isinstance(error, Exception) or bool(callbacks)
            self._broken = failed if stored else is_gone(state)
            raise

    def _state_now(self) -> Any:
        with self._turn if self._in_place else contextlib.nullcontext():
            return _copied(self._state)

    def _saved_now(self) -> dict[str, Any]:
        with self._turn if self._in_place else contextlib.nullcontext():
            return saved_stream(self._state)

    def _state_from(self, saved: Any) -> Any:
        return stream_from(saved, self._state_kept())

    @property
    def _in_place(self) -> bool:
        return self._source.traits.in_place

    def _set_state(self, state: Any) -> None:
        self._begin(state, self._left)


def _copied(state: Any) -> Any:
    """Our own copy, so that the user may donate the state to a program."""
    return jax.tree.map(jnp.copy, state)
