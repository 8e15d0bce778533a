"""What a thread is reading now: which element, and what to do if it fails.

The stages of a pipeline do not know who runs them: a worker of a loader, a callback of a compiled
program, or the caller. They ask `read_context()`; every thread has its own context.

    at_element   runs a function over one element; notes the place, handles errors
    for_each     runs a function for every lane of a batch
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
    """Which element could not be read; an element's error has it as `error.element`."""

    stage: str
    index: int
    epoch: int
    key: tuple[int, int]
    loader_index: int = -1  # the index in the whole pipeline, which may combine sources
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
    """What one thread is reading, and the options of its loader for reading."""

    remote: Any = None  # reads steps in another process; None: this thread reads
    call: Any = None  # the step that another process reads for this thread now
    starting = False  # whether the thread waits for a process that is being started
    closed = False  # whether nobody wants the step any more

    def __init__(
        self, on_error: OnError = raise_it, buffers: Buffers = NO_BUFFERS, *, masked: bool = False
    ) -> None:
        self.on_error, self.buffers, self.empty = on_error, buffers, buffers.empty
        self.masked = masked or on_error is not raise_it  # whether to always give a mask
        self.known_to_hang: dict[Any, Exception] = {}  # elements that hung before
        self.decided: dict[Any, Any] | None = None  # answers of `on_error`, if a step is read again
        self.since = 0.0  # when the element was begun
        self.stage = ""
        self.rows: Any = None
        self.lane = 0
        self.top: Any = None  # the rows of the whole pipeline, and the lane among them
        self.top_lane = 0

    def settings(self) -> Any:
        """A context manager: JAX's settings for a thread that helps."""
        return contextlib.nullcontext()

    def own(self, array: np.ndarray) -> np.ndarray:
        """The array itself if it lies in one of our buffers, otherwise a copy.

        A function may return the same array twice, and write into it while JAX still reads it. And
        JAX needs ten times as long to move an array that is not contiguous (a flipped view).
        """
        if array.flags.c_contiguous and self.buffers.owns(array):
            return array
        copy = self.empty(array.shape, array.dtype)
        copy[...] = array
        return copy

    def spread(self, parts: Sequence[Any], run: Callable[[Any], Any]) -> list[Any]:
        """`[run(part) for part in parts]`, by all threads that are free."""
        return [run(part) for part in parts]

    @property
    def helpers(self) -> int:
        """How many threads could work on one batch."""
        return 1

    def at(self, stage: str, rows: Any) -> _At:
        """Within it, the thread is in this stage. A stage may read the stage below inside of it."""
        return _At(self, stage, rows)

    def check_known_to_hang(self) -> None:
        place = self.place()
        error = place and self.known_to_hang.get((place.stage, place.index, place.epoch))
        if error:
            raise error

    def place(self) -> Failed | None:
        """Which element the thread is reading; other threads call this too."""
        call = self.call
        if call is not None:
            return call.place()
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
        """Whether the element only pads the last batch of an epoch."""
        rows, lane = (self.rows, self.lane) if self.top is None else (self.top, self.top_lane)
        valid = None if rows is None else rows.valid
        return valid is not None and not valid.reshape(-1)[lane]

    def failed(self, error: Exception) -> Any:
        """What to use instead of an element that failed: a value or SKIPPED. Or raises the error.

        `on_error` decides.
        """
        if isinstance(error, StopIteration):  # it would silently end the user's loop
            stopped = RuntimeError("a function of the pipeline raised StopIteration")
            stopped.__cause__ = error
            error = stopped
        place = self.place()
        if ran_inside_program(error):  # not the element's fault, so `on_error` is not asked
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
    # A generator with `contextmanager` would take three times as long.
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
    """Adds a note to an error that names its element, once."""
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
    "runs JAX inside of a compiled program: the program waits for this function, and JAX would "
    "wait for the program, for ever. In this function use NumPy (`np.` in place of `jnp.`, "
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
    """`run(*args)` for one element of a stage; if it raises, what the context uses instead."""
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
    """`[run(lane) for lane in range(n)]`; other threads may help."""
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
