"""One step, or a part of it, read in a process: the messages, and what happens if it ends.

If an element ends two processes, or takes longer than `timeout=`, it counts as failed, and
`on_error` decides about it.
"""

from __future__ import annotations

import logging
import pickle
import time
from typing import Any

import jax
import numpy as np

from ...base.errors import CerealError, UsageError, in_one_line
from ...reading.program import Program
from ...reading.read_context import SKIPPED, Failed, annotate, raise_it, read_context
from ..inside.channel import ClosedError
from ..inside.errors_across import packed, unpacked
from ..inside.rows_across import packed_rows
from ..inside.serve import Job
from .payload import Payload
from .pool import PoolClosedError, ProcessPool
from .process import DiedError, WorkerProcess

log = logging.getLogger("cereal")
_ERRSTATE = dict(np.geterr())
_MOST_DEATHS = 8  # of processes that read no element yet


class _AgainError(Exception):
    """The process must be given the program again."""


class GivenUpError(CerealError, RuntimeError):
    """Nobody waits for this step any more: it was given up, and is read by another thread."""


class Conversation:
    """Reads rows in a process; if it is lost, in another one."""

    def __init__(self, pool: ProcessPool, payload: Payload, program: Program, rows: Any) -> None:
        self._pool, self._payload, self._program, self._rows = pool, payload, program, rows
        self._here = read_context()
        if self._here.decided is None:
            self._here.decided = {}  # the step may be read twice
        self._deaths: dict[Any, int] = {}
        known = self._here.known_to_hang
        self._hung = {at: packed(error) for at, error in known.items()}

    def read(self, begin: int, memory: Any, given: Any) -> np.ndarray | None:
        """Reads the rows into the memory; returns the mask (None: all real)."""
        end, here = begin + len(self._rows.index), self._here
        rooms = [room[begin:end] for room in memory.arrays]
        while True:
            here.starting = True  # until a process begins to read: others may be before us
            process = self._pool.borrow(self._payload)
            call = Call(self._program, process, self._rows)
            try:
                body = _pickled(("read", self._job(begin, memory, given)))
                here.queued, call.sent = call, True
                with process.turn(body) as call.turn:
                    here.call, here.queued, here.starting = call, None, False
                    keep = self._listen(call, rooms)
            except _AgainError:
                self._pool.give_back(process)
                continue
            except ClosedError:
                self._after_death(call)
                continue
            except BaseException:
                if call.midway:
                    self._pool.lost(process, kill=True)
                else:
                    self._pool.give_back(process)
                raise
            finally:
                here.call, here.queued, here.starting = None, None, False
            self._pool.give_back(process)
            return keep

    def _job(self, begin: int, memory: Any, given: Any) -> Job:
        here, config, errstate = self._here, jax.config, dict(np.geterr())
        return Job(
            program=self._payload.number,
            rows=packed_rows(self._rows),
            begin=begin,
            total=memory.count,
            memory=memory.part,
            masked=here.masked,
            asks=here.on_error is not raise_it,
            hung=self._hung,
            wide=bool(config.jax_enable_x64),  # type: ignore[attr-defined]
            errstate={} if errstate == _ERRSTATE else errstate,
            given=given,
        )

    def _listen(self, call: Call, rooms: list[np.ndarray]) -> Any:
        """Answers questions about errors, and waits for the end of the step."""
        channel = call.process.channel
        while True:
            kind, *answer = channel.receive()
            if kind == "failed":
                self._decide(call, *answer)
                continue
            if kind == "unknown":  # it has forgotten the program meanwhile
                call.turn.over = True
                call.process.forget_program(self._payload)
                raise _AgainError
            if kind == "raised":
                call.turn.over = True
                place, error = answer[0], unpacked(answer[1])
                annotate(error, place)
                raise error
            if answer[0].sent:
                for room in rooms:
                    channel.receive_array(room)
            call.turn.over = True
            return answer[0].keep

    def _decide(self, call: Call, step: int, lane: int, place: Any, sent: Any) -> None:
        """Answers a process that asks what to use instead of an element."""
        here, process = self._here, call.process
        rows = self._rows[step] if self._program.lanes else self._rows
        try:
            call.reported = place
            with here.step(rows):
                here.status[0] = lane
                found = here.failed(unpacked(sent))
            body = _pickled(("skip",) if found is SKIPPED else ("use", found))
        except BaseException:
            process.answer(_pickled(("raise",)))
            call.turn.over = True
            raise
        finally:
            call.reported = None
        process.answer(body)

    def _after_death(self, call: Call) -> None:
        """A process has ended while it read: the step is read again, by another one."""
        place = None if call.turn is None else call.place()
        how = self._pool.lost(call.process)
        if call.given_up:
            raise GivenUpError("its element took too long")
        if self._here.closed or self._pool.closed:
            raise PoolClosedError
        if call.turn is None:
            return
        at = place and (place.stage, place.index, place.epoch)
        if place is not None and call.process.hung:
            words = f"an element was not read in {call.process.hung:.1f} s (`timeout=`)"
            self._fail(place, TimeoutError(words))
            return
        deaths = self._deaths[at] = self._deaths.get(at, 0) + 1
        log.warning("a worker process ended %s%s", how, f", in {place}" if place else "")
        if place is None:
            if deaths >= _MOST_DEATHS:
                raise DiedError(f"worker processes end again and again, the last one {how}")
        elif deaths >= 2:
            words = f"reading an element has ended two worker processes, the last {how}"
            self._fail(place, DiedError(words))

    def _fail(self, place: Failed, error: Exception) -> None:
        """The element counts as failed: it is not tried again, or its error is raised."""
        annotate(error, place)
        if self._here.on_error is raise_it:
            raise error
        self._hung[place.stage, place.index, place.epoch] = packed(error)


class Call:
    """One step that a process reads now."""

    def __init__(self, program: Program, process: WorkerProcess, rows: Any) -> None:
        self._program, self.process, self._rows = program, process, rows
        self.reported: Failed | None = None  # where the process said that it failed
        self.given_up = False
        self.sent = False  # whether a message was sent, or a part of it
        self.turn: Any = None  # while it reads for us; None: it has not begun

    @property
    def midway(self) -> bool:
        """Whether the process has a message of ours whose answer was not heard to its end."""
        return self.sent and (self.turn is None or not self.turn.over)

    def place(self) -> Failed | None:
        """Which element the process reads."""
        if self.reported is not None:
            return self.reported
        lane, _, stage, step = self.process.place
        if lane < 0:
            return None
        try:
            rows = self._rows[step] if self._program.lanes else self._rows
            return self._program.place(rows, lane, stage)
        except IndexError:
            return None

    @property
    def since(self) -> float:
        """When the process began the element."""
        return self.process.place[1]

    def unblock(self, timeout: float) -> None:
        """Ends the process if it hangs in the step of another thread, which is before us."""
        lane, since, *_ = self.process.place
        hung = time.monotonic() - since
        if lane >= 0 and hung > timeout:
            self.process.hung = hung
            self.process.kill()

    def abort(self) -> None:
        """Ends the process: its element hangs."""
        self.given_up = True
        self.process.kill()


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
