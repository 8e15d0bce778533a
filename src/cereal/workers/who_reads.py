"""Applies what was chosen to the threads and processes of a loader.

Chooser      decides, from what is measured
WhoReads     changes the crew and the pool of the loader accordingly
TrackTuning  is what one track asks: who reads its steps, and how many ahead
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.errors import PipelineError
from ..host.crew import Crew
from ..host.tuning import Tuning
from ..reading.read_context import ReadContext, use_read_context
from .choosing import CALLER, Chooser, Limits, Setting
from .processes.pool import DEPTH, ProcessPool
from .processes.remote import RemoteReader

log = logging.getLogger("cereal")


class WhoReads:
    """Who reads for a loader. (Threads hold it, so it must not hold the loader.)"""

    def __init__(
        self, plan: Setting | Limits, ahead: Callable[[int], int], batches: Callable[[int], int]
    ) -> None:
        self.chooser = Chooser(plan, ahead) if isinstance(plan, Limits) else None
        self._fixed = plan if isinstance(plan, Setting) else CALLER
        # Whether the user asked for processes: then nothing is read in this one.
        self.isolated = plan.kind == "process" if isinstance(plan, Setting) else not plan.thread
        # The most threads or processes that may read; 0: always the caller.
        self.most = plan.count if isinstance(plan, Setting) else plan.most
        self._ahead, self._batches = ahead, batches
        self.crew = Crew(self._threads())
        self._pool: ProcessPool | None = None
        self._lock = threading.Lock()

    @property
    def setting(self) -> Setting:
        """Who reads now."""
        return self._fixed if self.chooser is None else self.chooser.now

    @property
    def prefetch(self) -> int:
        """How many steps are read ahead."""
        return self._ahead(self.setting.count)

    def _threads(self) -> int:
        """The threads of the crew: a process serves several."""
        count = max(1, self.setting.count)
        return count * DEPTH if self.setting.kind == "process" else count

    def in_words(self) -> str:
        """The words in the drawing of a loader."""
        setting, chooser = self.setting, self.chooser
        if setting.kind == "caller" and (chooser is None or chooser.settled):
            return "read by the caller" + (", as measured" if chooser else "")
        ahead = f"{self.prefetch} batch{'' if self.prefetch == 1 else 'es'} ahead"
        if chooser is None:
            return f"read by {setting}, {ahead}"
        if chooser.settled:
            return f"read by {setting}, as measured, {ahead}"
        return f"read by {setting}, {ahead}, until others are measured"

    # Processes

    @property
    def pool(self) -> ProcessPool:
        with self._lock:
            if self._pool is None:
                self._pool = ProcessPool(self.most, self._batches(self.most))
            return self._pool

    def reader(self) -> RemoteReader:
        """What reads the steps of one iteration in processes."""
        return RemoteReader(self.pool, None if self.isolated else self.drop_processes)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()  # first, so that no thread waits for a process that hangs
        self.crew.close()

    def abandon(self) -> None:
        """`close` for the garbage collector, which may run in a thread that holds a lock."""
        self.crew.abandon()
        pool = self._pool
        if pool is not None:
            with contextlib.suppress(RuntimeError):  # the interpreter ends; `atexit` closes it
                threading.Thread(target=pool.close, name="cereal-close", daemon=True).start()

    # Measuring

    def taken(self, tuning: TrackTuning, waited: float, since: float, elements: int) -> None:
        chooser = self.chooser
        if chooser is None or chooser.settled:
            return
        if chooser.taken(waited, since, elements):
            self._apply(tuning)

    def _apply(self, tuning: TrackTuning) -> None:
        chooser = self.chooser
        assert chooser is not None
        if chooser.pending is not None:
            tuning.prepare()  # here, where the loader lives: a thread could open what was closed
            name = "cereal-processes"
            start = threading.Thread(target=self._start, args=(tuning,), name=name, daemon=True)
            start.start()
            return
        self._resize()
        if chooser.settled:
            log.info("settled: %s", self.in_words())
            if chooser.now.kind != "process" and self._pool is not None:
                self._pool.close()

    def _resize(self) -> None:
        with self.crew.lock:
            self.crew.resize(self._threads())
        if self._pool is not None:
            self._pool.resize(max(1, self.setting.count))

    def _start(self, tuning: TrackTuning) -> None:
        """Starts the processes of the pending setting, in a thread of its own."""
        chooser = self.chooser
        assert chooser is not None
        assert chooser.pending is not None
        try:
            self.pool.resize(chooser.pending.count)
            tuning.start(wait=True)
            tuning.compare()
        except Exception as error:
            log.info("processes are not tried: %s", str(error))
            chooser.refused()
            self._resize()
            self.pool.close()
        else:
            chooser.started()
            self._resize()

    def drop_processes(self, error: Exception) -> None:
        """Processes were chosen, and cannot read this pipeline: threads go on."""
        log.info("threads read, since processes cannot: %s", str(error))
        if self.chooser is not None:
            self.chooser.drop_processes()
        self._resize()


class TrackTuning(Tuning):
    """Who reads the steps of one track."""

    def __init__(self, who: WhoReads, program: Any) -> None:
        self._who, self._program = who, program
        self._reader: RemoteReader | None = None
        self._rows: Any = None  # of a step that a thread has read
        self._lock = threading.Lock()
        self.cheaply = not who.isolated
        if who.setting.kind == "process":
            self.start()

    def compare(self) -> None:
        """Reads a step in a process that a thread has read, too; raises an error if they differ.

        A function may depend on what a process does not see: what was set in a module at run time,
        or context variables.
        """
        rows = self._rows
        if rows is None or self._program is None:
            raise PipelineError("no step is known to compare them")
        with use_read_context(ReadContext()):
            ours, keep = self._program.read(rows)
            theirs, their_keep = RemoteReader(self._who.pool, None).read(self._program, rows)
        same = [a.tobytes() == b.tobytes() for a, b in zip(ours, theirs, strict=True)]
        if not all(same) or not np.array_equal(_full(keep, rows), _full(their_keep, rows)):
            raise PipelineError("a process reads other values than a thread")

    def prepare(self) -> None:
        """Opens the pool of processes."""
        self._remote()

    def start(self, *, wait: bool = False) -> None:
        """Starts the processes, and sends them the program."""
        self._remote().start(self._program, wait=wait)

    def _remote(self) -> RemoteReader:
        with self._lock:
            if self._reader is None:
                self._reader = self._who.reader()
            return self._reader

    @property
    def remote(self) -> Any:  # type: ignore[override]
        return self._remote() if self._who.setting.kind == "process" else None

    @property
    def caller(self) -> bool:  # type: ignore[override]
        return self._who.setting.kind == "caller"

    @property
    def prefetch(self) -> int:  # type: ignore[override]
        return self._who.prefetch

    def read(self, computed: float, wall: float, rows: Any) -> None:
        chooser = self._who.chooser
        if chooser is not None and not chooser.settled:
            self._rows = rows
            chooser.read(computed, wall)

    def taken(self, waited: float, since_last: float, elements: int) -> None:
        self._who.taken(self, waited, since_last, elements)


def _full(keep: Any, rows: Any) -> Any:
    return np.ones(rows.index.size, np.bool_) if keep is None else keep.reshape(-1)
