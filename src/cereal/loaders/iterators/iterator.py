"""Iterators over pipelines that compiled programs read.

PositionalIterator   reads ahead; its state is computed from the number of batches handed out
SteppingIterator     the same, but one step at a time, in order, for pipelines with callbacks
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, TypeVar

import jax

from ...device.placement import is_spread, put_words
from ...pipeline.execute import run
from ...pipeline.positional import Positional
from ...pipeline.source import Mask
from ...pipeline.state import PipelineState, check_state, check_within
from ...pipeline.walk import Key, Walk
from ..progress import progress_bar
from .batch_iterator import BatchIterator
from .learnt import Learnt
from .read_ahead import LEAST_CALLS, batches_per_call, read_many
from .saved_state import position_from, saved_position

T = TypeVar("T")

# If a batch takes longer than this, making many in one call saves nothing. In seconds.
_WORTH_READING_AHEAD = 1e-3
_TRIALS = 4


class WalkingIterator(BatchIterator[T]):
    """Iterates an indexed pipeline; its position follows from how many batches were handed out."""

    _kind: type[Walk] = Walk
    _walk: Any

    def __init__(
        self,
        source: Positional[T],
        state: PipelineState,
        steps: int | None,
        epochs: int | None,
        progress: bool | str,
        learnt: Learnt,
    ) -> None:
        super().__init__()
        self._source, self._steps, self._epochs, self._learnt = source, steps, epochs, learnt
        self._start(state, steps)
        self._bar = progress_bar(progress, self._left)

    def _start(self, state: PipelineState, steps: int | None) -> None:
        """Begins at a state, for `steps` steps; if that is None, for the epochs asked for."""
        walk = self._kind.starting(self._source._plan, state.words)
        check_within(walk.offset, self._source.traits.length)
        if steps is not None:
            walk.total = steps
        elif self._source.traits.unknown_length:
            walk.epochs = self._epochs
        elif self._epochs is not None:
            walk.total = walk.to_the_end(self._epochs)
        self.began = self._beginning(walk)
        self._begin(walk)

    def _begin(self, walk: Walk) -> None:
        """Makes this walk the iterator's."""
        self._walk = walk

    @property
    def _left(self) -> int | None:
        return self._walk.left

    def _beginning(self, walk: Walk) -> tuple[Key, int] | None:
        source, total = self._source, walk.total
        whole = source.traits.unknown_length or total is None or total >= walk.to_the_end(1)
        watched = source.traits.random and whole and walk.from_the_beginning
        return (walk.key, walk.epoch) if watched else None

    def _note_end(self) -> None:
        if self.began is not None:
            key, epoch = self.began
            # `epochs=3` went on to later epochs: to begin at the first again is another training.
            later = 0 if self._steps is not None else (self._epochs or 1) - 1
            self._learnt.ended(key, epoch + later)

    def _position(self) -> str:
        epoch, offset = self._walk.at(self._walk.handed)
        return f"key {self._walk.key}, epoch {epoch}, element {offset}, {self._left} steps to go"

    def _state_now(self) -> PipelineState:
        walk = self._walk
        words = put_words(walk.words_at(walk.handed), self._source.traits.placement)
        return PipelineState(words, self._source._fingerprint)

    def _saved_now(self) -> dict[str, Any]:
        walk = self._walk
        epoch, offset = walk.at(walk.handed)
        bookmark = self._bookmark_at(walk.key, epoch, offset)
        return saved_position(self._source._fingerprint, walk.key, epoch, offset, bookmark)

    def _bookmark_at(self, key: Key, epoch: int, offset: int) -> Any:
        """How to continue without reading again, if the data only iterates; otherwise None."""
        del key, epoch, offset

    def _state_from(self, saved: Any) -> PipelineState:
        return position_from(saved, self._source._fingerprint)

    def _set_state(self, state: PipelineState) -> None:
        check_state(state, self._source._fingerprint)
        self._start(state, None if self._steps is None else self._left)


class _MadeWalk(Walk):
    """A walk that knows which of its batches are made."""

    # The batches that wait to be handed out; how many were made; and where the next one begins (the
    # state's words, or the state). Handing one out only removes it from those that wait.
    made: tuple[deque[tuple[Any, Any]], int, Any]

    @property
    def handed(self) -> int:  # type: ignore[override]
        waiting, asked, _ = self.made
        return asked - len(waiting)


class PositionalIterator(WalkingIterator[T]):
    """Iterates an indexed pipeline, reading ahead."""

    _kind = _MadeWalk

    def _begin(self, walk: Any) -> None:
        # The words are our own copy, so that the state may be donated.
        walk.made = deque(), 0, put_words(walk.words_at(0), self._source.traits.placement)
        self._plan_calls(walk)
        self._walk = walk

    def _plan_calls(self, walk: Walk) -> None:
        """Decides how many batches one call makes: many, if enough batches are left.

        With user functions it is one, until a batch was measured to be cheap. That measurement
        holds for all later iterations.
        """
        many = batches_per_call(self._source)
        # A resumed run may have few batches left in its epoch, but whole epochs will follow.
        come = self._source.steps_per_epoch if self._steps is None else 0
        if walk.total is not None and max(walk.total, come) < LEAST_CALLS * many:
            many = 1
        known = True if self._source.traits.light else self._learnt.ahead
        placement = self._source.traits.placement
        if known is None and is_spread(placement) and not placement.is_local:
            known = False  # all processes must run the same programs, and would measure other times
        self._many, self._count = many, many if known else 1
        self._undecided = many > 1 and known is None

    def _advance(self) -> tuple[T, Mask]:
        self._end_if_done()
        waiting = self._walk.made[0]
        while len(waiting) <= (self._count >> 1) + 1 and self._ask():
            waiting = self._walk.made[0]
        self._bar.update()
        return waiting.popleft()

    def _ask(self) -> bool:
        """Starts to make the next batches, if any are left; JAX returns before they are ready."""
        walk = self._walk
        waiting, asked, words = walk.made
        count = self._count
        if walk.total is not None:
            left = walk.total - asked
            if left <= 0:
                return False
            # Near the end one call makes some batches too many. If that is fewer than half of
            # them, it is still cheaper than a call for each batch.
            count = count if left * 2 > count else 1
        begin = time.perf_counter()
        pairs, words = read_many(self._source, words, count)
        if self._undecided and asked:  # the first call may have compiled
            jax.block_until_ready(pairs)
            self._judge(asked, time.perf_counter() - begin)
        walk.made = deque((*waiting, *pairs)), asked + count, words
        return True

    def _judge(self, asked: int, seconds: float) -> None:
        """Decides by the time of a batch. Several are tried, since one may be slow by chance."""
        cheap = seconds < _WORTH_READING_AHEAD
        if cheap or asked >= _TRIALS:
            self._count = self._many if self._learnt.decide(cheap) else 1
            self._undecided = False


class SteppingIterator(WalkingIterator[T]):
    """Iterates an indexed pipeline whose callbacks must run once per batch, in order."""

    _kind = _MadeWalk

    def _begin(self, walk: Any) -> None:
        words = put_words(walk.words_at(0), self._source.traits.placement)
        walk.made = deque(), 0, PipelineState(words, self._source._fingerprint)
        self._walk = walk

    def _advance(self) -> tuple[T, Mask]:
        self._end_if_done()
        nothing, handed, state = self._walk.made
        batch, mask, state = run(self._source, state)
        self._bar.update()
        self._walk.made = nothing, handed + 1, state
        return batch, mask
