"""Reads steps in worker processes: the contract `read(program, rows) -> (arrays, mask)`.

Any process may be asked for a step, and another one is asked if it is lost. So readers on other
machines could be asked in the same way.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ...base.errors import CerealError
from ...reading.element_batch import ElementBatch
from ...reading.program import Program
from ...reading.read_context import SKIPPED, read_context
from ...reading.readers.reader import ChainReader, Reader
from ..inside.channel import ClosedError
from ..inside.given import Given, GivenReader
from ..inside.layout import size_of, views
from ..inside.process_context import RanJaxError
from ..inside.serve import leaves_of
from .conversation import Conversation, GivenUpError
from .payload import Payload, TooLargeError
from .pool import PoolClosedError, ProcessPool
from .process import DiedError

log = logging.getLogger("cereal")
_WORTH = 0.01  # seconds of reading that are worth a part of their own


@dataclasses.dataclass
class Memory:
    """Where the arrays of a step will lie."""

    part: tuple[int, int] | None  # of the shared file; None: they are sent through the socket
    count: int
    arrays: list[np.ndarray]


class RemoteReader:
    """Reads the steps of one iteration in the processes of a pool.

    `refuse`: it was not the user who asked for processes; so if they cannot read, threads do, and
    this is called.
    """

    def __init__(self, pool: ProcessPool, refuse: Callable[[Exception], None] | None) -> None:
        pool.open()
        self._pool, self._refuse = pool, refuse
        self._lock = threading.Lock()
        self._sent: dict[int, _Sent] = {}

    def prepare(self, program: Program) -> None:
        """Pickles the program, or raises an error that says why it cannot be sent."""
        self._sent_form(program)

    def start(self, program: Program | None, *, wait: bool = False) -> None:
        """Begins to start the processes."""
        payload = None if program is None else self._sent_form(program).payload
        self._pool.start(payload, wait=wait)

    def _sent_form(self, program: Program) -> _Sent:
        with self._lock:
            if id(program) not in self._sent:
                willingly = self._refuse is not None
                self._sent[id(program)] = _Sent(program, self._pool, willingly)
            return self._sent[id(program)]

    def read(self, program: Program, rows: Any) -> tuple[list[np.ndarray], np.ndarray | None]:
        """The arrays of the rows, and their mask (None: all real)."""
        try:
            return self._read(self._sent_form(program), rows)
        except (DiedError, GivenUpError):
            raise  # it would harm this process, too
        except PoolClosedError:  # another setting was chosen
            if self._refuse is None or read_context().closed:
                raise
        except (CerealError, TooLargeError, ClosedError, OSError) as error:
            if self._refuse is None:
                raise
            # An error of the user's function has its element, and comes again below.
            if isinstance(error, RanJaxError) or not hasattr(error, "element"):
                self._refuse(error)
        return program.read(rows)

    def _read(self, sent: _Sent, rows: Any) -> tuple[list[np.ndarray], np.ndarray | None]:
        lanes, shape = sent.program.lanes, rows.index.shape
        extra = shape[: len(shape) - len(lanes)]
        rows = rows.reshape(-1, *lanes) if extra else rows.map(lambda x: x[None])
        count = len(rows.index)
        memory = self._memory(sent, count)
        size = max(1, -(-count // sent.parts(count)))
        parts = [range(k, min(k + size, count)) for k in range(0, count, size)]
        found = read_context().spread(parts, lambda part: self._part(sent, rows, part, memory))
        keep = _joined(found, parts, lanes)
        leaves = [room.reshape(*extra, *room.shape[1:]) for room in memory.arrays]
        return leaves, None if keep is None else keep.reshape(shape)

    def _memory(self, sent: _Sent, count: int) -> Memory:
        leaves, size = sent.leaves, size_of(sent.leaves, count)
        try:
            slot = self._pool.slots.take(size)
        except OSError as error:
            if self._pool.closed:
                raise PoolClosedError from None
            if not self._pool.short:
                self._pool.short = True
                log.warning(
                    "there is no shared memory for batches of %d bytes (%s); they are sent through "
                    "sockets instead, which is slower",
                    size,
                    str(error),
                )
            return Memory(None, count, views(np.empty(size, np.uint8), leaves, count))
        return Memory(slot.part, count, views(slot.memory, leaves, count))

    def _part(self, sent: _Sent, rows: Any, part: range, memory: Memory) -> np.ndarray | None:
        mine = rows[part.start : part.stop]
        given = None if sent.local is None else _read_here(sent, mine)
        began = time.perf_counter()
        talk = Conversation(self._pool, sent.payload, sent.program, mine)
        keep = talk.read(part.start, memory, given)
        sent.pace = (time.perf_counter() - began) / max(1, len(part))
        return keep


class _Sent:
    """A program as processes get it."""

    def __init__(self, program: Program, pool: ProcessPool, willingly: bool) -> None:
        self.original = program  # its `id` stays its own
        self.program, self.local = _without_local(program)
        self.payload: Payload = pool.payloads.payload_of(self.program, willingly=willingly)
        self.leaves = leaves_of(self.program)
        self.pace = 0.0  # seconds of reading one step, or one element

    def parts(self, count: int) -> int:
        """Into how many parts to cut the rows, so that idle processes help."""
        return max(1, min(read_context().helpers, count, int(count * self.pace / _WORTH)))


def _without_local(program: Program) -> tuple[Program, Reader | None]:
    """The program for processes, and what must be read in this one: iterators, say."""
    if program.can_move:
        return program, None
    reader, stages = program.reader, ()
    if isinstance(reader, ChainReader):
        reader, stages = reader.reader, reader.stages
    given: Reader = GivenReader(reader.label)
    moved = ChainReader(given, stages) if stages else given
    return Program(moved, program.stacked, program.levels, program.form), reader


def _read_here(sent: _Sent, rows: Any) -> Given:
    """The elements of the rows, read in this process, for another one."""
    flat = rows.reshape(-1)
    with read_context().step(flat):
        assert sent.local is not None
        taken: ElementBatch = sent.local.read(flat)
        values = [_begun(taken, lane) for lane in range(taken.n)]
    keep = np.array([value is not SKIPPED for value in values])
    return Given([None if v is SKIPPED else v for v in values], None if keep.all() else keep)


def _begun(taken: ElementBatch, lane: int) -> Any:
    read_context().begin(lane)
    return taken.element(lane)


def _joined(found: list[Any], parts: list[range], lanes: tuple[int, ...]) -> np.ndarray | None:
    if all(keep is None for keep in found):
        return None
    pairs = [(keep, (len(part), *lanes)) for keep, part in zip(found, parts, strict=True)]
    return np.concatenate([np.ones(s, np.bool_) if k is None else k.reshape(s) for k, s in pairs])
