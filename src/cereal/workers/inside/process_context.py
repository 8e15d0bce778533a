"""The context in which a worker process reads: memory of the loader, errors to the loader."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...base.errors import UsageError
from ...base.foreign_errors import ran_inside_program
from ...reading.read_context import ReadContext, annotate, raise_it, use_read_context
from .errors_across import packed


class Unwind(BaseException):
    """The loader has given up the step: its `on_error` raised."""


class RanJaxError(UsageError):
    """A function runs JAX in a worker process."""


class ProcessContext(ReadContext):
    """Reads a step for a loader in another process."""

    def __init__(self, channel: Any, status: Any, job: Any, hung: dict[Any, Any]) -> None:
        super().__init__(self._ask if job.asks else raise_it, masked=job.masked)
        self.empty = self._empty
        self.status, self.step_number = status[:3], status[3:]
        self.known_to_hang, self.given = hung, job.given
        self._channel = channel
        self._all: list[np.ndarray] = []  # where the arrays of the step will lie
        self._rooms: list[np.ndarray] = []  # those of them that are not taken yet

    def run(self, program: Any, rows: Any, rooms: list[np.ndarray]) -> np.ndarray | None:
        """Reads all rows into the rooms; returns the mask (None: all real)."""
        before = "jax" in sys.modules
        keep = self._run(program, rows, rooms)
        if "jax" in sys.modules and not before:
            self.given = None if self.given is None else self.given.again()
            keep = self._run(program, rows, rooms)  # again: now JAX refuses to run
        return keep

    def _run(self, program: Any, rows: Any, rooms: list[np.ndarray]) -> np.ndarray | None:
        with use_read_context(self), _without_jax():
            if not program.lanes:
                return self._read(program, rows, rooms)
            found = []
            for at in range(len(rows.index)):
                self.step_number[0] = at
                found.append(self._read(program, rows[at], [room[at] for room in rooms]))
        if all(keep is None for keep in found):
            return None
        full = np.ones(rows.index.shape[1:], np.bool_)
        return np.stack([full if k is None else k.reshape(full.shape) for k in found])

    def _read(self, program: Any, rows: Any, rooms: list[np.ndarray]) -> np.ndarray | None:
        self._all, self._rooms = rooms, list(rooms)
        leaves, keep = program.read(rows)
        wrong = [not _same(leaf, room) for leaf, room in zip(leaves, rooms, strict=True)]
        # What lies in the room of another is copied first, before something is written there.
        leaves = [
            leaf.copy() if moves and _lies_in(leaf, rooms) else leaf
            for leaf, moves in zip(leaves, wrong, strict=True)
        ]
        for leaf, room, moves in zip(leaves, rooms, wrong, strict=True):
            if moves:
                room[...] = leaf
        return keep

    def _empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Memory of the batch, if a part of it has this shape and dtype and is not taken yet."""
        for number, room in enumerate(self._rooms):
            if room.shape == shape and room.dtype == dtype:
                return self._rooms.pop(number)
        return np.empty(shape, dtype)

    def own(self, array: np.ndarray) -> np.ndarray:
        if array.flags.c_contiguous and _lies_in(array, self._all):
            return array
        copy = self._empty(array.shape, array.dtype)
        copy[...] = array
        return copy

    def failed(self, error: BaseException) -> Any:
        if ran_inside_program(error):
            place = self.place()
            refused = RanJaxError(f"{place.stage if place else self.stage} {_RAN_JAX}")
            annotate(refused, place)
            raise refused from None
        return super().failed(error)

    def _ask(self, error: Exception) -> Any:
        """What the loader's `on_error` says."""
        message = ("failed", int(self.step_number[0]), int(self.status[0]), self.place())
        self._channel.send((*message, packed(error)))
        kind, *answer = self._channel.receive_answer()
        if kind == "raise":
            raise Unwind
        return answer[0] if kind == "use" else None


_RAN_JAX = (
    "runs JAX, in a worker process, which must not: it has no device. In this function use NumPy "
    '(`np.` in place of `jnp.`); or let threads read: `DataLoader(..., worker_type="thread")`.'
)


@contextlib.contextmanager
def _without_jax() -> Iterator[None]:
    """Within it, JAX does not run, if it was imported."""
    jax: Any = sys.modules.get("jax")
    with contextlib.nullcontext() if jax is None else jax.no_execution():
        yield


def _lies_in(array: np.ndarray, rooms: list[np.ndarray]) -> bool:
    return any(np.may_share_memory(array, room) for room in rooms)


def _same(array: np.ndarray, room: np.ndarray) -> bool:
    """Whether the array is this room: the same memory, in the same shape."""
    ours, theirs = array.__array_interface__["data"][0], room.__array_interface__["data"][0]
    return ours == theirs and array.shape == room.shape and array.strides == room.strides
