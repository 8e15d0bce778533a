"""Reads the part of a loader that Python runs, with the loader's options, threads and buffers.

iterate, scan_epoch      each has its own track, and closes it at its end
callbacks of programs    `serve`: one track for each sequence of positions that follow each other
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import OrderedDict
from concurrent.futures import Future
from typing import Any

import jax
import numpy as np

from ..device.placement import put_words
from ..device.transfer import to_host
from ..host.crew import Crew
from ..host.host_data import HostData
from ..host.settings import current_settings
from ..host.track import InlineTrack, Track, TrackClosedError, log
from ..order.position import Remainder
from ..order.rows import Rows
from ..pipeline.execute import routed_rows
from ..pipeline.pipeline import Pipeline, run_by
from ..pipeline.positional import Positional
from ..pipeline.source import Source
from ..pipeline.walk import Walk
from ..reading.buffers import Buffers
from ..reading.read_context import ReadContext, use_read_context
from .options import Options, program_of
from .rows_ahead import Routes
from .who_reads import TrackTuning, WhoReads

_MOST_WALKS = 16
_MOST_SERVED = 8
_FIRST_SKIPS = 3
_NOTHING = contextlib.nullcontext()


class ReadService(HostData):
    """Options, threads and buffers of one loader."""

    def __init__(self, source: Any, options: Options) -> None:
        super().__init__()
        self.source, self.options = source, options
        ahead = options.ahead(source)
        self.who = WhoReads(options.plan(source), ahead, ahead.batches)
        most = ahead(self.who.most)
        if source._iterators is not None:
            source._iterators.window = max(source._iterators.window, 2 * most * source._plan.batch)
        self._buffers = Buffers(ahead.batches(self.who.most))
        self._lock = threading.Lock()
        self._skips = _Skips()
        self._policy = options.policy(self._skips)
        self._walks: OrderedDict[Any, _Walk] = OrderedDict()
        self._served: OrderedDict[Any, _Answer] = OrderedDict()
        weakref.finalize(self, self.who.abandon)  # when the loader is gone, its threads end
        if self.who.isolated:
            program = program_of(source)
            if program is not None:
                self.who.reader().prepare(program)  # it pickles, or says why not

    @property
    def skipped(self) -> int:
        """How many elements were left out because of errors."""
        return self._skips.count

    @property
    def threads(self) -> int:
        """The most threads or processes that read; 0: always the caller."""
        return self.who.most

    @property
    def prefetch(self) -> int:
        """How many batches are read ahead."""
        return self.who.prefetch

    @property
    def crew(self) -> Crew:
        """The threads."""
        return self.who.crew

    def in_words(self) -> str:
        """The words about threads in the drawing of a loader."""
        return self.who.in_words()

    def track(
        self,
        source: Any,
        words: Any,
        total: int | None,
        *,
        remainder: Remainder | None = None,
        steps_at_once: int | None = None,
    ) -> Track | InlineTrack:
        """A track of the steps from a position on. The caller closes it."""
        source = without_service(source)
        routes = Routes(
            source, words, remainder=remainder, steps_at_once=steps_at_once, total=total
        )
        together = 1 if steps_at_once else self.options.together(source)
        options = {"total": total, "each": steps_at_once or 1}
        return self.track_of(source, routes, together=together, **options)

    def track_of(
        self, source: Any, rows_of: Any, *, together: int = 1, **options: Any
    ) -> Track | InlineTrack:
        """A track of steps whose rows `rows_of(step)` gives. The caller closes it."""
        if self.threads == 0:
            context = ReadContext(self._policy, self._buffers)
            return InlineTrack(source._fetch_here, rows_of, context, together)
        return self.open_track(source, rows_of, **options)

    def open_track(self, source: Any, rows_of: Any, **options: Any) -> Track:
        """A track whose steps the crew reads; `rows_of(step)` gives the rows of a step."""
        return Track(
            crew=self.crew,
            fetch=source._fetch_here,
            rows_of=rows_of,
            tuning=TrackTuning(self.who, program_of(source)),
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
        self.who.close()

    def fetch_now(self, source: Any, rows: Rows, *, in_program: bool) -> Rows:
        """Reads in the caller's thread."""
        context = ReadContext(self._policy, self._buffers, masked=in_program)
        if self.who.isolated:
            context.remote = self.who.reader()
        with use_read_context(context), jax.no_execution() if in_program else _NOTHING:
            return source._fetch_here(rows)

    # Callbacks of compiled programs

    def serve(self, requests: list[tuple[Any, Rows]]) -> list[Rows]:
        """The fetched rows of these positions. The positions after them are read ahead.

        A program may ask for a position several times (rematerialisation, several devices), even
        while it is being read. It is read only once.
        """
        asked = [self._ask(position, rows, len(requests)) for position, rows in requests]
        for answer, mine in asked:
            if mine:
                self._answer(answer)
        return [answer.result() for answer, _ in asked]

    def _ask(self, position: Any, rows: Rows, at_once: int) -> tuple[_Answer, bool]:
        """The answer for a position, and whether this call has to compute it."""
        words = None if position is None else position[0]
        if position is not None and self.source._iterators is not None:
            self.source._iterators.adopt(position[1])
        key = (_bytes(words), _bytes(rows), current_settings().values)
        with self._lock:
            if key in self._served:
                return self._served[key], False
            walk, step = None, 0
            if words is not None and self.threads:
                walk, step, _ = self._walk("program", self.source, words, at_once)
            self._served[key] = answer = _Answer(key, rows, walk, step)
            while len(self._served) > max(_MOST_SERVED, 2 * at_once):
                self._served.popitem(last=False)
            return answer, True

    def _answer(self, answer: _Answer) -> None:
        try:
            found = None
            if answer.walk is not None:
                found = self._take(answer.walk, answer.step, answer.rows)
            if found is None:
                found = self.fetch_now(self.source, answer.rows, in_program=True)
            answer.walk = None
            answer.set_result(found)
        except BaseException as error:
            with self._lock:
                self._served.pop(answer.key, None)
            answer.set_exception(error)

    # Walks

    def _walk(self, kind: str, source: Any, words: Any, at_once: int) -> tuple[_Walk, int, Any]:
        """The walk whose next step is at this position, or a new walk; the number of that step; and
        the words after it. `at_once`: walks that the caller has. Called with the lock held."""
        leaves = tuple(id(leaf) for leaf in jax.tree.leaves(source)) if kind == "python" else ()
        walk = self._walks.pop((kind, leaves, _bytes(words)), None)
        if walk is not None and not walk.settings.are_here():  # it belongs to another caller
            if not walk.users:
                walk.close()
            walk = None
        if walk is None:
            walk = _Walk(source, words, at_once, in_program=kind == "program")
        step, following = walk.following()
        replaced = self._walks.pop((kind, leaves, _bytes(following)), None)
        self._walks[kind, leaves, _bytes(following)] = walk
        idle = [key for key, each in self._walks.items() if not each.users and each is not walk]
        for key in idle[: max(0, len(self._walks) - _MOST_WALKS)]:
            self._walks.pop(key).close()
        if replaced is not None and not replaced.users:
            replaced.close()
        walk.users += 1
        return walk, step, following

    def _take(self, walk: _Walk, step: int, rows: Rows | None) -> Rows | None:
        """The fetched rows of a step of a walk; None if the walk does not have them."""
        try:
            return walk.take(self, step, rows)
        except TrackClosedError:
            return None
        except BaseException:
            with self._lock:  # the program goes on after this error, but the walk cannot
                for key in [key for key, each in self._walks.items() if each is walk]:
                    del self._walks[key]
            walk.close()
            raise
        finally:
            with self._lock:
                walk.users -= 1

    # Calls of `next_batch` outside of programs

    def next_rows(self, source: Any, words: Any) -> tuple[Rows, Any]:
        """The fetched rows of this position, and the words of the position after it.

        If the caller's next call asks for that position, the positions after it are read ahead.
        """
        words, source = to_host(words), without_service(source)
        with self._lock:
            walk, step, following = self._walk("python", source, words, 1)
        fetched = self._take(walk, step, None)
        if fetched is None:
            rows, _ = routed_rows(source, words, 1, lanes=source._lanes_here)
            fetched = self.fetch_now(source, rows[0], in_program=False)
        return fetched, put_words(following, source.traits.placement)

    def __reduce__(self) -> tuple[Any, ...]:
        return ReadService, (self.source, self.options)


