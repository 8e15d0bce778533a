"""Chooses who reads: the caller, threads or processes, and how many; by trying them.

    batches taken    ......|============|......|============|......|=====
    setting          1 thread           2 threads           2 processes ...
                     skip: they were    measure: elements a second
                     read before

The search begins when reading matters: when the loop waits for batches, or a thread reads for half
of the time. Otherwise nothing changes. The batches of a few seconds are enough to settle. No choice
changes a batch.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Generator
from typing import Literal, NamedTuple

Kind = Literal["caller", "thread", "process"]

# A measurement has parts; each of them has at least so many seconds and batches.
_LEAST_SECONDS, _LEAST_TAKEN = 0.075, 4
_MOST_PARTS = 8
_WARMING_UP = 1.1  # if a part is so much faster than the one before, there is one more
_FIRST_SKIPPED = 16  # batches: programs are compiled, and files are read for the first time
_STARVED = 0.1  # the part of the time that a loop must wait for batches, to be measured
_BUSY = 0.5  # or the part of the time for which a thread must read
_BETTER = 1.1  # how much faster processes must be than threads
_AS_GOOD = 0.96  # of two settings that differ by less, the one with fewer threads or processes
_WORSE = 0.93  # a setting that is slower than this ends the search in its direction
_WORTH_A_PROCESS = 2e-4  # seconds of reading a step; sending it to a process costs half of it
_COMPUTES = 0.5  # the part of its time for which a thread must compute, for the caller to be tried


@dataclasses.dataclass(frozen=True)
class Setting:
    """Who reads."""

    kind: Kind
    count: int

    def __str__(self) -> str:
        if self.kind == "caller":
            return "the caller"
        word = "thread" if self.kind == "thread" else "process"
        plural = "" if self.count == 1 else "s" if self.kind == "thread" else "es"
        return f"{self.count} {word}{plural}"


CALLER = Setting("caller", 0)


class Limits(NamedTuple):
    """What may be chosen."""

    most: int  # threads or processes
    first: int  # threads to begin with
    cpus: int
    thread: bool = True
    process: bool = True
    caller: bool = True


class Chooser:
    """Measures settings one after another, and settles on the best."""

    def __init__(self, limits: Limits, ahead: Callable[[int], int] = lambda count: 2) -> None:
        self.limits, self._ahead = limits, ahead
        self.settled = False
        self.rates: dict[Setting, float] = {}
        self._lock = threading.Lock()
        self._computed = self._read = 0.0  # seconds of CPU, and of wall time, of steps read so far
        self._steps = 0
        self._search = self._settings()
        self.now: Setting = next(self._search)
        self.pending: Setting | None = None  # a setting whose processes are being started
        self._restart()
        self._skip += _FIRST_SKIPPED

    # What others tell

    def read(self, computed: float, wall: float) -> None:
        """A thread has read a step: its seconds of CPU and of wall time."""
        if self.settled or self.now.kind == "process":
            return
        with self._lock:
            self._computed += computed
            self._read += wall
            self._steps += 1

    def taken(self, waited: float, since_last: float, elements: int) -> bool:
        """The loop has taken a step, and waited for it; whether the setting has changed now."""
        if self.settled or self.pending is not None:
            return False
        with self._lock:
            if self._skip > 0:
                self._skip -= 1
                return False
            self._waited += waited
            rate = self._window.taken(since_last, elements)
            if rate is None:
                return False
            if not self.rates and not self._matters():
                self._restart()
                return False
            return self._advance(rate)

    def started(self) -> None:
        """The processes of the pending setting are ready."""
        with self._lock:
            if self.pending is None:
                return
            before, self.now, self.pending = self.now, self.pending, None
            self._restart(before)

    def refused(self) -> None:
        """The pending setting cannot be: the pipeline does not go into processes."""
        with self._lock:
            if self.pending is not None:
                self.pending = None
                self._go(0.0)

    def drop_processes(self) -> None:
        """Processes were chosen, or measured, and cannot read: the best of the others it is."""
        with self._lock:
            others = {each: self.rates[each] for each in self.rates if each.kind != "process"}
            first = Setting("thread", self.limits.first)
            self.now = max(others, key=others.__getitem__, default=first)
            self.pending, self.settled = None, True

    # Measuring

    def _matters(self) -> bool:
        """Whether another setting could be faster: the loop waits for batches; or reading takes
        much of the time, for which it may keep the loop from running (it has Python's lock)."""
        reading = self._read - self._read_before
        seconds = self._window.seconds
        return self._waited > _STARVED * seconds or reading > _BUSY * seconds

    def _restart(self, before: Setting = CALLER) -> None:
        # The first steps were read under the setting before; the next need fresh memory.
        count = self.now.count
        self._skip = self._ahead(before.count) + self._ahead(count) + count + 1
        self._window = _Window(max(_LEAST_TAKEN, count))
        self._read_before, self._waited = self._read, 0.0

    def _advance(self, rate: float) -> bool:
        before = self.now
        self.rates[before] = rate
        self._go(rate)
        return self.now != before or self.pending is not None

    def _go(self, rate: float) -> None:
        try:
            setting = self._search.send(rate)
        except StopIteration as end:
            self.now, self.settled = end.value, True
            return
        if setting.kind == "process" and self.now.kind != "process":
            self.pending = setting
        else:
            before, self.now = self.now, setting
            self._restart(before)

    # The search: it yields a setting to measure, and is sent its rate

    def _settings(self) -> Generator[Setting, float, Setting]:
        limits = self.limits
        best: Setting = CALLER
        rate = 0.0
        if limits.thread:
            best, rate = yield from self._threads()
        if limits.process and (not limits.thread or self._worth_processes(rate)):
            best, rate = yield from self._processes(best, rate)
        return best

    def _threads(self) -> Generator[Setting, float, tuple[Setting, float]]:
        limits, first = self.limits, Setting("thread", self.limits.first)
        tried = {first: (yield first)}
        if first.count > 1:  # the user named a number: is one thread as good?
            one = Setting("thread", 1)
            tried[one] = yield one
        else:
            count = 1
            while count < limits.most:
                count = min(2 * count, limits.most)
                more = Setting("thread", count)
                tried[more] = yield more
                if tried[more] < _WORSE * max(tried.values()):
                    break
        best, rate = _fewest(tried)
        if limits.caller and self._computing > _COMPUTES:
            here = yield CALLER
            if here > rate:
                best, rate = CALLER, here
        return best, rate

    def _processes(
        self, best: Setting, rate: float
    ) -> Generator[Setting, float, tuple[Setting, float]]:
        count = max(1, min(self.limits.most, self.limits.cpus))
        all_of_them = yield Setting("process", count)
        if all_of_them < _BETTER * rate:
            return best, rate
        tried = {Setting("process", count): all_of_them}
        while count > 2:
            count = -(-count // 2)
            fewer = Setting("process", count)
            tried[fewer] = yield fewer
            if tried[fewer] < _WORSE * max(tried.values()):
                break
        least = _WORSE * max(tried.values())
        best = max((each for each in tried if tried[each] >= least), key=lambda each: each.count)
        return best, tried[best]

    @property
    def _computing(self) -> float:
        """The part of their time for which threads compute; the rest they wait."""
        return self._computed / self._read if self._read else 1.0

    def _worth_processes(self, rate: float) -> bool:
        """Whether processes could be faster than the best setting of threads."""
        count = min(self.limits.most, self.limits.cpus)
        if count < 2 or not self._steps or self._computed / self._steps < _WORTH_A_PROCESS:
            return False
        one = self.rates.get(Setting("thread", 1), 0.0)
        return count * one > _BETTER * rate


class _Window:
    """A measurement: goes on until the rate has stopped rising, since the first batches of a
    setting need fresh memory, and files that are not in memory yet."""

    def __init__(self, least: int) -> None:
        self._least, self.seconds = least, 0.0
        self._parts: list[float] = []
        self._begin()

    def _begin(self) -> None:
        self._taken, self._elements, self._part = 0, 0, 0.0

    def taken(self, seconds: float, elements: int) -> float | None:
        """A batch was taken; elements a second, if that is known now."""
        self.seconds += seconds
        self._taken += 1
        self._part += seconds
        self._elements += elements
        if self._taken < self._least or self._part < _LEAST_SECONDS:
            return None
        self._parts.append(self._elements / self._part)
        self._begin()
        rising = len(self._parts) < 2 or self._parts[-1] > _WARMING_UP * self._parts[-2]
        if rising and len(self._parts) < _MOST_PARTS:
            return None
        return sum(self._parts[-2:]) / 2


def _fewest(tried: dict[Setting, float]) -> tuple[Setting, float]:
    """The setting with the fewest threads or processes of those that are about as fast as any."""
    least = _AS_GOOD * max(tried.values())
    best = min((each for each in tried if tried[each] >= least), key=lambda each: each.count)
    return best, tried[best]
