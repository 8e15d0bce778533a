"""The threads of a loader.

A crew has tracks to read for; each hands out its steps in order. A thread takes the next step of a
track that wants one, or helps with elements of a step that another thread is at. Threads start when
there is work and end when there is none: when the last track is closed, or after a second of
waiting.
"""

from __future__ import annotations

import atexit
import dataclasses
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from .read_context import use_read_context

_IDLE = 1.0
_JOIN = 1.0
_numbers = itertools.count()
_crews: weakref.WeakSet[Crew] = weakref.WeakSet()


class Crew:
    """So many threads, for any number of tracks."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.lock = threading.Lock()
        self._work = threading.Condition(self.lock)
        self._tracks: list[Any] = []
        self._shares: list[_Share] = []
        self._threads: set[threading.Thread] = set()
        self._idle = 0  # threads that wait for work,
        self._told = 0  # and those of them that were told of some
        _crews.add(self)

    # Called with the lock held

    def add(self, track: Any) -> None:
        self._tracks.append(track)

    def wake(self, count: int = 1) -> None:
        """Wakes threads that wait, or starts new ones, for so many jobs."""
        told = max(0, min(count, self._idle - self._told))
        self._work.notify(told)
        self._told += told
        missing = min(count - told, self.size - len(self._threads))
        for _ in range(missing):
            name = f"cereal-worker-{next(_numbers)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._threads.add(thread)
            thread.start()

    def lose(self, job: Any, threads: set[Any]) -> None:
        """Threads that hang in a job: they are left alone, others take their place."""
        self._shares[:] = [share for share in self._shares if share.job is not job]
        self._threads -= threads
        self.wake(max(1, len(threads)))

    def relieve(self) -> None:
        """All threads finish what they are doing and end; new ones take their place."""
        self._threads.clear()
        self.wake(self.size)

    # Called without

    def remove(self, track: Any) -> None:
        """Ends a track; with the last one, the threads."""
        with self.lock:
            if track in self._tracks:
                self._tracks.remove(track)
            leaving = set() if self._tracks else set(self._threads)
            self._told = self._idle
            self._work.notify_all()
        end = time.monotonic() + _JOIN
        if threading.current_thread() in leaving:  # the garbage collector runs in a worker
            return
        for thread in leaving:
            thread.join(max(0.0, end - time.monotonic()))
        hung = {thread for thread in leaving if thread.is_alive()}
        if hung:
            with self.lock:  # they end when their element does; nobody waits for them
                self._threads -= hung

    def abandon(self) -> None:
        """`close`, called by the garbage collector, perhaps in a thread that has the lock."""
        for track in list(self._tracks):
            track.abandon()

    def close(self) -> None:
        with self.lock:
            tracks = list(self._tracks)
        for track in tracks:
            track.close()

    # The threads

    def _run(self) -> None:
        me = threading.current_thread()
        while True:
            with self.lock:
                job = self._next_job()
                while job is None:
                    if not self._tracks or me not in self._threads:
                        self._threads.discard(me)
                        return
                    self._idle += 1
                    told = self._work.wait(_IDLE)
                    self._idle -= 1
                    self._told = max(0, self._told - told)
                    job = self._next_job()
                    if job is None and not told:
                        self._threads.discard(me)
                        return
            job()
            del job

    def _next_job(self) -> Callable[[], None] | None:
        self._tracks[:] = [track for track in self._tracks if not track.closed]
        if threading.current_thread() not in self._threads:
            return None
        for share in self._shares:
            if share.left:
                return share.help
        for _ in range(len(self._tracks)):
            self._tracks.append(self._tracks.pop(0))  # each in its turn
            job = self._tracks[-1].next_job()
            if job is not None:
                return job
        return None

    # Helping

    @property
    def helpers(self) -> int:
        """How many threads could work on one step now."""
        return 1 + max(0, self._idle - self._told) + max(0, self.size - len(self._threads))

    def spread(
        self,
        parts: Sequence[Any],
        run: Callable[[Any], Any],
        make_context: Callable[[], Any],
        job: Any = None,
    ) -> list[Any]:
        """`[run(part) for part in parts]`, with the help of threads that have nothing to do."""
        if len(parts) < 2 or self.helpers < 2:
            return [run(part) for part in parts]
        share = _Share(parts, run, make_context, job)
        with self.lock:
            self._shares.append(share)
            self.wake(min(len(parts) - 1, self.helpers - 1))
        try:
            share.work()
        finally:
            with self.lock:
                if share in self._shares:
                    self._shares.remove(share)
        return share.results()


@dataclasses.dataclass(eq=False)
class _Share:
    """Parts of one step, which several threads work on."""

    parts: Sequence[Any]
    run: Callable[[Any], Any]
    make_context: Callable[[], Any]
    job: Any

    def __post_init__(self) -> None:
        self._found: list[Any] = [None] * len(self.parts)
        self._failed: dict[int, BaseException] = {}
        self._next = itertools.count()
        self._done = threading.Semaphore(0)
        self.left = True

    def work(self) -> None:
        """Does parts until there are no more."""
        while (number := next(self._next)) < len(self.parts):
            try:
                self._found[number] = self.run(self.parts[number])
            except BaseException as error:
                self._failed[number] = error
            self._done.release()
        self.left = False

    def help(self) -> None:
        mine = self.make_context()
        try:
            with use_read_context(mine), mine.settings():
                self.work()
        finally:
            mine.finish()

    def results(self) -> list[Any]:
        for _ in self.parts:
            self._done.acquire()
        if self._failed:
            raise self._failed[min(self._failed)]
        return self._found


@atexit.register
def _close_all() -> None:
    for crew in list(_crews):
        crew.close()
