"""Iterators, asked by position.

    positions asked for    0..3      8..11     4..7        by workers, in any order
    the iterator gives     0 1 2 3   4 5 6 7 8 9 10 11     4..7 are held until they are asked for

Whoever asks for a position beyond where an iterator stands reads up to it, and holds what others
will ask for. Who asks for one that has passed gets an iterator that is set back: by its own state,
or by a new one that skips.
"""

from __future__ import annotations

import base64
import inspect
import json
import threading
from collections import OrderedDict, deque
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..core.errors import PipelineError
from ..core.reading import SKIPPED, annotate, reading
from ..core.rows import Rows
from ..core.taken import Taken
from .by_element import ElementData

_MOST_ITERATORS = 4
_MOST_HELD = 1 << 14
_MOST_BOOKMARKS = 64
BOOKMARK_BYTES = 4096
_STATES = (("get_state", "set_state"), ("state_dict", "load_state_dict"))


class Bookmark(NamedTuple):
    """The state of an iterator that has given so many elements of an epoch."""

    epoch: int
    position: int
    state: Any


class _Live:
    """An iterator on its way."""

    def __init__(self, made: Any, epoch: int) -> None:
        self.made, self.epoch, self.position = made, epoch, 0
        self.own = next((pair for pair in _STATES if all(hasattr(made, n) for n in pair)), None)
        self.iterator: Any = None

    def set(self, bookmark: Bookmark) -> None:
        assert self.own is not None
        getattr(self.made, self.own[1])(bookmark.state)
        self.position = bookmark.position

    def get(self) -> Bookmark:
        assert self.own is not None
        return Bookmark(self.epoch, self.position, getattr(self.made, self.own[0])())

    def next(self) -> Any:
        if self.iterator is None:
            self.iterator = iter(self.made)
        value = next(self.iterator)
        self.position += 1
        return value

    def close(self) -> None:
        for each in (self.iterator, self.made):
            if inspect.isgenerator(each):
                each.close()


