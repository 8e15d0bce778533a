"""Who reads the host part of a loader: its options, its threads, its buffers.

iterate, scan_epoch      a track of their own, closed when they end
callbacks of programs    `serve`: a track for every walk through positions that they ask for
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...core.buffers import Buffers
from ...core.errors import CerealError
from ...core.host_data import HostData
from ...core.position import Remainder, starts
from ...core.reading import Reading, reading_as
from ...core.rows import Rows
from ...core.settings import current_settings
from ...core.source import Positional
from ...core.state import make_words
from .crew import Crew
from .options import Options
from .routes import Routes
from .track import InlineTrack, Track, log

_MOST_WALKS = 16
_MOST_SERVED = 8
_FIRST_SKIPS = 3


class Readers(HostData):
    """The reading of one loader."""

    def __init__(self, source: Positional[Any], options: Options) -> None:
        super().__init__()
        self.source, self.options = source, options
        self.threads = options.threads(source)
        self.prefetch = options.ahead(source, self.threads)
        self.crew = Crew(max(1, self.threads))
        if source.stream is not None:
            source.stream.window = max(source.stream.window, 2 * self.prefetch * source.plan.batch)
        self._buffers = Buffers(self.prefetch + self.threads + 4)
        self._lock = threading.Lock()
        self._skips = _Skips()
        self._policy = options.policy(self._skips)
        self._walks: OrderedDict[Any, _Walk] = OrderedDict()
        self._served: OrderedDict[Any, tuple[Any, Any]] = OrderedDict()
        weakref.finalize(self, self.crew.close)

    @property
    def skipped(self) -> int:
        """How many elements were left out because of errors."""
        return self._skips.count

    def inline_reading(self) -> Reading:
        """How the caller's thread reads."""
        return Reading(self._policy, self._buffers)

    def track(
        self,
        words: Any,
        total: int | None,
        *,
        remainder: Remainder | None = None,
        steps_at_once: int | None = None,
        prefetch: int | None = None,
    ) -> Track | InlineTrack:
        """The steps from a position on; who takes it closes it."""
        routes = Routes(
            self.source, words, remainder=remainder, steps_at_once=steps_at_once, total=total
        )
        if self.threads == 0:
            fetch = self.source.fetch
            return InlineTrack(fetch, routes, buffers=self._buffers, on_error=self._policy)
        prefetch = self.prefetch if prefetch is None else prefetch
        return self.open_track(routes, prefetch=prefetch, total=total)

    def open_track(self, rows_of: Any, **options: Any) -> Track:
        """Steps whose rows are known, read by the crew."""
        return Track(
            self.crew,
            self.source.fetch,
            rows_of,
            buffers=self._buffers,
            on_error=self._policy,
            timeout=self.options.timeout,
            **options,
        )

    def close(self) -> None:
        """Ends all reading; the loader may be used again."""
        with self._lock:
            self._walks.clear()
            self._served.clear()
        self.crew.close()

    # Callbacks of compiled programs

    def serve(self, requests: list[tuple[Any, Rows]]) -> list[Rows]:
        """The rows of these positions, fetched; those that follow are read ahead.

        A position may be asked for again, by rematerialisation or by another device.
        """
        keys = [(_bytes(position and position[0]), _bytes(rows)) for position, rows in requests]
        walks = []
        for (position, _), key in zip(requests, keys, strict=True):
            if position is not None and self.source.stream is not None:
                self.source.stream.adopt(position[1])
            words = None if position is None else position[0]
            with self._lock:
                walks.append(None if key in self._served else self._walk(words, len(keys)))
        found = []
        for (_, rows), key, walk in zip(requests, keys, walks, strict=True):
            if walk is not None:
                try:
                    fetched = walk.take(rows)
                except BaseException:
                    self._end(walk)  # the program goes on without this position, the walk cannot
                    raise
                with self._lock:
                    self._served[key] = fetched
                    while len(self._served) > max(_MOST_SERVED, 2 * len(keys)):
                        self._served.popitem(last=False)
                found.append(fetched)
                continue
            with self._lock:
                again = self._served.get(key)
            found.append(self.fetch_now(rows, in_program=True) if again is None else again)
        return found

    def _walk(self, words: Any, at_once: int) -> Any:
        """The walk that comes to this position next, or a new one; None: it is not known."""
        if words is None:
            return _Unknown(self)
        walk = self._walks.pop(("program", _bytes(words)), None)
        if walk is None:
            prefetch = 1 if at_once > 4 else max(1, self.prefetch)
            walk = _Walk(self, words, prefetch, in_program=True)
        self._keep(walk, "program", 2 * at_once)
        return walk

    def _keep(self, walk: _Walk, kind: str, least: int) -> np.ndarray:
        """Notes at which position the walk will be asked again."""
        following = walk.following()
        self._walks[kind, _bytes(following)] = walk
        while len(self._walks) > max(_MOST_WALKS, least):
            self._walks.popitem(last=False)[1].close()
        return following

    # Calls of `next_batch` outside of programs

    def next_rows(self, words: Any) -> tuple[Rows, Any]:
        """The rows of this position, fetched, and the words after it.

        Who asks for positions one after the other is read ahead for, from the second on.
        """
        words = np.asarray(words)
        with self._lock:
            walk = self._walks.pop(("python", _bytes(words)), None)
            known = walk is not None
            walk = walk or _Walk(self, words, self.prefetch, in_program=False)
            following = self._keep(walk, "python", 0)
        try:
            fetched = walk.take() if known else self.fetch_now(walk.first(), in_program=False)
        except BaseException:
            self._end(walk)
            raise
        return fetched, jnp.asarray(following)

    def _end(self, ended: Any) -> None:
        with self._lock:
            for key in [key for key, walk in self._walks.items() if walk is ended]:
                del self._walks[key]
        ended.close()

    def fetch_now(self, rows: Rows, *, in_program: bool) -> Rows:
        """Reads in the caller's thread."""
        reading = Reading(self._policy, self._buffers, masked=in_program)
        with reading_as(reading), current_settings()(executes=not in_program):
            return self.source.fetch(rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return Readers, (self.source, self.options)


class _Skips:
    """Counts elements that are left out; it does not hold the loader, as its threads hold it."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def __call__(self, error: Exception) -> None:
        with self._lock:
            self.count += 1
            count = self.count
        if count <= _FIRST_SKIPS:
            more = "; more are counted in `loader.skipped`" if count == _FIRST_SKIPS else ""
            place = getattr(error, "element", None)
            log.warning("skipped: %s: %s, in %s%s", type(error).__name__, error, place, more)


class _Walk:
    """Positions that follow each other, as a program or a Python loop asks for them."""

    def __init__(self, readers: Readers, words: Any, prefetch: int, *, in_program: bool) -> None:
        self._readers = weakref.ref(readers)
        self._arithmetic = readers.source.plan.arithmetic
        self._words, self._steps, self._prefetch = np.asarray(words), 0, prefetch
        self._in_program = in_program
        self._lock = threading.Lock()
        self._routes = Routes(readers.source, self._words, compiled=not in_program)
        self._begun = 0  # steps that were read without a track
        self._rows: dict[int, Any] = {}
        self._track: Any = None

    def following(self) -> np.ndarray:
        """The words of the position after the next one; it has been asked for then."""
        words = self._words
        offset = (int(words[3]) << 32) | int(words[4])
        self._steps += 1
        at = starts(np, int(words[2]), offset, self._steps, **self._arithmetic)
        return make_words((int(words[0]), int(words[1])), int(at[0]), int(at[1]))

    def take(self, rows: Rows | None = None) -> Rows:
        """The next position's rows, fetched; if they are not as predicted, those given."""
        readers = self._readers()
        if readers is None:
            raise CerealError("the loader is gone, while a compiled program still reads it.")
        if not readers.threads and rows is not None:
            return readers.fetch_now(rows, in_program=self._in_program)
        with self._lock:
            if self._track is None:
                self._track = self._open(readers)
            step = self._track.taken
            fetched = self._track.take()
            predicted = self._rows.pop(step, None)
        if rows is None or (predicted is not None and _same(predicted, rows)):
            return fetched
        return readers.fetch_now(rows, in_program=self._in_program)

    def _open(self, readers: Readers) -> Track:
        return readers.open_track(
            self._rows_of,
            prefetch=self._prefetch,
            masked=self._in_program,
            executes=not self._in_program,
        )

    def first(self) -> Rows:
        """The rows of the position that it begins with."""
        self._begun = 1
        return self._routes(0)

    def _rows_of(self, step: int) -> Any:
        rows = self._routes(step + self._begun)
        self._rows[step] = rows
        return rows

    def close(self) -> None:
        if self._track is not None:
            self._track.close()


class _Unknown:
    """A position that does not say which it is."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    def take(self, rows: Rows) -> Rows:
        return self._readers.fetch_now(rows, in_program=True)

    def close(self) -> None:
        pass


def _bytes(tree: Any) -> Any:
    return tuple(np.asarray(x).tobytes() for x in jax.tree.leaves(tree))


def _same(a: Any, b: Any) -> bool:
    ours, theirs = jax.tree.leaves(a), jax.tree.leaves(b)
    return len(ours) == len(theirs) and all(
        np.array_equal(x, y) for x, y in zip(ours, theirs, strict=True)
    )
