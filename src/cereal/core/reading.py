"""What a thread is reading at this moment: where it is, and what to do about errors.

The stages of a pipeline do not know who runs them: a worker of a loader, a callback of a compiled
program, or the caller. They ask `reading()`, which belongs to the thread.

    for_each   runs a function over elements; notes where it is, handles what it raises
    spread     lets idle workers help
    empty      memory for a batch
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .buffers import NO_BUFFERS, Buffers


@dataclasses.dataclass(frozen=True)
class Failed:
    """Which element could not be read; errors of elements carry it as `error.element`."""

    stage: str
    index: int
    epoch: int
    key: tuple[int, int]

    def __str__(self) -> str:
        seed = (self.key[0] << 32) | self.key[1]
        return (
            f"{self.stage}, element {self.index} of epoch {self.epoch}, key {seed}; to read it "
            f"again: `loader.read_element({self.index}, key={seed}, epoch={self.epoch})`"
        )


class _Skipped:
    def __repr__(self) -> str:
        return "SKIPPED"


SKIPPED: Any = _Skipped()
OnError = Callable[[Exception], Any]


def raise_it(error: Exception) -> Any:
    """The policy "raise"."""
    raise error


class Reading:
    """The reading of one thread. A loader's workers have one with its options."""

    def __init__(
        self, on_error: OnError = raise_it, buffers: Buffers = NO_BUFFERS, *, masked: bool = False
    ) -> None:
        self.on_error, self.buffers, self.empty = on_error, buffers, buffers.empty
        self.masked = masked or on_error is not raise_it  # whether to give a mask in any case
        self.doomed: dict[Any, Exception] = {}  # elements known to hang
        self.stage = ""
        self.rows: Any = None
        self.lane = 0

    def settings(self) -> Any:
        """JAX's settings for who helps with it."""
        return contextlib.nullcontext()

    def own(self, array: np.ndarray) -> np.ndarray:
        """The array itself if it is ours alone, else a copy.

        A function may give the same array twice, and write into it while JAX still reads it.
        """
        if self.buffers.owns(array):
            return array
        copy = self.empty(array.shape, array.dtype)
        copy[...] = array
        return copy

    def spread(self, parts: Sequence[Any], run: Callable[[Any], Any]) -> list[Any]:
        """`[run(part) for part in parts]`, by as many threads as there are."""
        return [run(part) for part in parts]

    @property
    def hands(self) -> int:
        """How many threads could work on one batch."""
        return 1

    @contextlib.contextmanager
    def at(self, stage: str, rows: Any) -> Iterator[None]:
        """Notes where the thread is; a stage may read the one below in its turn."""
        before = self.stage, self.rows, self.lane
        self.stage, self.rows, self.lane = stage, rows, 0
        try:
            yield
        finally:
            self.stage, self.rows, self.lane = before

    def step_to(self, lane: int) -> None:
        """Notes which element is next."""
        self.lane = lane
        if self.doomed:
            place = self.place()
            error = place and self.doomed.get((place.stage, place.index, place.epoch))
            if error:
                raise error

    def place(self) -> Failed | None:
        """Where the thread is; read by other threads."""
        rows, lane = self.rows, self.lane
        if rows is None:
            return None
        try:
            index, epoch = int(rows.index.reshape(-1)[lane]), int(rows.epoch.reshape(-1)[lane])
            key = np.asarray(rows.key).reshape(-1)[:2]
            return Failed(self.stage, index, epoch, (int(key[0]), int(key[1])))
        except (IndexError, TypeError, AttributeError):
            return None

    def failed(self, error: Exception) -> Any:
        """What stands in for an element whose function raised: a value, SKIPPED, or the error."""
        annotate(error, self.place())
        answer = self.on_error(error)
        return SKIPPED if answer is None else answer


def annotate(error: BaseException, place: Failed | None) -> None:
    """Writes the element into the error, once."""
    if place is None or hasattr(error, "element"):
        return
    with contextlib.suppress(Exception):  # an error with __slots__
        error.element = place  # type: ignore[attr-defined]
        error.add_note(f"cereal: in {place}")
        if isinstance(error, ValueError) and "read-only" in str(error):
            error.add_note(
                "cereal: elements are read-only, so that no function can change the data for the "
                "others; write into a copy: `element = element.copy()`."
            )


class _Current(threading.local):
    def __init__(self) -> None:
        self.reading = Reading()


_current = _Current()


def reading() -> Reading:
    """The reading of this thread."""
    return _current.reading


@contextlib.contextmanager
def reading_as(one: Reading) -> Iterator[Reading]:
    """Within it, this thread reads so."""
    before = _current.reading
    _current.reading = one
    try:
        yield one
    finally:
        _current.reading = before


def for_each(
    stage: str,
    rows: Any,
    run: Callable[[int], Any],
    n: int,
    keep: np.ndarray | None = None,
) -> tuple[list[Any], np.ndarray | None]:
    """`run(lane)` for every lane that is kept; the results, and which lanes are kept after it."""
    size = -(-n // max(1, 2 * reading().hands))

    def some(lanes: range) -> list[Any]:
        here, found = reading(), []
        with here.at(stage, rows):
            for lane in lanes:
                if keep is not None and not keep[lane]:
                    found.append(SKIPPED)
                    continue
                try:
                    here.step_to(lane)
                    found.append(run(lane))
                except Exception as error:
                    found.append(here.failed(error))
        return found

    parts = [range(begin, min(begin + size, n)) for begin in range(0, n, max(size, 1))]
    values = [value for found in reading().spread(parts, some) for value in found]
    if not any(value is SKIPPED for value in values):
        return values, keep
    return values, np.array([value is not SKIPPED for value in values])
