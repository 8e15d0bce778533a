"""Reads steps in worker processes: the contract `read(rows) -> (arrays, mask)` of all workers.

Any process may be asked for a step, and another one is asked if it is lost. If an element ends two
processes, or takes longer than `timeout=`, it counts as failed, and `on_error` decides about it.
"""

from __future__ import annotations

import logging
import pickle
import time
from typing import Any

import jax
import numpy as np

from ...base.errors import UsageError, in_one_line
from ...host.read_context import SKIPPED, Failed, annotate, raise_it, read_context
from ..inside.channel import ClosedError
from ..inside.errors_across import packed, unpacked
from ..inside.layout import size_of, views
from ..inside.serve import Job
from .pool import PoolClosedError, ProcessPool
from .process import DiedError, WorkerProcess
from .whole import WholeProgram

log = logging.getLogger("cereal")
_WORTH = 0.01  # seconds of reading that are worth a part of its own
_ERRSTATE = np.geterr()


class RemoteReader:
    """Reads the steps of one program in the processes of a pool."""

    def __init__(
        self, pool: ProcessPool, program: Any, local: Any = None, *, willingly: bool = False
    ) -> None:
        self._pool = pool
        pool.open()
        self.program = program
        self._payload = pool.payloads.payload_of(program, willingly=willingly)
        self._required = not willingly
        self._local = local  # reads the elements here, if only this process can
        self._pace = 0.0  # seconds of reading, for one of the first axis

    def start(self, *, wait: bool = False) -> None:
        """Begins to start the processes."""
        self._pool.start(self._payload, wait=wait)

    def fetch(self, rows: Any) -> Any:
        """The rows, with what was read for them; None if the processes were ended meanwhile."""
        try:
            leaves, keep = self.read(rows)
        except PoolClosedError:
            if self._required or read_context().closed:
                raise
            return None  # another setting was chosen
        return self.program.fetched(rows, leaves, keep, masked=read_context().masked)

    def read(self, rows: Any) -> tuple[list[np.ndarray], np.ndarray | None]:
        """The arrays of the rows, and their mask (None: all real)."""
        lanes, shape = self.program.lanes, rows.index.shape
        extra = shape[: len(shape) - len(lanes)]
        rows = rows.reshape(-1, *lanes) if extra else rows.map(lambda x: x[None])
        count = len(rows.index)
        memory, whole = self._memory(count)
        size = max(1, -(-count // self._parts(count)))
        parts = [range(k, min(k + size, count)) for k in range(0, count, size)]
        found = read_context().spread(
            parts, lambda part: self._part(rows[part.start : part.stop], part, count, memory, whole)
        )
        keep = _joined(found, parts, lanes)
        leaves = [room.reshape(*extra, *room.shape[1:]) for room in whole]
        return leaves, None if keep is None else keep.reshape(shape)

    def _memory(self, count: int) -> tuple[Any, list[np.ndarray]]:
        """Where the arrays will lie: the place in the shared file, and the arrays."""
        size = size_of(self.program.leaves, count)
        try:
            slot = self._pool.slots.take(size)
        except OSError as error:
            if not self._pool.short:
                self._pool.short = True
                log.warning(
                    "there is no shared memory for batches of %d bytes (%s); they are sent through "
                    "sockets instead, which is slower",
                    size,
                    error,
                )
            return None, views(np.empty(size, np.uint8), self.program.leaves, count)
        return slot.part, views(slot.memory, self.program.leaves, count)

    def _parts(self, count: int) -> int:
        """Into how many parts to cut the rows, so that idle processes help."""
        return max(1, min(read_context().helpers, count, int(count * self._pace / _WORTH)))

    def _part(
        self, rows: Any, part: range, count: int, memory: Any, whole: list[np.ndarray]
    ) -> np.ndarray | None:
        here, deaths, hung = read_context(), {}, _hung(read_context())
        given = None if self._local is None else self._local.read(rows)
        while True:
            process = self._borrow(here)
            call = Call(self, process, rows)
            here.call = call
            began = time.perf_counter()
            try:
                job = Job(
                    rows, part.start, count, memory, here.masked, here.on_error is not raise_it,
                    hung, bool(jax.config.jax_enable_x64), _errstate(), given,
                )  # fmt: skip
                keep = self._converse(process, job, here, [x[part.start : part.stop] for x in whole])
            except ClosedError:
                self._after_death(process, call, here, deaths, hung)
                continue
            except BaseException:
                self._pool.lost(process, kill=True) if call.broken else self._pool.give_back(process)
                raise
            finally:
                here.call = None
            self._pool.give_back(process)
            self._pace = (time.perf_counter() - began) / max(1, len(part))
            return keep

    def _borrow(self, here: Any) -> WorkerProcess:
        here.starting = True
        try:
            return self._pool.borrow(self._payload)
        finally:
            here.starting = False

    def _converse(self, process: Any, job: Job, here: Any, rooms: list[np.ndarray]) -> Any:
        """Sends a job, answers questions about errors, and waits for the end of it."""
        channel, call = process.channel, here.call
        call.broken = True  # in the midst of a message, until the process is idle again
        channel.send_pickled(_pickled(("read", job)))
        while True:
            kind, *answer = channel.receive()
            if kind == "failed":
                self._decide(channel, here, *answer)
                continue
            if kind == "raised":
                call.broken = False
                place, error = answer[0], unpacked(answer[1])
                call.reported = place
                annotate(error, place)
                raise error
            done = answer[0]
            if done.sent:
                for room in rooms:
                    channel.receive_array(room)
            call.broken = False
            return done.keep

    def _decide(self, channel: Any, here: Any, at: int, lane: int, place: Any, sent: Any) -> None:
        """Answers a process that asks what to use instead of an element."""
        call = here.call
        call.reported = place
        error = unpacked(sent)
        call.place_in(here, at, lane)
        try:
            found = here.failed(error)
            answer = ("skip",) if found is SKIPPED else ("use", found)
            body = _pickled(answer)
        except BaseException:
            channel.send(("raise",))
            call.broken = False
            raise
        finally:
            call.reported = here.top = None
        channel.send_pickled(body)

    def _after_death(self, process: Any, call: Any, here: Any, deaths: Any, hung: Any) -> None:
        """A process has ended while it read: the step is read again, by another one."""
        place = call.place()
        how = self._pool.lost(process)
        if call.given_up or here.closed or self._pool.closed:
            raise PoolClosedError
        if place is None:
            deaths[None] = deaths.get(None, 0) + 1
            if deaths[None] > 3:
                raise DiedError(f"worker processes ended again and again, the last {how}")
            log.warning("a worker process ended %s; its step is read again by another", how)
            return
        at = place.index, place.epoch
        deaths[at] = deaths.get(at, 0) + 1
        log.warning("a worker process ended %s, in %s; its step is read again", how, place)
        if deaths[at] < 2:
            return
        error = DiedError(f"reading an element has ended two worker processes, the last {how}")
        annotate(error, place)
        if here.on_error is raise_it:
            raise error
        hung[at] = packed(error)


def program_of(source: Any) -> Any:
    """The host part of a pipeline, as processes run it."""
    return WholeProgram(source)


class Call:
    """One step that is read in a process now."""

    def __init__(self, reader: RemoteReader, process: WorkerProcess, rows: Any) -> None:
        self._labels, self.process, self._rows = reader.program.labels, process, rows
        self.reported: Failed | None = None  # where the process said that it failed
        self.given_up = False
        self.broken = False  # whether the process is in the midst of something

    def place(self) -> Failed | None:
        """Which element the process reads."""
        if self.reported is not None:
            return self.reported
        lane, _, stage = self.process.place
        if lane < 0:
            return None
        rows = self._rows
        try:
            index = int(rows.index.reshape(-1)[lane])
            epoch = int(rows.epoch.reshape(-1)[lane])
        except IndexError:
            return None
        key = np.asarray(rows.key).reshape(-1)[:2].tolist()
        label = self._labels[stage] if 0 <= stage < len(self._labels) else self._labels[0]
        return Failed(label, index, epoch, (key[0], key[1]), index, epoch)

    def place_in(self, here: Any, at: int, lane: int) -> None:
        """Lets the context know which rows the process talks about."""
        here.top = self._rows if self._rows.index.ndim == 1 else self._rows[at]
        here.top_lane = lane

    @property
    def since(self) -> float:
        """When the process began the element."""
        return self.process.place[1]

    def abort(self) -> None:
        """Ends the process: its element hangs."""
        self.given_up = True
        self.process.kill()


def _hung(here: Any) -> dict[tuple[int, int], Any]:
    """The elements that hung before, as a process is told them."""
    return {(key[1], key[2]): packed(error) for key, error in here.known_to_hang.items()}


def _errstate() -> dict[str, Any]:
    now = np.geterr()
    return {} if now == _ERRSTATE else now


def _pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value, 5)
    except Exception:
        import cloudpickle

        try:
            return cloudpickle.dumps(value)
        except Exception as error:
            raise UsageError(
                f"an element cannot be sent to a worker process, because it does not pickle: "
                f"{in_one_line(error)}; let threads read: `DataLoader(..., "
                f'worker_type="thread")`.'
            ) from error


def _joined(found: list[Any], parts: list[range], lanes: tuple[int, ...]) -> np.ndarray | None:
    if all(keep is None for keep in found):
        return None
    pairs = zip(found, parts, strict=True)
    full = [np.ones((len(p), *lanes), np.bool_) if k is None else k for k, p in pairs]
    return np.concatenate([keep.reshape(len(p), *lanes) for keep, p in zip(full, parts, strict=True)])
