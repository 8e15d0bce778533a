"""The loop of a worker process: it waits for a step, reads it into shared memory, and says so.

    loader                              worker
    ("program", pickled, arrays)   ->                 the host part of the pipeline
                                   <-  ("ready",)
    ("read", Job)                  ->                 reads, and writes into the memory of the batch
                                   <-  ("failed", lane, place, error)    only if `on_error` may skip
    ("use", value) or ("skip",)    ->
                                   <-  ("done", keep, how)   or   ("raised", place, error)

The process ends when its loader does: the loader holds the other end of the pipe `life`, and the
kernel sends SIGKILL when that end is closed, whatever the process is doing.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
import threading
from typing import Any, NamedTuple

import numpy as np

from ...base.fitting import set_wide_types
from .c_library import keep_memory
from .channel import Channel, ClosedError
from .errors_across import packed, unpacked
from .layout import Leaf, size_of, views
from .process_context import ProcessContext, Unwind
from .rows_across import unpacked_rows
from .shared_memory import as_bytes, map_part

MOST_PROGRAMS = 32
STATUS = 64  # bytes: which lane is being read, since when, in which stage, of which step
IDLE = -1.0


class Job(NamedTuple):
    """What to read: some of the `total` steps, or elements, of a batch."""

    program: int
    rows: Any  # packed, with one axis before those of a step
    begin: int  # the first of them
    total: int  # how many the whole batch has
    memory: tuple[int, int] | None  # a part of the shared file; None: the answer is sent back
    masked: bool
    asks: bool  # whether `on_error` decides about errors
    hung: dict[Any, Any]  # elements that must not be tried again: their errors
    wide: bool  # whether JAX has 64-bit types
    errstate: dict[str, Any]
    given: Any  # the elements, if the loader has read them already


class Done(NamedTuple):
    """How a step was read."""

    keep: np.ndarray | None
    sent: bool  # the arrays follow; otherwise they are in the memory


def serve(end: int, life: int, memory: int) -> None:
    """Serves a loader until it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the loader
    keep_memory()
    _end_with(life)
    channel = Channel(socket.socket(fileno=end))
    worker = _Worker(channel, memory)
    with contextlib.suppress(ClosedError):
        while True:
            kind, *message = channel.receive()
            getattr(worker, kind)(*message)


def _end_with(life: int) -> None:
    """This process ends when nobody holds the other end of this pipe."""
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import fcntl

        # Opened anew: the owner of a signal belongs to what was opened, which all workers share.
        own = os.open(f"/proc/self/fd/{life}", os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)  # type: ignore[attr-defined]
        flags = fcntl.fcntl(own, fcntl.F_GETFL)
        fcntl.fcntl(own, fcntl.F_SETFL, flags | os.O_ASYNC)

    def wait() -> None:  # where the kernel sends no such signal, or the pipe was closed before
        with contextlib.suppress(OSError):
            os.read(life, 1)
        os._exit(0)

    threading.Thread(target=wait, name="cereal-life", daemon=True).start()


class _Worker:
    """Answers messages; a method for each kind."""

    def __init__(self, channel: Channel, memory: int) -> None:
        self._channel, self._file = channel, memory
        self._programs: dict[int, Any] = {}
        self._status: Any = None
        self._mapped: dict[tuple[int, int], np.ndarray] = {}

    def hello(self, path: list[str], status: int) -> None:
        sys.path[:] = path
        self._status = as_bytes(map_part(self._file, status, STATUS)).cast("d")

    def program(self, number: int, body: bytes, parts: list[tuple[int, int]]) -> None:
        while len(self._programs) >= MOST_PROGRAMS:
            del self._programs[min(self._programs)]
        try:
            arrays = [as_bytes(map_part(self._file, *part, private=True)) for part in parts]
            self._programs[number] = pickle.loads(body, buffers=arrays)
        except BaseException as error:
            self._channel.send(("broken", packed(error)))
        else:
            self._channel.send(("ready",))

    def read(self, job: Job) -> None:
        rows = unpacked_rows(job.rows)
        hung = {at: unpacked(error) for at, error in job.hung.items()}
        context = ProcessContext(self._channel, self._status, job, hung)
        program = self._programs.get(job.program)
        if program is None:
            self._channel.send(("unknown",))
            return
        set_wide_types(lambda: job.wide)
        try:
            rooms, mapped = self._rooms(job, len(rows.index), leaves_of(program))
            with np.errstate(**job.errstate):
                keep = context.run(program, rows, rooms)
        except Unwind:
            return
        except ClosedError:
            raise
        except BaseException as error:
            self._channel.send(("raised", getattr(error, "element", None), packed(error)))
            return
        finally:
            self._status[0] = IDLE
        self._channel.send(("done", Done(keep, not mapped)))
        if not mapped:
            for room in rooms:
                self._channel.send_array(room)

    def _rooms(self, job: Job, n: int, leaves: list[Leaf]) -> tuple[list[np.ndarray], bool]:
        """Where to write each array, and whether the loader sees it there."""
        if job.memory is not None:
            with contextlib.suppress(OSError):  # no memory, or no right to map more
                found = self._mapped.get(job.memory)
                if found is None:
                    found = self._mapped[job.memory] = map_part(self._file, *job.memory)
                whole = views(found, leaves, job.total)
                return [room[job.begin : job.begin + n] for room in whole], True
        own = np.empty(size_of(leaves, n), np.uint8)
        return views(own, leaves, n), False


def leaves_of(program: Any) -> list[Leaf]:
    """The shapes and dtypes of one step of a program."""
    return [(leaf.shape, np.dtype(leaf.dtype)) for leaf in program.form.leaves]