class StreamData(ElementData):
    """What an iterable source reads."""

    def __init__(self, make: Any, length: int | None, with_epoch: bool) -> None:
        super().__init__()
        self.make, self.length, self.with_epoch = make, length, with_epoch
        self._lock = threading.RLock()
        self._live: list[_Live] = []  # the latest used last
        self._held: OrderedDict[tuple[int, int], Any] = OrderedDict()
        self._ends: dict[int, int] = {}
        self._marks: deque[Bookmark] = deque(maxlen=_MOST_BOOKMARKS)
        self.no_bookmark: Any = None

    @property
    def name(self) -> str:
        inner = getattr(self.make, "func", self.make)
        return getattr(inner, "__name__", type(inner).__name__)

    def first(self, label: str) -> Any:
        """The first element, to see what elements look like; it will be given to who asks."""
        live = self._new(0)
        try:
            self.sample = live.next()
        except StopIteration:
            raise PipelineError(f"{label}: the iterator gave no element at all.") from None
        except Exception as error:
            message = str(error).strip().partition("\n")[0]
            raise PipelineError(
                f"{label} failed on its first element: {type(error).__name__}: {message}"
            ) from error
        self._live.append(live)
        self._held[0, 0] = self.sample
        if live.own is not None:
            self.no_bookmark = np.zeros(BOOKMARK_BYTES, np.uint8)
        return self.sample

    def end_of(self, epoch: int) -> int | None:
        """How many elements an epoch has, if its end was seen."""
        return self._ends.get(epoch)

    def read(self, label: str, rows: Rows) -> Taken:
        here, values = reading(), []
        epochs, positions = rows.epoch.tolist(), rows.index.tolist()
        with self._lock, here.at(label, rows):
            for lane, at in enumerate(zip(epochs, positions, strict=True)):
                try:
                    here.step_to(lane)
                    values.append(self._element(at))
                except _DeadError as error:
                    annotate(error.__cause__ or error, here.place())
                    raise error.__cause__ or error from None
                except Exception as error:
                    values.append(here.failed(error))
            self._mark(epochs[-1])
        if self.length is None or any(value is SKIPPED for value in values):
            return Taken(values, keep=np.array([value is not SKIPPED for value in values]))
        return Taken(values)

    def _element(self, at: tuple[int, int]) -> Any:
        if at in self._held:
            return self._held.pop(at)
        epoch, position = at
        if self._ends.get(epoch, position + 1) <= position:
            return SKIPPED
        live = self._at_or_before(epoch, position)
        while True:
            here = live.position
            try:
                value = live.next()
            except StopIteration:
                return self._ended(live, here)
            except Exception as error:
                self._live.remove(live)
                if inspect.isgenerator(live.iterator):
                    error.add_note("cereal: a generator cannot go on after an error.")
                    raise _DeadError(error) from error
                raise
            if here == position:
                return value
            self._hold((epoch, here), value)

    def _ended(self, live: _Live, end: int) -> Any:
        self._live.remove(live)
        if self.length is not None:
            raise PipelineError(
                f"IterableSource: the iterator ended after {end} elements, and `length` says "
                f"{self.length}; correct it, or leave it out."
            )
        self._ends[live.epoch] = end
        return SKIPPED

    def _hold(self, at: tuple[int, int], value: Any) -> None:
        self._held[at] = value
        while len(self._held) > _MOST_HELD:
            self._held.popitem(last=False)

    def _new(self, epoch: int) -> _Live:
        made = self.make(epoch) if self.with_epoch else self.make()
        if not hasattr(made, "__iter__") and not hasattr(made, "__next__"):
            raise PipelineError(
                f"IterableSource: `make_iterator` must return something to iterate over, returned "
                f"{type(made).__name__}."
            )
        return _Live(made, epoch)

    def _at_or_before(self, epoch: int, position: int) -> _Live:
        """An iterator that stands at the position, or will come to it."""
        near = [x for x in self._live if x.epoch == epoch and x.position <= position]
        near = [x for x in near if position - x.position <= _MOST_HELD]
        if near:
            live = max(near, key=lambda x: x.position)
            self._live.remove(live)
        else:
            live = self._set_back(epoch, position)
        self._live.append(live)
        while len(self._live) > _MOST_ITERATORS:
            self._live.pop(0).close()
        return live

    def _set_back(self, epoch: int, position: int) -> _Live:
        live = self._new(epoch)
        marks = [m for m in self._marks if m.epoch == epoch and m.position <= position]
        if marks and live.own is not None:
            live.set(max(marks, key=lambda m: m.position))
        while live.position < position:
            try:
                live.next()
            except StopIteration:
                break
        return live

    # The iterator's own state, in the loader's state

    def _mark(self, epoch: int) -> None:
        for live in self._live[-1:]:
            if live.own is not None and live.epoch == epoch:
                self._marks.append(live.get())

    def bookmark_at(self, epoch: int, position: int) -> Any:
        """The latest known state of the iterator before a position, as an array of bytes."""
        if self.no_bookmark is None:
            return None
        with self._lock:
            marks = [m for m in self._marks if m.epoch == epoch and m.position <= position]
        best = max(marks, key=lambda m: m.position, default=None)
        return self.no_bookmark if best is None else _packed(best)

    def bookmark_for(self, words: Any) -> Any:
        """The same for the words of a state, as JAX has it."""
        _, _, epoch, high, low = (int(word) for word in np.asarray(words))
        bookmark = self.bookmark_at(epoch, (high << 32) | low)
        return None if bookmark is None else jnp.asarray(bookmark)

    def adopt(self, bookmark: Any) -> None:
        """Takes over the bookmark of a state that was saved."""
        found = None if bookmark is None else _unpacked(np.asarray(bookmark))
        if found is not None:
            with self._lock:
                if found not in self._marks:
                    self._marks.append(found)

    def digest_of(self) -> Any:
        return self.make

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.make, self.length, self.with_epoch, self.sample, self.no_bookmark)


class _DeadError(PipelineError):
    """An error after which an iterator gives nothing more; no policy can skip it."""


def _again(make: Any, length: Any, with_epoch: bool, sample: Any, bookmark: Any) -> StreamData:
    made = StreamData(make, length, with_epoch)
    made.sample, made.no_bookmark = sample, bookmark
    return made


def _packed(bookmark: Bookmark) -> np.ndarray:
    """As bytes with their number in front; nothing if it is too long or no plain data."""
    out = np.zeros(BOOKMARK_BYTES, np.uint8)
    try:
        text = json.dumps(list(bookmark), default=_plain).encode()
    except (TypeError, ValueError):
        return out
    if len(text) + 4 <= BOOKMARK_BYTES:
        out[:4] = np.frombuffer(len(text).to_bytes(4, "little"), np.uint8)
        out[4 : 4 + len(text)] = np.frombuffer(text, np.uint8)
    return out


def _unpacked(array: np.ndarray) -> Bookmark | None:
    size = int.from_bytes(array[:4].tobytes(), "little")
    if not 0 < size <= BOOKMARK_BYTES - 4:
        return None
    epoch, position, state = json.loads(array[4 : 4 + size].tobytes(), object_hook=_from_plain)
    return Bookmark(epoch, position, state)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"__bytes__": base64.b64encode(value).decode()}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no plain data")


def _from_plain(found: dict[str, Any]) -> Any:
    return base64.b64decode(found["__bytes__"]) if set(found) == {"__bytes__"} else found
