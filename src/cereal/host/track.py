"""The steps of one iteration, read ahead by threads and handed out in order.

    step          0    1    2    3    4    5
    taken         ----------|
    read ahead              | done busy busy |           at most `prefetch` of them
    not begun                                | ...

A step depends only on its position, so any thread may read it, and read it again after an error.
After an error or an interrupt, `take(k)` may be called again with the same k: a step is kept until
the next one is taken.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ..base.errors import CerealError
from ..reading.buffers import Buffers
from ..reading.read_context import (
    Failed,
    OnError,
    ReadContext,
    annotate,
    raise_it,
    use_read_context,
)
from .crew import Crew
from .job import Job, WorkerReadContext
from .settings import Settings, current_settings
from .tuning import Tuning

log = logging.getLogger("cereal")
LATE = 5.0  # seconds of waiting after which a line is logged that says what for
_CHEAP = 60e-6  # seconds; below this, passing a batch between threads costs more than reading it
_WATCHED = 16


class TrackClosedError(CerealError, RuntimeError):
    """A step was asked for after the track was closed."""

    def __init__(self) -> None:
        super().__init__("this iterator was closed; make a new one with `iterate(state)`.")


@dataclasses.dataclass(eq=False, kw_only=True)
class Track:
    """Steps from a position on, read by a crew: `fetch(rows_of(step))`.

    If `rows_of(step)` is None, the step before was the last one.
    """

    crew: Crew
    fetch: Callable[[Any], Any]
    rows_of: Callable[[int], Any]
    tuning: Tuning
    buffers: Buffers
    total: int | None = None
    on_error: OnError = raise_it
    timeout: float | None = None
    masked: bool = False
    executes: bool = True  # whether functions of the pipeline may run JAX
    each: int = 1  # how many steps of the pipeline a step of the track is

    def __post_init__(self) -> None:
        self.masked = self.masked or self.on_error is not raise_it
        if self.timeout is not None:
            self.timeout = min(self.timeout, threading.TIMEOUT_MAX / 2)
        self.settings: Settings = current_settings()
        self._first = 0  # the first step that may still be taken
        self._begun = 0  # steps that a job was made for
        self._wanted = 0  # steps that may be begun
        self._rows: dict[int, Any] = {}
        self._jobs: dict[int, Job] = {}
        self._retry: deque[Job] = deque()
        self._times: deque[float] = deque(maxlen=_WATCHED)
        self._inline = self.tuning.caller
        self._last: float | None = None  # when a step was last taken
        self.closed = False
        self._finished = threading.Condition(self.crew.lock)
        with self.crew.lock:
            self.crew.add(self)

    # The consumer's side

    @property
    def prefetch(self) -> int:
        """How many steps are read ahead."""
        return max(1, -(-self.tuning.prefetch // self.each)) if self.tuning.prefetch else 0

    def start(self) -> None:
        self._last = time.perf_counter()
        if not self._inline:
            self._want(self._first + self.prefetch)

    def ready(self, step: int) -> bool:
        """Whether this step can be taken without waiting."""
        job = self._jobs.get(step)
        return job is not None and job.done and job.error is None

    def take(self, step: int) -> Any:
        """The fetched rows of a step, or the error of reading them. Steps are taken in order."""
        began = time.perf_counter()
        rows = self._take(step)
        now = time.perf_counter()
        if self._last is not None:
            self.tuning.taken(now - began, now - self._last, rows.index.size)
        self._last = now
        return rows

    def _take(self, step: int) -> Any:
        self._let_go(step)
        if self._inline and self._claim_inline(step):
            return self._take_inline(step)
        ahead = 0 if self._inline else self.prefetch
        self._want(max(step + 1, step + ahead))
        job = self._wait(step)
        if job.error is not None:
            with self.crew.lock:
                if self._jobs.get(step) is job:  # it is read again by the next call
                    self._jobs[step] = again = Job(step)
                    self._rows[step] = again.rows = job.rows
            raise job.error
        self._inline = self.tuning.caller or self._reads_cheaply()
        if not self._inline:
            self._want(step + 1 + ahead)
        return job.rows

    def _let_go(self, step: int) -> None:
        """Drops the steps before this one, which have been taken."""
        if step < self._first or (self.total is not None and step >= self.total):
            raise CerealError(f"internal: step {step} is not among those to be taken")
        with self.crew.lock:
            _drop_before(step, self._jobs)
            self._first = step

    def _want(self, end: int) -> None:
        """Allows threads to read the steps before `end`. Computes their rows in this thread."""
        end = end if self.total is None else min(end, self.total)
        for step in range(max(self._wanted, self._begun), end):
            if step not in self._rows:
                rows = self.rows_of(step)
                if rows is None:
                    self.total = end = step
                    break
                self._rows[step] = rows
        with self.crew.lock:
            if self.closed:
                raise TrackClosedError
            more = end - self._wanted
            self._wanted = max(self._wanted, end)
            again = self._jobs.get(self._first)
            if again is not None and again.waits and again not in self._retry:
                self._retry.append(again)
                more = max(more, 1)
            if more > 0:
                self.crew.wake(more)

    def _wait(self, step: int) -> Job:
        began, said, relieved = time.monotonic(), False, False
        with self.crew.lock:
            while True:
                if self.closed:
                    raise TrackClosedError
                job = self._jobs.get(step)
                if job is not None and job.done:
                    return job
                now = time.monotonic()
                place, since = (None, now) if job is None else job.oldest()
                if job is not None and job.starting:
                    if self.timeout is not None:
                        job.unblock(self.timeout)
                    began = now
                if not said and now - began >= LATE:
                    said = True
                    log.warning("waiting for %s", _what(place, step, now - began))
                left = None
                if self.timeout is not None:
                    hung = now - (began if place is None else max(began, since))
                    left = self.timeout - hung
                    if left <= 0:
                        if job is not None and not job.waits:
                            self._give_up(job, place, hung)
                        elif not relieved:  # all threads are busy with steps of other tracks
                            self.crew.relieve()
                        else:
                            raise TimeoutError(
                                f"batch {step} was not begun in {hung:.1f} s (`timeout=`), since "
                                f"all threads read other batches; raise `timeout` or `workers`"
                            )
                        began, relieved = time.monotonic(), job is None or job.waits
                        continue
                patience = [] if said else [LATE - (now - began)]
                patience += [] if left is None else [left]
                self._finished.wait(max(0.001, min(patience)) if patience else None)

    def _give_up(self, job: Job, place: Failed | None, hung: float) -> None:
        """The step hangs: its threads are given up, and its element counts as failed."""
        error = TimeoutError(f"an element was not read in {hung:.1f} s (`timeout=`)")
        annotate(error, place)
        again = Job(job.step, job)
        job.thread = None
        for mine in list(job.contexts):
            mine.abort()
        self._jobs[job.step] = again
        if self.on_error is raise_it or place is None:
            again.done, again.error = True, error
        else:
            again.known_to_hang[place.stage, place.index, place.epoch] = error
            self._rows[job.step] = job.rows
            self._retry.append(again)
        self.crew.lose(job, {mine.thread for mine in list(job.contexts)})

    # Reading in the caller's thread, while that is cheaper

    def _claim_inline(self, step: int) -> bool:
        """Reserves the step for the caller's thread, if no thread has begun it."""
        with self.crew.lock:
            if self.closed:
                raise TrackClosedError
            if self._jobs or self._retry:
                return False
            self._begun = self._wanted = step + 1
            return True

    def _take_inline(self, step: int) -> Any:
        begin = time.perf_counter()
        if step not in self._rows:
            self._rows[step] = self.rows_of(step)
        mine = ReadContext(self.on_error, self.buffers, masked=self.masked)
        mine.remote = self.tuning.remote
        with use_read_context(mine), self.settings(executes=self.executes):
            fetched = self.fetch(self._rows[step])
        _drop_before(step, self._rows)
        self._times.append(time.perf_counter() - begin)
        self._inline = self.tuning.caller or self._reads_cheaply(4)
        return fetched

    def _reads_cheaply(self, slack: int = 1) -> bool:
        times = self._times
        if self.timeout is not None or not self.tuning.cheaply or len(times) < _WATCHED:
            return False
        return sorted(times)[_WATCHED // 2] < _CHEAP * slack

    # The end

    def abandon(self) -> None:
        """`close` for the garbage collector, which may run in a thread that holds the lock."""
        self.closed = True
        if self.crew.lock.acquire(blocking=False):
            self.crew.lock.release()
            self.close()

    def close(self) -> None:
        """Ends the track. Steps that are being read are finished, and then dropped."""
        with self.crew.lock:
            self.closed = True
            self._wanted = 0
            self._retry.clear()
            self._rows.clear()
            self._jobs.clear()
            self._finished.notify_all()
        self.crew.remove(self)

    # The crew's side

    def next_job(self) -> Callable[[], None] | None:
        """The next step to read, as a function, or None; called with the lock held."""
        if self.closed:
            return None
        if self._retry:
            job = self._retry.popleft()
        elif self._begun < self._wanted:
            job = Job(self._begun)
            self._jobs[self._begun] = job
            self._begun += 1
        else:
            return None
        job.thread = threading.current_thread()
        job.rows = self._rows.pop(job.step)
        return lambda: self._run(job)

    def _run(self, job: Job) -> None:
        begin, rows, error = time.perf_counter(), job.rows, None
        computed = time.thread_time()
        try:
            mine = WorkerReadContext(self, job)
            with use_read_context(mine), mine.settings():
                rows = self.fetch(rows)
        except BaseException as caught:
            error = caught
        took = time.perf_counter() - begin
        self.tuning.read(time.thread_time() - computed, took, job.rows)
        with self.crew.lock:
            if job.thread is None:  # it was given up
                return
            job.contexts.clear()
            job.error, job.done = error, True
            job.rows = rows
            self._times.append(took)
            self._finished.notify_all()


class InlineTrack:
    """A track without threads: it reads a step when it is taken.

        together=8    read 0 | 1 2 | 3 4 5 6 | 7 ... 14 | ...     what is not asked for is kept

    Small batches that one NumPy call reads are read `together`, many at once: then the call is most
    of the work, and not the Python around it. If it fails, the one step is read by itself.
    """

    def __init__(
        self, fetch: Callable[[Any], Any], rows_of: Any, context: ReadContext, together: int = 1
    ) -> None:
        self._fetch, self._rows_of, self._context = fetch, rows_of, context
        self._together, self._size = together, 1
        self._first, self._kept = 0, []  # a step, and what was read for it and those after it

    def take(self, step: int) -> Any:
        if not 0 <= step - self._first < len(self._kept):
            with use_read_context(self._context):
                if self._size == 1 or not self._take_many(step):
                    self._size = min(2 * self._size, self._together)
                    return self._fetch(self._rows_of(step))
        return self._kept[step - self._first]

    def _take_many(self, step: int) -> bool:
        """Reads several steps from this one on; False if that fails."""
        rows, n = self._rows_of.many(step, self._size)
        try:
            fetched = self._fetch(rows)
        except Exception:
            self._size = 1
            return False
        self._first, self._kept = step, fetched.steps(n)
        self._size = min(2 * self._size, self._together)
        return True

    def ready(self, step: int) -> bool:
        del step
        return False

    def start(self) -> None:
        pass

    close = abandon = start


def _drop_before(step: int, table: dict[int, Any]) -> None:
    for number in [number for number in table if number < step]:
        del table[number]


def _what(place: Failed | None, step: int, waited: float) -> str:
    if place is None:
        return f"batch {step} since {waited:.0f} s; no worker is free, or it is about to be read"
    return f"{place.stage}, element {place.index} of epoch {place.epoch}, since {waited:.0f} s"
