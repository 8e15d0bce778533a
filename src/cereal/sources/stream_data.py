"""Iterators, asked by position.

    positions asked for    0..3      8..11     4..7        by workers, in any order
    the iterator gives     0 1 2 3   4 5 6 7 8 9 10 11     4..7 are held until they are asked for

Whoever asks for a position beyond where an iterator stands reads up to it, and holds what others
will ask for. Who asks for one that has passed gets an iterator that is set back: by its own state,
or by a new one that skips.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import logging
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..core.errors import PipelineError, in_one_line
from ..core.function import function_name
from ..core.reading import SKIPPED, Failed, annotate, at_element
from ..core.rows import Rows
from ..core.taken import Taken
from ..core.transfer import to_device, to_host
from .bookmark import BOOKMARK_BYTES, Bookmark, Run, packed, unpacked
from .by_element import ElementData

_MOST_ITERATORS = 4
_MOST_BOOKMARKS = 512
log = logging.getLogger("cereal")
_STATES = (("get_state", "set_state"), ("state_dict", "load_state_dict"))


class _Live:
    """An iterator on its way."""

    def __init__(self, made: Any, run: Run, shared: bool = False) -> None:
        self.made, self.run, self.position = made, run, 0
        own = (pair for pair in _STATES if all(hasattr(made, n) for n in pair))
        self.own = None if shared else next(own, None)  # a shared one's state is all epochs'
        self.iterator: Any = None

    # Copies, since the iterator may go on writing into what it gives or gets.

    def set(self, bookmark: Bookmark) -> None:
        assert self.own is not None
        getattr(self.made, self.own[1])(copy.deepcopy(bookmark.state))
        self.position = bookmark.position

    def get(self) -> Bookmark:
        assert self.own is not None
        state = copy.deepcopy(getattr(self.made, self.own[0])())
        return Bookmark(self.run, self.position, state)

    def next(self) -> Any:
        """The next element; if it raises, the position is behind the element that raised."""
        if self.iterator is None:
            self.iterator = iter(self.made)
        try:
            value = next(self.iterator)
        except StopIteration:
            raise
        except Exception as error:
            if inspect.isgenerator(self.iterator):
                error.add_note("cereal: a generator cannot go on after an error.")
                raise _Dead(self.run.epoch, self.position) from error
            self.position += 1
            raise
        self.position += 1
        return value

    def skip_to(self, position: int) -> None:
        while self.position < position:
            try:
                self.next()
            except StopIteration:
                return
            except Exception:  # of an element that nobody asked for
                continue

    def close(self) -> None:
        for each in (self.iterator, self.made):
            if inspect.isgenerator(each):
                each.close()


class StreamData(ElementData):
    """What an iterable source reads."""

    def __init__(self, make: Any, length: int | None, given: int) -> None:
        super().__init__(by_epoch=given > 0)
        self.make, self.length = make, length
        self._given = given  # arguments of `make`: none, the epoch, the epoch and the key
        self.window = 1 << 10  # how far apart positions are that are asked for at one time
        self._lock = threading.RLock()
        self._live: list[_Live] = []  # the latest used last
        self._made: Any = lambda: None  # the iterator that was made last
        self._held: OrderedDict[tuple[Run, int], Any] = OrderedDict()
        self._ends: dict[Run, int] = {}
        self._marks: deque[Bookmark] = deque(maxlen=_MOST_BOOKMARKS)
        self._warned = self._peeking = False
        self._peeked: dict[tuple[Run, int], Any] = {}
        self.no_bookmark: Any = None
        self.shared = False  # whether one iterable serves all epochs, and its state with it

    @property
    def name(self) -> str:
        return function_name(self.make)

    def first(self, label: str) -> Any:
        """The first element, to see what elements look like; it will be given to who asks."""
        try:
            run = self._run((0, 0), 0)
            live = self._new(run)
            if live.own is not None and not hasattr(live.made, "__next__"):
                self.shared = self._new(run).made is live.made
                live = self._new(run)
            self.sample = live.next()
        except StopIteration:
            raise PipelineError(f"{label}: the iterator gave no element at all.") from None
        except (Exception, _Dead) as error:
            cause = error.__cause__ if isinstance(error, _Dead) else error
            raise PipelineError(
                f"{label} failed on its first element: {in_one_line(cause)}"
            ) from cause
        self._live.append(live)
        self._held[run, 0] = self.sample
        if live.own is not None:
            self.no_bookmark = np.zeros(BOOKMARK_BYTES, np.uint8)
        return self.sample

    def _run(self, key: Any, epoch: int) -> Run:
        return Run(epoch, (int(key[0]), int(key[1])) if self._given > 1 else None)

    @contextlib.contextmanager
    def peeked(self) -> Iterator[None]:
        """Within it, what is read will be given again to who asks, without another iterator."""
        self._peeking = True
        try:
            yield
        finally:
            self._peeking = False
            self.window = max(self.window, len(self._peeked))
            for at, value in self._peeked.items():
                self._hold(at, value)
            self._peeked.clear()

    def end_of(self, key: Any, epoch: int) -> int | None:
        """How many elements an epoch has, if its end was seen."""
        return self._ends.get(self._run(key, epoch))

    def read(self, label: str, rows: Rows) -> Taken:
        values = []
        epochs, positions = rows.epoch.tolist(), rows.index.tolist()
        runs = {epoch: self._run(rows.key, epoch) for epoch in set(epochs)}
        places = [(runs[epoch], at) for epoch, at in zip(epochs, positions, strict=True)]
        with self._lock:
            for lane, at in enumerate(places):
                try:
                    value = at_element(label, rows, lane, lambda at=at: self._element(at))
                except _Dead as dead:
                    raise dead.reported(label, rows) from None
                values.append(value)
                if self._peeking and value is not SKIPPED:
                    self._peeked[at] = value
            self._mark(places[-1][0])
        keep = np.array([value is not SKIPPED for value in values])
        return Taken(len(values), one=values.__getitem__, keep=keep)

    def _element(self, at: tuple[Run, int]) -> Any:
        if at in self._held:
            return self._held.pop(at)
        run, position = at
        if self._ends.get(run, position + 1) <= position:
            return SKIPPED
        live = self._at_or_before(run, position)
        try:
            if position - live.position > self.window:
                live.skip_to(position)
            while live.position < position:  # others will ask for these
                here = live.position
                self._hold((run, here), live.next())
            if live.position == position:
                return live.next()
        except StopIteration:
            return self._ended(live)
        except _Dead:
            self._live.remove(live)
            raise
        return self._ended(live)

    def _ended(self, live: _Live) -> Any:
        self._live.remove(live)
        if self.length is not None:
            error = PipelineError(
                f"IterableSource: the iterator ended after {live.position} elements, and `length` "
                f"says {self.length}; correct it, or leave it out."
            )
            raise _Dead(live.run.epoch, live.position) from error
        self._ends[live.run] = live.position
        return SKIPPED

    def _hold(self, at: tuple[Run, int], value: Any) -> None:
        self._held[at] = value
        while len(self._held) > 2 * self.window:
            self._held.popitem(last=False)

    def _new(self, run: Run) -> _Live:
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
        return _Live(made, run, self.shared)

    def _at_or_before(self, run: Run, position: int) -> _Live:
        """An iterator that stands at the position, or will come to it: the nearest, or one that
        is set back by a state of its own, if that is nearer."""
        near = [x for x in self._live if x.run == run and x.position <= position]
        live = max(near, key=lambda x: x.position, default=None)
        marks = [m for m in self._marks if m.run == run and m.position <= position]
        mark = max(marks, key=lambda m: m.position, default=None)
        if live is not None and (mark is None or mark.position <= live.position):
            self._live.remove(live)
        else:
            live = self._new(run)
            if mark is not None and live.own is not None:
                live.set(mark)
            live.skip_to(position)
        self._live.append(live)
        while len(self._live) > _MOST_ITERATORS:
            self._live.pop(0).close()
        return live

    # The iterator's own state, in the loader's state

    def _mark(self, run: Run) -> None:
        for live in self._live[-1:]:
            if live.own is not None and live.run == run:
                self._marks.append(live.get())

    def bookmark_at(self, key: Any, epoch: int, position: int) -> Any:
        """The latest known state of the iterator before a position, as an array of bytes."""
        if self.no_bookmark is None:
            return None
        run = self._run(key, epoch)
        with self._lock:
            marks = [m for m in self._marks if m.run == run and m.position <= position]
        best = max(marks, key=lambda m: m.position, default=None)
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
        """The same for the words of a state, as JAX has it."""
        *key, epoch, high, low = to_host(words).tolist()
        bookmark = self.bookmark_at(key, epoch, (high << 32) | low)
        return None if bookmark is None else to_device(bookmark)

    def adopt(self, bookmark: Any) -> None:
        """Takes over the bookmark of a state that was saved."""
        found = None if bookmark is None else unpacked(to_host(bookmark))
        if found is not None:
            with self._lock:
                known = [(mark.run, mark.position) for mark in self._marks]
                if (found.run, found.position) not in known:
                    self._marks.append(found)

    def digest_of(self) -> Any:
        return self.make

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (
            self.make,
            self.length,
            self._given,
            self.sample,
            self.no_bookmark,
            self.shared,
        )


class _Dead(BaseException):
    """An iterator gives nothing more; its cause is the error.

    No `Exception`, so that it passes the policies for errors: none of them can skip it.
    """

    def __init__(self, epoch: int, position: int) -> None:
        super().__init__()
        self.place = (epoch, position)

    def reported(self, label: str, rows: Rows) -> BaseException:
        """The error itself, with the element that raised it."""
        cause = self.__cause__
        assert cause is not None
        key = (int(rows.key[0]), int(rows.key[1]))
        annotate(cause, Failed(label, self.place[1], self.place[0], key))
        return cause


def _again(
    make: Any, length: Any, given: int, sample: Any, bookmark: Any, shared: bool
) -> StreamData:
    made = StreamData(make, length, given)
    made.sample, made.no_bookmark, made.shared = sample, bookmark, shared
    return made
