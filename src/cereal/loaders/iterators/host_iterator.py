"""Iterates a pipeline with a host part: workers read ahead, and the next batch is in transfer.

    workers     read step 4, 5, 6, ...
    this        take step 3 when it is read  ->  start its transfer and its compiled stages
    the user    has step 2

The last line that hands out a batch changes one number: an interrupt at any other line loses no
batch.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, TypeVar

import jax

from ...base.errors import PipelineError
from ...device.transfer import to_device
from ...host.callbacks import raise_kept, raising
from ...host.host_data import identity_on_host
from ...pipeline.execute import Delivery, moved
from ...pipeline.source import Mask
from ...pipeline.state import PipelineState
from ...pipeline.walk import Key, Walk
from ..many_hosts.ends import Ends, agreed_end
from .iterator import WalkingIterator

T = TypeVar("T")


class HostIterator(WalkingIterator[T]):
    """Gives what the loader's service read."""

    _source: Any
    _track: Any
    _close: Any

    def __init__(self, source: Any, *args: Any) -> None:
        raise_kept((identity_on_host(source),))
        self._track = self._close = None
        self._deliver = Delivery(source, ahead=True)
        # Whether to make no batch early: callbacks run only when the user asks for a batch, and an
        # unknown end must not be met before its turn.
        self._plainly = bool(source.traits.callbacks) or source.traits.unknown_length
        share = source._share
        if share is not None and share.touched and not share.placement.is_local:
            # Programs of several processes must run in one order, and some may read late.
            self._plainly = True
        super().__init__(source, *args)

    def _start(self, state: PipelineState, steps: int | None) -> None:
        super()._start(state, steps)
        if self._source._iterators is not None:
            self._source._iterators.adopt(state.bookmark)

    def _begin(self, walk: Walk) -> None:
        self.close()
        self._failed: Exception | None = None
        self._made: dict[int, tuple[Any, Any]] = {}  # by step; their transfer has started
        self._walk = walk

    def _open(self, step: int) -> None:
        """Starts reading ahead at this step."""
        source, walk = self._source, self._walk
        total = None if walk.total is None else walk.total - step
        track = source.service.track(source, to_device(walk.words_at(step)), total)
        self._track, self._base = track, step
        self._close = weakref.finalize(self, _abandon, track)
        track.start()

    def close(self) -> None:
        if self._close is not None:
            self._close.detach()
            self._track.close()
            self._track = self._close = None

    def _advance(self) -> tuple[T, Mask]:
        for number in [number for number in self._made if number < self._walk.handed]:
            del self._made[number]  # the user has it
        if self._failed is not None:
            error, self._failed = self._failed, None
            raise error
        self._end_if_done()
        self._make(self._walk.handed)
        walk = self._walk  # a new walk, if an epoch of unknown length has ended
        step = walk.handed
        if not self._plainly and walk.left != 1:
            self._look_ahead(step + 1)
        pair = self._made[step]
        self._bar.update()
        walk.handed = step + 1
        return pair

    def _look_ahead(self, step: int) -> None:
        """Starts the transfer of the next batch, if it is read, while the user has this one."""
        if self._track is not None and self._track.ready(step - self._base):
            try:
                self._make(step)
            except Exception as error:
                self._failed = error  # it belongs to the next batch: the next call raises it

    def _make(self, step: int) -> None:
        if step in self._made:
            return
        if self._track is None:
            self._open(step)
        rows: Any = self._track.take(step - self._base)  # type: ignore[union-attr]
        while self._source.traits.unknown_length and (over := self._epoch_is_over(step)):
            rows, step = self._next_epoch(step, over), 0
        self._made[step] = self._delivered(rows)

    def _delivered(self, rows: Any) -> tuple[Any, Any]:
        if not self._source.traits.callbacks:
            return self._deliver(rows, masked=True)
        with raising(self._source.traits.callbacks):
            # Waits: the callback must have run, or failed, before the batch is handed out.
            return jax.block_until_ready(self._deliver(rows, masked=True))

    # Data whose end is not known

    @property
    def _least(self) -> int:
        """The smallest number of elements that makes a batch."""
        plan = self._source._plan
        return plan.batch if plan.remainder == "drop" else 1

    def _epoch_is_over(self, step: int) -> Ends | None:
        """Where the iterators end, if one of them has no more elements for this step."""
        epoch, offset = self._walk.at(step)
        end = self._source._iterators.end_of(self._walk.key, epoch)
        over = end is not None and offset + self._least > end
        lanes, plan = self._source._lanes_here, self._source._plan
        own = plan.batch if lanes is None else int(min(lanes.max(initial=-1) + 1, plan.batch))
        return agreed_end(end, over, offset + own, self._source.traits.placement)

    def _next_epoch(self, step: int, ends: Ends) -> Any:
        epoch, offset = self._walk.at(step)
        end = ends.first(epoch)
        nothing = offset == 0 and end < self._least
        following = Walk(self._source._plan, self._walk.key, epoch + 1, 0)
        following.total = self._left
        following.epochs = None if self._walk.epochs is None else self._walk.epochs - 1
        if self._steps is None and (following.epochs == 0 or nothing):
            following.total = 0
        self._begin(following)
        self._end_if_done()
        if nothing:
            raise PipelineError(
                f"the iterator of an IterableSource gave {end} elements in epoch {epoch}: there is "
                f"no batch of at least {self._least}; let it give more, or write a smaller batch."
            )
        self._open(0)
        return self._track.take(0)

    def _state_now(self) -> PipelineState:
        state = super()._state_now()
        return moved(self._source, state, state.words)

    def _bookmark_at(self, key: Key, epoch: int, offset: int) -> Any:
        iterators = self._source._iterators
        return None if iterators is None else iterators.bookmark_at(key, epoch, offset)

    @property
    def skipped(self) -> int:
        """Elements that the loader left out because of errors, so far."""
        return self._source.service.skipped


def _abandon(track: Any) -> None:
    with contextlib.suppress(Exception):  # the interpreter may be shutting down
        track.abandon()
