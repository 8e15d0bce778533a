"""The threads of a loader.

A crew reads for several tracks. Each track gives its steps to the threads in order. A thread takes
the next step of a track, or helps another thread with the elements of a step. Threads start when
there is work. They end when the last track is closed, or after a second without work.
"""

from __future__ import annotations

import atexit
import dataclasses
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ..reading.read_context import use_read_context

_IDLE = 1.0
_JOIN = 1.0
_numbers = itertools.count()
_crews: weakref.WeakSet[Crew] = weakref.WeakSet()


class Crew:
    """Up to `size` threads, for any number of tracks."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.lock = threading.Lock()
        self._work = threading.Condition(self.lock)
        self._tracks: list[Any] = []
        self._shares: list[_Share] = []
        self._threads: set[threading.Thread] = set()
        self._idle = 0  # threads that wait for work
        self._told = 0  # those of them that were woken, but do not run yet
        _crews.add(self)

    # Called with the lock held

    def add(self, track: Any) -> None:
        self._tracks.append(track)

    def wake(self, count: int = 1) -> None:
        """Wakes waiting threads, or starts new ones, for `count` jobs."""
        told = max(0, min(count, self._idle - self._told))
        self._work.notify(told)
        self._told += told
        missing = min(count - told, self.size - len(self._threads))
        for _ in range(missing):
            name = f"cereal-worker-{next(_numbers)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._threads.add(thread)
            thread.start()

    def resize(self, size: int) -> None:
        """From now on there are up to `size` threads. If there are more, some end."""
        if size != self.size:
            self.size = size
            self._told = self._idle
            self._work.notify_all()

    def lose(self, job: Any, threads: set[Any]) -> None:
        """Gives up threads that hang in a job; new threads take their place."""
        self._shares[:] = [share for share in self._shares if share.job is not job]
        self._threads -= threads
        self.wake(max(1, len(threads)))

    def relieve(self) -> None:
        """Replaces all threads by new ones; the old ones end when their jobs are done."""
        self._threads.clear()
        self.wake(self.size)

    # Called without the lock

    def remove(self, track: Any) -> None:
        """Ends a track. After the last track, the threads end too."""
        with self.lock:
            if track in self._tracks:
                self._tracks.remove(track)
            leaving = set() if self._tracks else set(self._threads)
            self._told = self._idle
            self._work.notify_all()
        end = time.monotonic() + _JOIN
        if threading.current_thread() in leaving:  # called by the garbage collector, in a worker
            return
        for thread in leaving:
            thread.join(max(0.0, end - time.monotonic()))
        hung = {thread for thread in leaving if thread.is_alive()}
        if hung:
            with self.lock:  # nobody waits for them; they end when their element is read
                self._threads -= hung

    def abandon(self) -> None:
        """`close` for the garbage collector, which may run in a thread that holds the lock."""
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
                job = None if self._too_many() else self._next_job()
                while job is None:
                    if not self._tracks or me not in self._threads or self._too_many():
                        self._threads.discard(me)
                        return
                    self._idle += 1
                    told = self._work.wait(_IDLE)
                    self._idle -= 1
                    # One that was woken just when its time was up does not know that it was.
                    self._told = min(max(0, self._told - told), self._idle)
                    job = None if self._too_many() else self._next_job()
                    if job is None and not told:
                        self._threads.discard(me)
                        return
            job()
            del job

    def _too_many(self) -> bool:
        return len(self._threads) > self.size

    def _next_job(self) -> Callable[[], None] | None:
        self._tracks[:] = [track for track in self._tracks if not track.closed]
        if threading.current_thread() not in self._threads:
            return None
        for share in self._shares:
            if share.left:
                return share.help
        for _ in range(len(self._tracks)):
            self._tracks.append(self._tracks.pop(0))  # tracks take turns
            job = self._tracks[-1].next_job()
            if job is not None:
                return job
        return None

    def forget(self) -> None:
        """After a fork, in the child process: the threads are the parent's."""
        self.lock = threading.Lock()
        self._work = threading.Condition(self.lock)
        for track in self._tracks:
            track.closed = True
        self._tracks, self._shares, self._threads = [], [], set()
        self._idle = self._told = 0

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
        """`[run(part) for part in parts]`; threads without work help."""
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
    """The parts of one step; several threads work on them."""

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
        """Runs parts until none is left."""
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


def _forget_all() -> None:
    for crew in list(_crews):
        crew.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
