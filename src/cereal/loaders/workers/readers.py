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
import numpy as np

from ...core.buffers import Buffers
from ...core.errors import CerealError
from ...core.execute import host_fetch
from ...core.host_data import HostData
from ...core.position import Remainder, starts
from ...core.reading import Reading, reading_as
from ...core.rows import Rows
from ...core.source import Positional
from ...core.state import make_words
from .crew import Crew
from .options import Options
from .routes import Routes
from .track import InlineTrack, Track, log

_MOST_WALKS = 128
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
        self._buffers = Buffers(self.prefetch + self.threads + 4)
        self.skipped = 0
        self._lock = threading.Lock()
        self._policy = options.policy(self._count)
        self._walks: OrderedDict[Any, _Walk] = OrderedDict()
        self._served: OrderedDict[Any, tuple[Any, Any]] = OrderedDict()
        weakref.finalize(self, self.crew.close)

    def _count(self, error: Exception) -> None:
        with self._lock:
            self.skipped += 1
            count = self.skipped
        if count <= _FIRST_SKIPS:
            more = "; more are counted in `loader.skipped`" if count == _FIRST_SKIPS else ""
            place = getattr(error, "element", None)
            log.warning("skipped: %s: %s, in %s%s", type(error).__name__, error, place, more)

    def inline_reading(self) -> Reading:
        """How the caller's thread reads."""
        return Reading(self._policy, self._buffers)

    def track(
        self,
        words: Any,
        total: int | None,
        *,
        remainder: Remainder | None = None,
        steps_at_once: int = 1,
        prefetch: int | None = None,
    ) -> Track | InlineTrack:
        """The steps from a position on; who takes it closes it."""
        source, fetch = self.source, host_fetch(self.source)
        routes = Routes(
            source, words, remainder=remainder, steps_at_once=steps_at_once, total=total
        )
        if self.threads == 0:
            return InlineTrack(fetch, routes, buffers=self._buffers, on_error=self._policy)
        return Track(
            self.crew,
            fetch,
            routes,
            prefetch=self.prefetch if prefetch is None else prefetch,
            total=total,
            buffers=self._buffers,
            on_error=self._policy,
            timeout=self.options.timeout,
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
        keys = [(_bytes(words), _bytes(rows)) for words, rows in requests]
        walks = []
        for (words, rows), key in zip(requests, keys, strict=True):
            with self._lock:
                walks.append(None if key in self._served else self._walk(words, rows, len(keys)))
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
            found.append(self._fetch_now(rows) if again is None else again)
        return found

    def _walk(self, words: Any, rows: Rows, at_once: int) -> Any:
        """The walk that comes to this position next, or a new one; None: it is not known."""
        if words is None:
            return _Unknown(self)
        walk = self._walks.pop(_bytes(words), None)
        if walk is None:
            walk = _Walk(self, words, 1 if at_once > 4 else max(1, self.prefetch))
        self._walks[walk.following()] = walk
        while len(self._walks) > max(_MOST_WALKS // 8, 2 * at_once):
            self._walks.popitem(last=False)[1].close()
        del rows
        return walk

    def _end(self, ended: Any) -> None:
        with self._lock:
            for key in [key for key, walk in self._walks.items() if walk is ended]:
                del self._walks[key]
        ended.close()

    def _fetch_now(self, rows: Rows) -> Rows:
        reading = Reading(self._policy, self._buffers, masked=True)
        with reading_as(reading), jax.no_execution():
            return host_fetch(self.source)(rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return Readers, (self.source, self.options)


class _Walk:
    """Positions that follow each other, as a program asks for them."""

    def __init__(self, readers: Readers, words: Any, prefetch: int) -> None:
        self._readers = weakref.ref(readers)
        source = readers.source
        self._arithmetic = source.plan.arithmetic
        self._words, self._step = np.asarray(words), 0
        self._lock = threading.Lock()
        self._routes = Routes(source, self._words, compiled=False)
        self._rows: dict[int, Any] = {}
        self._track: Any = None
        if readers.threads:
            self._track = Track(
                readers.crew,
                host_fetch(source),
                self._rows_of,
                prefetch=prefetch,
                total=None,
                buffers=readers._buffers,
                on_error=readers._policy,
                timeout=readers.options.timeout,
                masked=True,
                executes=False,
            )

    def _rows_of(self, step: int) -> Any:
        rows = self._routes(step)
        self._rows[step] = rows
        return rows

    def following(self) -> Any:
        """The position after the next one."""
        words = self._words
        offset = (int(words[3]) << 32) | int(words[4])
        self._step += 1
        at = starts(np, int(words[2]), offset, self._step, **self._arithmetic)
        key = (int(words[0]), int(words[1]))
        return _bytes(make_words(key, int(at[0]), int(at[1])))

    def take(self, rows: Rows) -> Rows:
        """The next position's rows, as they were predicted, or if not, as they are."""
        readers = self._readers()
        if readers is None:
            raise CerealError("the loader is gone, while a compiled program still reads it.")
        if self._track is None:
            return readers._fetch_now(rows)
        with self._lock:
            step = self._track.taken
            fetched = self._track.take()
            predicted = self._rows.pop(step, None)
        if predicted is None or not _same(predicted, rows):
            return readers._fetch_now(rows)
        # In the types of the program, and with a key as it has it.
        return fetched

    def close(self) -> None:
        if self._track is not None:
            self._track.close()


class _Unknown:
    """A position that does not say which it is."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    def take(self, rows: Rows) -> Rows:
        return self._readers._fetch_now(rows)

    def close(self) -> None:
        pass


def _bytes(tree: Any) -> Any:
    return tuple(np.asarray(x).tobytes() for x in jax.tree.leaves(tree))


def _same(a: Any, b: Any) -> bool:
    ours, theirs = jax.tree.leaves(a), jax.tree.leaves(b)
    return len(ours) == len(theirs) and all(
        np.array_equal(x, y) for x, y in zip(ours, theirs, strict=True)
    )