def with_service(source: Source[Any], options: Options) -> Source[Any]:
    """The pipeline with service of its own, if Python reads a part of it."""
    if not isinstance(source, Positional) or not source.traits.host:
        options.warn_unused()
        return source
    bare = without_service(source)
    return run_by(bare, ReadService(bare, options), options.skips)


def without_service(source: Positional[Any]) -> Any:
    """The pipeline without its service, for threads. If a thread held the service, it would never
    be deleted, and so would never end the thread."""
    if not isinstance(source, Pipeline):
        return run_by(source, None)
    return source if source.service is None else source._without_service


class _Answer(Future[Rows]):
    """The rows that were, or will be, read for a position."""

    def __init__(self, key: Any, rows: Rows, walk: Any, step: int) -> None:
        super().__init__()
        self.key, self.rows, self.walk, self.step = key, rows, walk, step


class _Skips:
    """Counts elements that are left out. (Threads hold it, so it must not hold the loader.)"""

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
    """A sequence of positions that follow each other, as a program or a loop asks for them."""

    _FEWER = 1 << 30  # of many walks at once, each reads one step ahead

    def __init__(self, source: Any, words: Any, at_once: int, *, in_program: bool) -> None:
        self._source, self._steps = source, Walk.starting(source._plan, words)
        self._asked, self._in_program = 0, in_program
        self._each = self._FEWER if at_once > 4 else 1
        self._lock = threading.Lock()
        self._routes = Routes(source, np.asarray(words), compiled=not in_program)
        self._rows: dict[int, Any] = {}
        self._track: Any = None
        self._begun = 0  # steps that were read without a track
        self._next = 0  # the step to be taken
        self.settings = current_settings()
        self.users = 0  # calls that are about to `take`; guarded by the lock of the service

    def following(self) -> tuple[int, np.ndarray]:
        """The step that is asked for now, and the words of the position after it."""
        self._asked += 1
        return self._asked - 1, self._steps.words_at(self._asked)

    def take(self, service: ReadService, step: int, rows: Rows | None) -> Rows | None:
        """The fetched rows of a step. None if the steps were not asked for in order, or if `rows`
        are not those that we predicted (a program may have other tables)."""
        with self._lock:
            if self._track is None and not self._in_program and step == 0:
                # We do not know yet whether the caller will ask for the next step.
                fetched = service.fetch_now(self._source, self._routes(0), in_program=False)
                self._begun = self._next = 1
                return fetched
            if self._track is None:
                self._track = service.open_track(
                    self._source,
                    self._rows_of,
                    each=self._each,
                    masked=self._in_program,
                    executes=not self._in_program,
                )
            if step != self._next:
                return None
            fetched = self._track.take(step - self._begun)
            self._next, predicted = step + 1, self._rows.pop(step, None)
        return fetched if rows is None or _same(predicted, rows) else None

    def _rows_of(self, step: int) -> Any:
        rows = self._routes(step + self._begun)
        self._rows[step + self._begun] = rows
        return rows

    def close(self) -> None:
        if self._track is not None:
            self._track.close()


def _bytes(tree: Any) -> Any:
    return tuple(np.asarray(x).tobytes() for x in jax.tree.leaves(tree))


def _same(a: Any, b: Any) -> bool:
    ours, theirs = jax.tree.leaves(a), jax.tree.leaves(b)
    return len(ours) == len(theirs) and all(
        np.array_equal(x, y) for x, y in zip(ours, theirs, strict=True)
    )
