"""One walk through a pipeline's steps, read ahead and handed out in order.

    step          0    1    2    3    4    5
    handed out    ----------|
    read ahead              | done busy busy |           at most `prefetch` of them
    not begun                                | ...

A step is a function of its position, so any thread may read it, and again after an error.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ...core.buffers import Buffers
from ...core.reading import Failed, OnError, Reading, annotate, raise_it, reading_as
from ...core.settings import Settings, current_settings
from .crew import Crew

log = logging.getLogger("cereal")
LATE = 5.0  # seconds after which a line says what is being waited for
_CHEAP = 60e-6  # below this, handing over costs more than reading
_WATCHED = 16


class WorkerReading(Reading):
    """The reading of one thread for one step."""

    def __init__(self, track: Track, job: _Job) -> None:
        super().__init__(track.on_error, track.buffers, masked=track.masked)
        self.doomed = job.doomed
        self.thread = threading.current_thread()
        self._track, self._job = track, job
        job.readings.append(self)

    def finish(self) -> None:
        """This thread does something else from now on."""
        if self in self._job.readings:
            self._job.readings.remove(self)

    def settings(self) -> Any:
        return self._track.settings(executes=self._track.executes)

    @property
    def hands(self) -> int:
        return self._track.crew.hands

    def spread(self, parts: Any, run: Callable[[Any], Any]) -> list[Any]:
        make = lambda: WorkerReading(self._track, self._job)  # noqa: E731
        return self._track.crew.spread(parts, run, make)


class _Job:
    """One step on its way."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.done = False
        self.rows: Any = None
        self.error: BaseException | None = None
        self.thread: Any = None
        self.readings: list[WorkerReading] = []
        self.doomed: dict[Any, Exception] = {}

    @property
    def waits(self) -> bool:
        """Whether no thread is at it."""
        return self.thread is None and not self.done

    def place(self) -> Failed | None:
        """Where it is; the last who began something tells."""
        places = [mine.place() for mine in list(self.readings)]
        return next((place for place in reversed(places) if place is not None), None)


