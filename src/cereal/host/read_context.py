"""What a thread is reading at this moment: where it is, and what to do about errors.

The stages of a pipeline do not know who runs them: a worker of a loader, a callback of a compiled
program, or the caller. They ask `read_context()`, of which every thread has its own.

    at_element   runs a function over one element; notes where it is, handles what it raises
    for_each     runs over the lanes of a batch
    spread       lets idle workers help
    empty        memory for a batch
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base.errors import UsageError
from ..base.foreign_errors import is_read_only, ran_inside_program
from .buffers import NO_BUFFERS, Buffers


@dataclasses.dataclass(frozen=True)
class Failed:
    """Which element could not be read; errors of elements carry it as `error.element`."""

    stage: str
    index: int
    epoch: int
    key: tuple[int, int]
    loader_index: int = -1  # of the whole pipeline, where that combines sources
    loader_epoch: int = 0

    def __str__(self) -> str:
        seed = (self.key[0] << 32) | self.key[1]
        index, epoch = self.index, self.epoch
        if self.loader_index >= 0:
            index, epoch = self.loader_index, self.loader_epoch
        return (
            f"{self.stage}, element {self.index} of epoch {self.epoch}, key {seed}; to read it "
            f"again: `loader.read_element({index}, key={seed}, epoch={epoch})`"
        )


class _Skipped:
    def __repr__(self) -> str:
        return "SKIPPED"


SKIPPED: Any = _Skipped()
OnError = Callable[[Exception], Any]


def raise_it(error: Exception) -> Any:
    """The policy "raise"."""
    raise error


class ReadContext:
    """Where one thread is while it reads, and how it reads: by the options of its loader."""

    def __init__(
        self, on_error: OnError = raise_it, buffers: Buffers = NO_BUFFERS, *, masked: bool = False
    ) -> None:
        self.on_error, self.buffers, self.empty = on_error, buffers, buffers.empty
        self.masked = masked or on_error is not raise_it  # whether to give a mask in any case
        self.known_to_hang: dict[Any, Exception] = {}  # elements known to hang
        self.decided: dict[Any, Any] | None = None  # what was said about errors, to be said again
        self.since = 0.0  # when the element was begun
        self.stage = ""
        self.rows: Any = None
        self.lane = 0
        self.top: Any = None  # the rows of the whole pipeline, and the lane among them
        self.top_lane = 0

    def settings(self) -> Any:
        """JAX's settings for who helps with it."""
        return contextlib.nullcontext()

    def own(self, array: np.ndarray) -> np.ndarray:
        """The array itself if it is ours alone, else a copy.

        A function may give the same array twice, and write into it while JAX still reads it. And
        what does not lie in one piece (a flipped view) takes JAX ten times as long to move.
        """
        if array.flags.c_contiguous and self.buffers.owns(array):
            return array
        copy = self.empty(array.shape, array.dtype)
        copy[...] = array
        return copy

    def spread(self, parts: Sequence[Any], run: Callable[[Any], Any]) -> list[Any]:
        """`[run(part) for part in parts]`, by as many threads as there are."""
        return [run(part) for part in parts]

    @property
    def helpers(self) -> int:
        """How many threads could work on one batch."""
        return 1

    def at(self, stage: str, rows: Any) -> _At:
        """Notes where the thread is; a stage may read the one below in its turn."""
        return _At(self, stage, rows)

    def check_known_to_hang(self) -> None:
        place = self.place()
        error = place and self.known_to_hang.get((place.stage, place.index, place.epoch))
        if error:
            raise error

    def place(self) -> Failed | None:
        """Where the thread is; read by other threads."""
        rows, lane = self.rows, self.lane
        if rows is None:
            return None
        try:
            index, epoch = int(rows.index.reshape(-1)[lane]), int(rows.epoch.reshape(-1)[lane])
            top, at = (rows, lane) if self.top is None else (self.top, self.top_lane)
            key = np.asarray(top.key).reshape(-1)[:2]
            again = int(top.index.reshape(-1)[at]), int(top.epoch.reshape(-1)[at])
            return Failed(self.stage, index, epoch, (int(key[0]), int(key[1])), *again)
        except (IndexError, TypeError, AttributeError):
            return None

    def is_padding(self) -> bool:
        """Whether the element fills up the last batch of an epoch, which has it already."""
        rows, lane = (self.rows, self.lane) if self.top is None else (self.top, self.top_lane)
        valid = None if rows is None else rows.valid
        return valid is not None and not valid.reshape(-1)[lane]

    def failed(self, error: Exception) -> Any:
        """What stands in for an element whose function raised: a value, SKIPPED, or the error."""
        if isinstance(error, StopIteration):  # it would end the user's loop, without a word
            stopped = RuntimeError("a function of the pipeline raised StopIteration")
            stopped.__cause__ = error
            error = stopped
        place = self.place()
        if ran_inside_program(error):  # no fault of the element's, so `on_error` is not asked
            error = UsageError(f"{self.stage} {_RAN_JAX}")
            annotate(error, place)
            raise error from None
        known = place and (place.stage, place.index, place.epoch)
        if self.decided is not None and known in self.decided:
            return self.decided[known]
        annotate(error, place)
        answer = self.on_error(error)
        answer = SKIPPED if answer is None else answer
        if self.decided is not None and known is not None:
            self.decided[known] = answer
        return answer


