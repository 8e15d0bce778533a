"""Iterators, read by position.

    positions asked for    0..3      8..11     4..7        by workers, in any order
    the iterator gives     0 1 2 3   4 5 6 7 8 9 10 11     4..7 are kept until they are asked for

To reach a later position, the iterator is read up to it, and the elements on the way are kept until
a worker asks for them. To go back, a new iterator is made. It begins at the nearest saved state, if
it has states; otherwise it skips elements.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...base.errors import PipelineError, in_one_line
from ...device.transfer import to_device, to_host
from ...functions.function import function_name
from ...order.rows import Rows
from ...reading.element_batch import ElementBatch
from ...reading.read_context import (
    CAUGHT,
    SKIPPED,
    at_element,
    read_context,
)
from ...reading.readers.reader import Reader
from ..by_element import ElementData
from .bookmark import BOOKMARK_BYTES, Bookmark, Run, packed, unpacked
from .open_iterator import BrokenIterator, OpenIterator, latest

_MOST_ITERATORS = 4
_MOST_BOOKMARKS = 512
log = logging.getLogger("cereal")


class IteratorData(ElementData):
    """The data of an iterable source: its iterators, and elements that were read early."""

    def __init__(self, make: Any, length: int | None, given: int) -> None:
        super().__init__()
        self.make, self.length = make, length
        self._given = given  # arguments of `make`: none, the epoch, the epoch and the key
        self.window = 1 << 10  # the largest distance between positions in use at once
        self._lock = threading.RLock()
        self._open: list[OpenIterator] = []  # the one used last is at the end
        self._made: Any = lambda: None  # the iterator that was made last
        self._kept: OrderedDict[tuple[Run, int], Any] = OrderedDict()
        self._ends: dict[Run, int] = {}
        self._marks: deque[Bookmark] = deque(maxlen=_MOST_BOOKMARKS)
        self._warned = self._peeking = False
        self._peeked: dict[tuple[Run, int], Any] = {}
        self.no_bookmark: Any = None
        self.shared = False  # whether one iterable, with one state, serves all epochs

    @property
    def name(self) -> str:
        return function_name(self.make)

    def first(self, label: str) -> Any:
        """The first element, for its shapes and dtypes; it is kept until it is asked for."""
        try:
            run = self._run((0, 0), 0)
            opened = self._new(run)
            if opened.methods is not None and not hasattr(opened.made, "__next__"):
                self.shared = self._new(run).made is opened.made
                opened = self._new(run)
            self.sample = opened.next()
        except StopIteration:
            raise PipelineError(f"{label}: the iterator gave no element at all.") from None
        except (Exception, BrokenIterator) as error:
            cause = error.__cause__ if isinstance(error, BrokenIterator) else error
            raise PipelineError(
                f"{label} failed on its first element: {in_one_line(cause)}"
            ) from cause
        self._open.append(opened)
        self._kept[run, 0] = self.sample
        if opened.methods is not None:
            self.no_bookmark = np.zeros(BOOKMARK_BYTES, np.uint8)
        return self.sample

    def _run(self, key: Any, epoch: int) -> Run:
        return Run(epoch, (int(key[0]), int(key[1])) if self._given > 1 else None)

    @contextlib.contextmanager
    def peeked(self) -> Iterator[None]:
        """A `with` block: elements that are read inside it are kept, to be given again later."""
        self._peeking = True
        try:
            yield
        finally:
            self._peeking = False
            self.window = max(self.window, len(self._peeked))
            for at, value in self._peeked.items():
                self._keep(at, value)
            self._peeked.clear()

    def end_of(self, key: Any, epoch: int) -> int | None:
        """The number of elements of an epoch; None if its end has not been reached yet."""
        return self._ends.get(self._run(key, epoch))

    def reader(self, label: str) -> IteratorReader:
        return IteratorReader(label, self)

    def read(self, label: str, rows: Rows) -> ElementBatch:
        epochs, positions = rows.epoch.tolist(), rows.index.tolist()
        runs = {epoch: self._run(rows.key, epoch) for epoch in set(epochs)}
        together = (np.diff(rows.index) == 1) & (np.diff(rows.epoch) == 0)
        ends = [*(np.flatnonzero(~together) + 1).tolist(), len(positions)]
        values: list[Any] = []
        with self._lock:
            for end in ends:  # positions that follow each other
                while (lane := len(values)) < end:
                    run, position = runs[epochs[lane]], positions[lane]
                    with read_context().at(label, rows):
                        read, given = self._take_next(run, position, end, values)
                    if read is None:
                        continue
                    lane = len(values)
                    at = runs[epochs[lane]], positions[lane]
                    try:
                        value = at_element(label, rows, lane, read, *(given or at))
                    except BrokenIterator as broken:
                        raise broken.reported(label, rows) from None
                    values.append(value)
                    if self._peeking and value is not SKIPPED:
                        self._peeked[at] = value
            self._mark(runs[epochs[-1]])
        return ElementBatch.of_list(values)

    def _take_next(self, run: Run, position: int, end: int, values: list[Any]) -> tuple[Any, Any]:
        """Takes the elements from a position on, up to lane `end`: those that were kept, or those
        of an iterator that is just there. Returns how to read the next lane, and what to pass for
        that (None: its place). The first is None if this is to be called again.
        """
        here, opened = read_context(), self._open[-1] if self._open else None
        if self._peeking or here.known_to_hang or opened is None:
            return self._element, None
        if (run, position) in self._kept:
            return self._take_kept(run, position, end, values)
        if opened.run != run or opened.position != position or run in self._ends:
            return self._element, None
        take, status, now, first = opened.taking(), here.status, time.monotonic, len(values)
        lanes = range(first, end)
        if self._kept:  # another iterator has been at some of these positions
            before = position - first
            kept = (lane for lane in lanes if (run, before + lane) in self._kept)
            lanes = range(first, next(kept, end))
        try:
            for lane in lanes:
                here.lane, status[0], status[1] = lane, lane + here.first_lane, now()
                values.append(take())
        except CAUGHT as error:
            failed = error
        else:
            return None, None
        finally:
            opened.position += len(values) - first
        return self._fail, (opened, failed)

    def _take_kept(self, run: Run, position: int, end: int, values: list[Any]) -> tuple[Any, Any]:
        pop, nothing = self._kept.pop, object()
        for at in range(position, position + end - len(values)):
            value = pop((run, at), nothing)
            if value is nothing:
                break
            values.append(value)
        return None, None

    def _fail(self, opened: OpenIterator, error: BaseException) -> Any:
        """An iterator has raised this instead of giving an element."""
        try:
            opened.fail(error)
        except BrokenIterator:
            self._open.remove(opened)
            raise
        if isinstance(error, StopIteration):
            return self._ended(opened)
        raise error

    def _element(self, run: Run, position: int) -> Any:
        if (run, position) in self._kept:
            return self._kept.pop((run, position))
        if self._ends.get(run, position + 1) <= position:
            return SKIPPED
        opened = self._at_or_before(run, position)
        try:
            if position - opened.position > self.window:
                opened.skip_to(position)
            while opened.position < position:  # other batches need these
                here = opened.position
                self._keep((run, here), opened.next())
            if opened.position == position:
                return opened.next()
        except StopIteration:
            pass
        except BrokenIterator:
            self._open.remove(opened)
            raise
        return self._ended(opened)

    def _ended(self, opened: OpenIterator) -> Any:
        self._open.remove(opened)
        if self.length is not None:
            error = PipelineError(
                f"IterableSource: the iterator ended after {opened.position} elements, and "
                f"`length` says {self.length}; correct it, or leave it out."
            )
            raise BrokenIterator(opened.run.epoch, opened.position) from error
        self._ends[opened.run] = opened.position
        return SKIPPED

    def _keep(self, at: tuple[Run, int], value: Any) -> None:
        self._kept[at] = value
        while len(self._kept) > 2 * self.window:
            self._kept.popitem(last=False)

    def _new(self, run: Run) -> OpenIterator:
        key = () if run.key is None else (np.array(run.key, np.uint32),)
        made = self.make(*(run.epoch, *key)[: self._given])
        if not hasattr(made, "__iter__") and not hasattr(made, "__next__"):
            raise PipelineError(
                f"IterableSource: `make_iterator` must return something to iterate over, returned "
                f"{type(made).__name__}."
            )
        if hasattr(made, "__next__") and made is self._made():
            raise PipelineError(
                "IterableSource: `make_iterator` returned the same iterator again, which has moved "
                "on since; it must make a new one every time: write `lambda: iter(data)`."
            )
        try:
            self._made = weakref.ref(made)
        except TypeError:  # built-in iterators cannot be referred to weakly
            self._made = lambda: made
        return OpenIterator(made, run, self.shared)

    def _at_or_before(self, run: Run, position: int) -> OpenIterator:
        """An iterator that is at the position or before it.

        The nearest open one; or a new one that begins at a bookmark, if that is nearer.
        """
        opened, mark = latest(self._open, run, position), latest(self._marks, run, position)
        if opened is not None and (mark is None or mark.position <= opened.position):
            self._open.remove(opened)
        else:
            opened = self._new(run)
            if mark is not None and opened.methods is not None:
                opened.set(mark)
            opened.skip_to(position)
        self._open.append(opened)
        while len(self._open) > _MOST_ITERATORS:
            self._open.pop(0).close()
        return opened

    # The iterator's own state, which the loader's state carries

    def _mark(self, run: Run) -> None:
        for opened in self._open[-1:]:
            if opened.methods is not None and opened.run == run:
                self._marks.append(opened.get())

    def bookmark_at(self, key: Any, epoch: int, position: int) -> Any:
        """The last known state of the iterator at or before a position, as an array of bytes."""
        if self.no_bookmark is None:
            return None
        with self._lock:
            best = latest(self._marks, self._run(key, epoch), position)
        coded = None if best is None else packed(best)
        if best is not None and coded is None and not self._warned:
            self._warned = True
            log.warning(
                "the state of an iterator of IterableSource(%s) is no plain data of at most %d "
                "bytes, so it is not saved: a restart will skip elements instead",
                self.name,
                BOOKMARK_BYTES,
            )
        return self.no_bookmark if coded is None else coded

    def bookmark_for(self, words: Any) -> Any:
        """The bookmark for a state, given its words on the device."""
        *key, epoch, high, low = to_host(words).tolist()
        bookmark = self.bookmark_at(key, epoch, (high << 32) | low)
        return None if bookmark is None else to_device(bookmark)

    def adopt(self, bookmark: Any) -> None:
        """Remembers the bookmark of a saved state."""
        found = None if bookmark is None else unpacked(to_host(bookmark))
        if found is not None:
            with self._lock:
                known = [(mark.run, mark.position) for mark in self._marks]
                if (found.run, found.position) not in known:
                    self._marks.append(found)

    def digest_of(self) -> Any:
        return self.make

    def __reduce__(self) -> tuple[Any, ...]:
        known = {name: getattr(self, name) for name in ("sample", "no_bookmark", "shared")}
        return _restored, (self.make, self.length, self._given, known)


def _restored(make: Any, length: Any, given: int, known: dict[str, Any]) -> IteratorData:
    data = IteratorData(make, length, given)
    vars(data).update(known)
    return data


class IteratorReader(Reader):
    """Reads iterators; they are here, and go to no other process."""

    def __init__(self, label: str, data: IteratorData) -> None:
        self.label, self.data = label, data

    @property
    def can_move(self) -> bool:
        return False

    def read(self, rows: Rows) -> ElementBatch:
        return self.data.read(self.label, rows)