class Track:
    """Steps from a position on, read by a crew."""

    def __init__(
        self,
        crew: Crew,
        fetch: Callable[[Any], Any],
        rows_of: Callable[[int], Any],
        *,
        prefetch: int,
        total: int | None = None,
        buffers: Buffers,
        on_error: OnError = raise_it,
        timeout: float | None = None,
        masked: bool = False,
        executes: bool = True,
    ) -> None:
        self.crew, self.buffers, self.on_error = crew, buffers, on_error
        self.masked, self.executes = masked or on_error is not raise_it, executes
        self.settings: Settings = current_settings()
        self._fetch, self._rows_of = fetch, rows_of
        self._prefetch, self._total, self._timeout = prefetch, total, timeout
        self.taken = 0  # steps handed out
        self._begun = 0  # steps that a job was made for
        self._wanted = 0  # steps that may be begun
        self._rows: dict[int, Any] = {}
        self._jobs: dict[int, _Job] = {}
        self._retry: deque[_Job] = deque()
        self._times: deque[float] = deque(maxlen=_WATCHED)
        self._inline = False
        self.closed = False
        self._finished = threading.Condition(crew.lock)
        with crew.lock:
            crew.add(self)

    # The consumer's side

    def start(self) -> None:
        """Lets reading begin."""
        self._want(self.taken + self._prefetch)

    def ready(self) -> bool:
        """Whether the next step can be taken without waiting."""
        job = self._jobs.get(self.taken)
        return job is not None and job.done

    def take(self) -> Any:
        """The next step's rows, fetched; or what reading them raised, as often as it is asked."""
        if self.closed:
            raise RuntimeError("this iterator was closed; make a new one with `iterate(state)`.")
        if self._inline and not self._jobs:
            return self._take_inline()
        step = self.taken
        ahead = 0 if self._inline else self._prefetch
        self._want(max(step + 1, step + ahead))
        job = self._wait(step)
        with self.crew.lock:
            del self._jobs[step]
            if job.error is not None:
                again = _Job(step)  # on the next call
                self._jobs[step], self._rows[step] = again, job.rows
                raise job.error
            self.taken += 1
        self._inline = self._reads_cheaply()
        if not self._inline:
            self._want(step + 1 + ahead)
        return job.rows

    def _want(self, end: int) -> None:
        """Steps before `end` may be read; their rows are found here, in the caller's thread."""
        end = end if self._total is None else min(end, self._total)
        for step in range(max(self._wanted, self._begun), end):
            self._rows[step] = self._rows_of(step)
        with self.crew.lock:
            more = end - self._wanted
            self._wanted = max(self._wanted, end)
            again = self._jobs.get(self.taken)
            if again is not None and again.waits and again not in self._retry:
                self._retry.append(again)
                more = max(more, 1)
            if more > 0:
                self.crew.wake(more)

    def _wait(self, step: int) -> _Job:
        began, said = time.monotonic(), False
        with self.crew.lock:
            while True:
                job = self._jobs.get(step)
                if job is not None and job.done:
                    return job
                waited = time.monotonic() - began
                if not said and waited >= LATE:
                    said = True
                    log.warning("waiting for %s", _what(job, step, waited))
                if self._timeout is not None and waited >= self._timeout and job is not None:
                    self._give_up(job, waited)
                    began = time.monotonic()
                    continue
                self._finished.wait(self._patience(waited, said))

    def _patience(self, waited: float, said: bool) -> float | None:
        ends = [] if said else [LATE]
        ends += [] if self._timeout is None else [self._timeout]
        return max(0.001, min(ends) - waited) if ends else None

    def _give_up(self, job: _Job, waited: float) -> None:
        """The step hangs: its thread is left, and its element is an error."""
        error = TimeoutError(f"an element was not read in {waited:.1f} s (`timeout=`)")
        place = job.place()
        annotate(error, place)
        again = _Job(job.step)
        again.doomed = {**job.doomed}
        rows, threads = job.rows, {mine.thread for mine in list(job.readings)}
        self._jobs[job.step] = again
        job.thread = None
        if self.on_error is raise_it or place is None or len(again.doomed) >= 1000:
            again.done, again.error, again.rows = True, error, rows
        else:
            again.doomed[place.stage, place.index, place.epoch] = error
            self._rows[job.step] = rows
            self._retry.append(again)
        for thread in threads:
            self.crew.lose(thread)

    def _take_inline(self) -> Any:
        """Reads in the caller's thread, as long as that is cheap."""
        begin = time.perf_counter()
        step = self.taken
        rows = self._rows.pop(step, None)
        rows = self._rows_of(step) if rows is None else rows
        with reading_as(Reading(self.on_error, self.buffers, masked=self.masked)):
            fetched = self._fetch(rows)
        with self.crew.lock:
            self.taken = self._begun = step + 1
            self._wanted = max(self._wanted, step + 1)
        self._times.append(time.perf_counter() - begin)
        self._inline = self._reads_cheaply(4)
        return fetched

    def _reads_cheaply(self, slack: int = 1) -> bool:
        times = self._times
        if self._timeout is not None or len(times) < _WATCHED:
            return False
        return sorted(times)[_WATCHED // 2] < _CHEAP * slack

    def abandon(self) -> None:
        """`close`, from the garbage collector: it may run while this very thread has the lock."""
        self.closed = True
        if self.crew.lock.acquire(blocking=False):
            self.crew.lock.release()
            self.close()

    def close(self) -> None:
        """Nothing more is read; what is being read is finished and forgotten."""
        with self.crew.lock:
            self.closed = True
            self._wanted = 0
            self._retry.clear()
            self._rows.clear()
            self._finished.notify_all()
        self.crew.remove(self)

    # The crew's side

    def next_job(self) -> Callable[[], None] | None:
        """A step to read; called with the lock held."""
        if self.closed:
            return None
        if self._retry:
            job = self._retry.popleft()
        elif self._begun < self._wanted:
            job = _Job(self._begun)
            self._jobs[self._begun] = job
            self._begun += 1
        else:
            return None
        job.thread = threading.current_thread()
        job.rows = self._rows.pop(job.step)
        return lambda: self._run(job)

    def _run(self, job: _Job) -> None:
        begin, rows, error = time.perf_counter(), job.rows, None
        try:
            mine = WorkerReading(self, job)
            with reading_as(mine), mine.settings():
                rows = self._fetch(rows)
        except BaseException as caught:
            error = caught
        took = time.perf_counter() - begin
        with self.crew.lock:
            if job.thread is None:  # it was given up
                return
            job.readings.clear()
            job.rows, job.error, job.done = rows, error, True
            self._times.append(took)
            self._finished.notify_all()


class InlineTrack:
    """The same without threads."""

    def __init__(
        self,
        fetch: Callable[[Any], Any],
        rows_of: Callable[[int], Any],
        *,
        buffers: Buffers,
        on_error: OnError,
        masked: bool = False,
    ) -> None:
        self._fetch, self._rows_of, self.taken = fetch, rows_of, 0
        self._reading = Reading(on_error, buffers, masked=masked)

    def start(self) -> None:
        pass

    def ready(self) -> bool:
        return False

    def take(self) -> Any:
        rows = self._rows_of(self.taken)
        with reading_as(self._reading):
            fetched = self._fetch(rows)
        self.taken += 1
        return fetched

    def close(self) -> None:
        pass


def _what(job: _Job | None, step: int, waited: float) -> str:
    place = None if job is None else job.place()
    if place is None:
        return f"batch {step} since {waited:.0f} s; no worker is free, or it is about to be read"
    return f"{place.stage}, element {place.index} of epoch {place.epoch}, since {waited:.0f} s"