class _At:
    # As a generator it would take three times as long.
    __slots__ = ("_before", "_here", "_rows", "_stage")

    def __init__(self, here: ReadContext, stage: str, rows: Any) -> None:
        self._here, self._stage, self._rows = here, stage, rows

    def __enter__(self) -> None:
        here = self._here
        self._before = here.stage, here.rows, here.lane
        here.stage, here.rows, here.lane = self._stage, self._rows, 0
        here.since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._here.stage, self._here.rows, self._here.lane = self._before


def annotate(error: BaseException, place: Failed | None) -> None:
    """Writes into an error which element it is of, once."""
    known = getattr(error, "element", None)
    if place is None or (known is not None and (known == place or known.stage != place.stage)):
        return
    with contextlib.suppress(Exception):  # an error with __slots__
        if known is not None:  # one object, raised for several elements
            error.__notes__ = [x for x in error.__notes__ if not x.startswith("cereal")]
        error.element = place  # type: ignore[attr-defined]
        error.add_note(f"cereal: in {place}")
        if is_read_only(error):
            error.add_note(f"cereal{READ_ONLY}")


READ_ONLY = (
    ": elements are read-only, so that no function can change the data for the others; write into "
    "a copy: `element = element.copy()`."
)


_RAN_JAX = (
    "runs JAX inside of a compiled program, which waits for the batch: what it runs would wait for "
    "the program in turn, for ever. In this function use NumPy (`np.` in place of `jnp.`, "
    "HostRandomMapTransform in place of `jax.random`); or read the batches outside of your own "
    "`jit`, by `loader.iterate(state)` or `loader.scan_epoch(...)`, where it may run JAX."
)


class _Current(threading.local):
    def __init__(self) -> None:
        self.context = ReadContext()


_current = _Current()


def read_context() -> ReadContext:
    """The context in which this thread reads."""
    return _current.context


class use_read_context:  # noqa: N801
    """Within it, this thread reads in the given context."""

    __slots__ = ("_before", "_context")

    def __init__(self, context: ReadContext) -> None:
        self._context = context

    def __enter__(self) -> ReadContext:
        self._before, _current.context = _current.context, self._context
        return self._context

    def __exit__(self, *_: object) -> None:
        _current.context = self._before


def at_element(stage: str, rows: Any, lane: int, run: Callable[..., Any], *args: Any) -> Any:
    """What `run()` returns for an element of a stage; what stands in for it if it raises."""
    here = read_context()
    before = here.stage, here.rows, here.lane
    here.stage, here.rows, here.lane = stage, rows, lane
    here.since = time.monotonic()
    try:
        if here.known_to_hang:
            here.check_known_to_hang()
        return run(*args)
    except Exception as error:
        return here.failed(error)
    finally:
        here.stage, here.rows, here.lane = before


def for_each(rows: Any, run: Callable[[int], Any], n: int) -> list[Any]:
    """`[run(lane) for lane in range(n)]`, with the help of other threads."""
    size = max(1, -(-n // max(1, 2 * read_context().helpers)))

    def some(lanes: range) -> list[Any]:
        here, found = read_context(), []
        before, here.top = here.top, rows
        try:
            for lane in lanes:
                here.top_lane = lane
                found.append(run(lane))
        finally:
            here.top = before
        return found

    parts = [range(begin, min(begin + size, n)) for begin in range(0, n, size)]
    return [value for found in read_context().spread(parts, some) for value in found]
