"""The worker processes of a loader: started when needed, lent to threads, ended with the loader.

A process is lent to two threads at once: while it reads for one, the job of the other waits in its
socket. So it never waits for a job.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref

from ...base.errors import CerealError
from ..inside.channel import ClosedError
from .payload import Payload, Payloads
from .process import WorkerProcess
from .slots import Slots

DEPTH = 2  # threads that a process serves
# How many processes may end before they are ready, one after another. If they are killed, that
# may have nothing to do with them.
_MOST_TRIES, _MOST_KILLED = 3, 24
_pools: weakref.WeakSet[ProcessPool] = weakref.WeakSet()


class PoolClosedError(CerealError, RuntimeError):
    """The loader was closed while a worker process read for it."""

    def __init__(self) -> None:
        super().__init__("the loader was closed while it read; make a new iterator.")


class ProcessPool:
    """Up to `size` processes."""

    def __init__(self, size: int, batches: int) -> None:
        self.size, self._batches = size, batches
        self.slots = Slots(batches)
        self.payloads = Payloads(self.slots)
        self._free = threading.Condition()
        self._users: dict[WorkerProcess, int] = {}  # threads that have each process
        self._begun: set[WorkerProcess] = set()  # started in the background, and not ready yet
        self._starting = 0
        self._failed = 0  # processes that ended before they were ready, since the last that was
        self._era = 0  # counts how often it was closed
        self._closed = False
        self._life: tuple[int, int] | None = None
        self.short = False  # whether there was no shared memory for a batch
        self._owner = os.getpid()
        _pools.add(self)

    def open(self) -> None:
        """A new iteration begins: after `close`, processes may be started again."""
        with self._free:
            self._closed = False
            if self.slots.ended:
                self.slots = Slots(self._batches)
                self.payloads = Payloads(self.slots)

    @property
    def closed(self) -> bool:
        return self._closed

    # Starting

    def start(self, payload: Payload | None, *, wait: bool = False) -> None:
        """Begins to start processes in the background, so that they are ready when needed.

        `wait`: until they are ready, or one of them has said why it will not be.
        """
        with self._free:
            missing = 0 if self._closed else self.size - len(self._users) - self._starting
            era = self._era
            self._starting += max(0, missing)
        found: list[Exception] = []
        args = (payload, era, found)
        threads = [
            threading.Thread(target=self._start, args=args, name="cereal-start", daemon=True)
            for _ in range(missing)
        ]
        for thread in threads:
            thread.start()
        for thread in threads if wait else ():
            thread.join()
        if wait and found:
            raise found[0]

    def _start(self, payload: Payload | None, era: int, found: list[Exception]) -> None:
        made = None
        try:
            made = self._new()
            with self._free:
                if era != self._era:
                    raise PoolClosedError
                self._begun.add(made)  # `close` ends it: to wait until it is ready may take long
            if payload is not None:
                made.give(payload)
            with self._free:
                if era == self._era:
                    self._begun.discard(made)
                    self._users[made] = 0
                    made, self._failed = None, 0
        except Exception as error:  # whoever needs a process tries again, and says what is wrong
            found.append(error)
        finally:
            if made is not None:
                made.end(kill=True)
            with self._free:
                self._begun -= {made}
                self._starting -= 1
                self._free.notify_all()

    def _new(self) -> WorkerProcess:
        with self._free:
            if self._life is None:
                self._life = os.pipe()
            read = self._life[0]
        return WorkerProcess(self.slots, read)

    # Lending

    def borrow(self, payload: Payload) -> WorkerProcess:
        """A process that has this program; the caller gives it back, or says that it is lost."""
        while True:
            if payload.slots is not self.slots:  # its arrays lie in memory that was closed
                raise PoolClosedError
            process = self._take()
            try:
                process.give(payload)
            except ClosedError:
                ready, how = process.ready, self.lost(process)
                with self._free:
                    self._failed += not ready
                    failed = self._failed
                if failed >= (_MOST_KILLED if how.startswith("by") else _MOST_TRIES):
                    self._failed = 0
                    raise CerealError(
                        f"worker processes end {how} as soon as they are started; what they print "
                        f'says why. Or let threads read: `DataLoader(..., worker_type="thread")`.'
                    ) from None
            except BaseException:
                self.give_back(process)
                raise
            else:
                self._failed = 0
                return process

    def _take(self) -> WorkerProcess:
        with self._free:
            era = self._era
            while True:
                if self._closed or era != self._era:
                    raise PoolClosedError
                self._drop_dead()
                process = min(self._users, key=self._users.__getitem__, default=None)
                may_start = len(self._users) + self._starting < self.size
                if may_start and (process is None or self._users[process] > 0):
                    self._starting += 1
                    break
                if process is not None and self._users[process] < DEPTH:
                    self._users[process] += 1
                    return process
                self._free.wait()
        return self._start_for_caller(era)

    def _drop_dead(self) -> None:
        for process in [p for p, users in self._users.items() if not users and not p.lives()]:
            del self._users[process]
            process.end(kill=True)

    def _start_for_caller(self, era: int) -> WorkerProcess:
        made: WorkerProcess | None = None
        try:
            made = self._new()
        finally:
            with self._free:
                self._starting -= 1
                if made is not None and era == self._era:
                    self._users[made] = 1
                self._free.notify_all()
        assert made is not None
        if era != self._era:
            made.end(kill=True)
            raise PoolClosedError
        return made

    def give_back(self, process: WorkerProcess) -> None:
        with self._free:
            if process in self._users:
                self._users[process] -= 1
                self._free.notify()
        self._trim()

    def resize(self, size: int) -> None:
        """From now on there are up to `size` processes; others end when they are idle."""
        with self._free:
            self.size = size
            self._free.notify_all()
        self._trim()

    def _trim(self) -> None:
        if len(self._users) <= self.size:
            return
        with self._free:
            idle = [process for process, users in self._users.items() if not users]
            surplus = idle[: max(0, len(self._users) - self.size)]
            for process in surplus:
                del self._users[process]
        for process in surplus:
            process.end()

    def lost(self, process: WorkerProcess, *, kill: bool = False) -> str:
        """A process has ended, or must end; says how."""
        with self._free:
            self._users.pop(process, None)
        how = process.end(kill=kill)
        with self._free:
            self._free.notify_all()
        return how

    # Ending

    def close(self) -> None:
        """Ends all processes; none is started until `open` is called."""
        if os.getpid() != self._owner:
            return
        with self._free:
            self._closed = True
            self._era += 1
            ended, self._users = self._users, {}
            ended |= dict.fromkeys(self._begun, 1)
            self._begun = set()
            life, self._life = self._life, None
            self._free.notify_all()
        self.payloads.forget()
        self.slots.end()
        for process, users in ended.items():
            process.kill() if users else process.channel.close()
        for process in ended:
            with contextlib.suppress(Exception):
                process.end()
        end = time.monotonic() + 1.0
        while self._starting and time.monotonic() < end:
            time.sleep(0.005)
        for descriptor in life or ():
            os.close(descriptor)

    def forget(self) -> None:
        """After a fork, in the child: the processes are the parent's."""
        self._free = threading.Condition()
        for process in (*self._users, *self._begun):
            process.forget()
        for descriptor in self._life or ():
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._users, self._begun, self._life = {}, set(), None
        self._starting, self._era, self._owner = 0, self._era + 1, os.getpid()
        self.slots = Slots(self._batches)  # the memory is the parent's, too
        self.payloads = Payloads(self.slots)


def _forget_all() -> None:
    for pool in list(_pools):
        pool.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


@atexit.register
def _close_all() -> None:
    for pool in list(_pools):
        pool.close()
