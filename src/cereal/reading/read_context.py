"""What a thread is reading now: which element, and what to do if it fails.

The stages of a pipeline do not know who runs them: a worker of a loader, a callback of a compiled
program, or the caller. They ask `read_context()`; every thread has its own context.

    status       where the loop over elements is: the lane, since when, and the stage
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

    def __reduce__(self) -> str:
        return "SKIPPED"  # there is only one


SKIPPED: Any = _Skipped()
# What a function may raise for an element. (KeyboardInterrupt is the user's, not the element's.)
CAUGHT = (Exception, SystemExit, GeneratorExit)
OnError = Callable[[Exception], Any]
_FEW, _WORTH_HELP = 64, 4e-3  # more elements than that are spread if they take so many seconds


def raise_it(error: Exception) -> Any:
    """The policy "raise"."""
    raise error


class ReadContext:
    """What one thread is reading, and the options of its loader for reading."""

    remote: Any = None  # reads steps in another process; None: this thread reads
    call: Any = None  # the step that another process reads for this thread now
    queued: Any = None  # the step that a process will read for this thread, after that of another
    starting = False  # whether the thread waits for a process that is being started
    closed = False  # whether nobody wants the step any more

    def __init__(
        self, on_error: OnError = raise_it, buffers: Buffers = NO_BUFFERS, *, masked: bool = False
    ) -> None:
        self.on_error, self.buffers = on_error, buffers
        self.masked = masked or on_error is not raise_it  # whether to always give a mask
        self.known_to_hang: dict[Any, Exception] = {}  # elements that hung before
        self.decided: dict[Any, Any] | None = None  # answers of `on_error`, if a step is read again
        # The loop over elements writes here for every element that it begins, and nowhere else: its
        # lane in `top`, the time, and the number of the stage (`Program.labels`).
        self.status: Any = [0, 0.0, 0]
        self.links: Any = None  # the stages that the loop runs: (number, label, rows)
        self.numbers: dict[str, int] = {}  # of stages, by label
        # The place of what runs outside of that loop: one function for a batch, or a stage inside
        # of a stage.
        self.stage = ""
        self.rows: Any = None
        self.lane = 0
        self.top: Any = None  # the rows of the whole step; the lane among them is in `status`
        self.first_lane = 0  # which of its lanes is the first of the batch that is read now

    def settings(self) -> Any:
        """A context manager: JAX's settings for a thread that helps."""
        return contextlib.nullcontext()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Memory for one array of a batch."""
        return self.buffers.empty(shape, dtype)

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

    def step(self, rows: Any, numbers: dict[str, int] | None = None) -> _Step:
        """Within it, the thread reads these rows; `numbers` are those of the stages, by label."""
        return _Step(self, rows, self.numbers if numbers is None else numbers)

    def at(self, stage: str, rows: Any) -> _At:
        """Within it, the thread is in this stage. A stage may read the stage below inside of it."""
        return _At(self, stage, rows)

    def check_known_to_hang(self) -> None:
        place = self.place()
        error = place and self.known_to_hang.get((place.stage, place.index, place.epoch))
        if error:
            raise error

    @property
    def since(self) -> float:
        """When the element was begun."""
        return self.status[1]

    def begin(self, lane: int, label: str = "") -> None:
        """An element is begun, outside of the loop over elements."""
        status = self.status
        status[0], status[1] = lane + self.first_lane, time.monotonic()
        if label:
            status[2] = self.number_of(label)

    def number_of(self, label: str) -> int:
        """The number of a stage; unknown stages are numbered as they come."""
        return self.numbers.setdefault(label, len(self.numbers))

    def place(self) -> Failed | None:
        """Which element the thread is reading; other threads call this too."""
        call = self.call
        if call is not None:
            return call.place()
        stage, rows, lane, links = self.stage, self.rows, self.lane, self.links
        at, number = int(self.status[0]), self.status[2]
        try:
            if rows is None:
                if links is None:
                    return None
                stage, rows = next(each[1:] for each in links if each[0] == number)
                lane = int(at) - self.first_lane
            index, epoch = int(rows.index.reshape(-1)[lane]), int(rows.epoch.reshape(-1)[lane])
            top, at = (rows, lane) if self.top is None else (self.top, int(at))
            key = np.asarray(top.key).reshape(-1)[:2]
            again = int(top.index.reshape(-1)[at]), int(top.epoch.reshape(-1)[at])
            return Failed(stage, index, epoch, (int(key[0]), int(key[1])), *again)
        except (IndexError, TypeError, AttributeError, StopIteration):
            return None

    def is_padding(self) -> bool:
        """Whether the element only pads the last batch of an epoch."""
        rows, lane = (self.rows, self.lane) if self.top is None else (self.top, int(self.status[0]))
        valid = None if rows is None else rows.valid
        return valid is not None and not valid.reshape(-1)[lane]

    def failed(self, error: BaseException) -> Any:
        """What to use instead of an element that failed: a value or SKIPPED. Or raises the error.

        `on_error` decides.
        """
        error = as_exception(error)
        place = self.place()
        if ran_inside_program(error):  # not the element's fault, so `on_error` is not asked
            error = UsageError(f"{place.stage if place else self.stage} {_RAN_JAX}")
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


def as_exception(error: BaseException) -> Exception:
    """An error that ends nothing silently: not the user's loop, and not the user's program."""
    if isinstance(error, SystemExit):
        code = "" if error.code is None else repr(error.code)
        words = f"called sys.exit({code})"
    elif isinstance(error, StopIteration | GeneratorExit):
        words = f"raised {type(error).__name__}"
    else:
        assert isinstance(error, Exception)
        return error
    stopped = RuntimeError(f"a function of the pipeline {words}")
    stopped.__cause__ = error
    return stopped


class _Step:
    """Within it, the thread reads these rows; what it read before waits for them."""

    __slots__ = ("_before", "_here", "_numbers", "_rows")

    def __init__(self, here: ReadContext, rows: Any, numbers: dict[str, int]) -> None:
        self._here, self._rows, self._numbers = here, rows, numbers

    def __enter__(self) -> ReadContext:
        here = self._here
        self._before = (
            here.stage, here.rows, here.lane, here.top, here.first_lane, here.links, here.numbers,
            here.status[0],
        )  # fmt: skip
        here.rows = here.links = None
        here.top, here.first_lane, here.numbers = self._rows, 0, self._numbers
        return here

    def __exit__(self, *_: object) -> None:
        here = self._here
        (
            here.stage, here.rows, here.lane, here.top, here.first_lane, here.links, here.numbers,
            here.status[0],
        ) = self._before  # fmt: skip


class _At:
    # A generator with `contextmanager` would take three times as long.
    __slots__ = ("_before", "_here", "_rows", "_stage")

    def __init__(self, here: ReadContext, stage: str, rows: Any) -> None:
        self._here, self._stage, self._rows = here, stage, rows

    def __enter__(self) -> None:
        here = self._here
        self._before = here.stage, here.rows, here.lane
        here.stage, here.rows, here.lane = self._stage, self._rows, 0
        here.begin(0, self._stage)

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
    status = here.status
    status[1], status[2] = time.monotonic(), here.number_of(stage)
    try:
        if here.known_to_hang:
            here.check_known_to_hang()
        return run(*args)
    except CAUGHT as error:
        return here.failed(error)
    finally:
        here.stage, here.rows, here.lane = before


class Pace:
    """Remembers how long elements take: quick ones are not worth the help of other threads."""

    def __init__(self) -> None:
        self._seconds = 1.0  # of one element; at first none is known to be quick

    def spread(self, run: Callable[[range], Any], n: int) -> list[Any]:
        """`[run(part), ...]` for parts of `range(n)`; other threads may help."""
        here = read_context()
        worth = n < _FEW or n * self._seconds > _WORTH_HELP
        helpers = here.helpers if worth else 1
        size = max(1, n if helpers < 2 else -(-n // (2 * helpers)))
        top, first_lane, numbers, taken = here.top, here.first_lane, here.numbers, []

        def within(lanes: range) -> Any:
            mine, begin = read_context(), time.perf_counter()
            before = mine.top, mine.first_lane, mine.numbers
            mine.top, mine.first_lane, mine.numbers = top, first_lane, numbers
            try:
                return run(lanes)
            finally:
                mine.top, mine.first_lane, mine.numbers = before
                taken.append((time.perf_counter() - begin) / len(lanes))

        parts = [range(begin, min(begin + size, n)) for begin in range(0, n, size)]
        found = [within(parts[0])] if len(parts) == 1 else here.spread(parts, within)
        if taken:
            self._seconds = sorted(taken)[len(taken) // 2]
        return found


def for_each(rows: Any, run: Callable[[int], Any], n: int) -> list[Any]:
    """`[run(lane) for lane in range(n)]`; other threads may help."""

    def some(lanes: range) -> list[Any]:
        here, found = read_context(), []
        for lane in lanes:
            here.begin(lane)
            found.append(run(lane))
        return found

    with read_context().step(rows):
        return [value for found in Pace().spread(some, n) for value in found]
