"""The context in which a worker process reads: memory of the loader, errors to the loader."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...base.errors import UsageError
from ...base.foreign_errors import ran_inside_program
from ...host.read_context import ReadContext, raise_it, use_read_context
from .errors_across import packed


class Unwind(BaseException):  # noqa: N818
    """The loader has given up the step: its `on_error` raised."""


class ProcessContext(ReadContext):
    """Reads a step for a loader in another process."""

    def __init__(self, channel: Any, status: Any, job: Any, hung: dict[Any, Any]) -> None:
        super().__init__(self._ask if job.asks else raise_it, masked=job.masked)
        self._channel, self._job = channel, job
        self.status = status
        self.known_to_hang = hung
        self._rooms: list[np.ndarray] = []
        self.given = job.given
        self._at = 0  # the step that is read, if a step is a batch

    def run(self, program: Any, rows: Any, rooms: list[np.ndarray]) -> np.ndarray | None:
        """Reads all rows into the rooms; returns the mask (None: all real)."""
        before = "jax" in sys.modules
        keep = self._run(program, rows, rooms)
        if "jax" in sys.modules and not before:
            keep = self._run(program, rows, rooms)  # again: now JAX refuses to run
        return keep

    def _run(self, program: Any, rows: Any, rooms: list[np.ndarray]) -> np.ndarray | None:
        with use_read_context(self), _without_jax():
            if not program.lanes:
                return self._read(program, rows, rooms)
            found = []
            for self._at in range(len(rows.index)):
                found.append(self._read(program, rows[self._at], [room[self._at] for room in rooms]))
        if all(keep is None for keep in found):
            return None
        full = np.ones(rows.index.shape[1:], np.bool_)
        return np.stack([full if k is None else k.reshape(full.shape) for k in found])

    def _read(self, program: Any, rows: Any, rooms: list[np.ndarray]) -> np.ndarray | None:
        self._rooms = list(rooms)
        leaves, keep = program.read(rows)
        # An array that lies elsewhere is copied. If it lies in the room of another, first of all.
        moved = [
            leaf.copy() if leaf is not room and _lies_in(leaf, rooms) and not _same(leaf, room)
            else leaf
            for leaf, room in zip(leaves, rooms, strict=True)
        ]
        for leaf, room in zip(moved, rooms, strict=True):
            if not _same(leaf, room):
                room[...] = leaf
        return keep

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:  # type: ignore[override]
        """Memory of the batch, if a part of it has this shape and dtype and is not taken yet."""
        for number, room in enumerate(self._rooms):
            if room.shape == shape and room.dtype == dtype:
                return self._rooms.pop(number)
        return np.empty(shape, dtype)

    def own(self, array: np.ndarray) -> np.ndarray:
        return array  # `_read` copies it

    def check_known_to_hang(self) -> None:
        rows, lane = (self.rows, self.lane) if self.top is None else (self.top, self.top_lane)
        at = int(rows.index.reshape(-1)[lane]), int(rows.epoch.reshape(-1)[lane])
        if at in self.known_to_hang:
            raise self.known_to_hang[at]

    def failed(self, error: Exception) -> Any:
        if ran_inside_program(error):
            raise UsageError(f"{self.stage} {_RAN_JAX}") from None
        return super().failed(error)

    def _ask(self, error: Exception) -> Any:
        """What the loader's `on_error` says."""
        lane = self.lane if self.top is None else self.top_lane
        self._channel.send(("failed", self._at, lane, self.place(), packed(error)))
        kind, *answer = self._channel.receive()
        if kind == "raise":
            raise Unwind
        return answer[0] if kind == "use" else None


_RAN_JAX = (
    "runs JAX, in a worker process, which has no device and no business with JAX. In this function "
    'use NumPy (`np.` in place of `jnp.`); or let threads read: `DataLoader(..., '
    'worker_type="thread")`.'
)


@contextlib.contextmanager
def _without_jax() -> Iterator[None]:
    """Within it, JAX does not run, if it was imported."""
    jax: Any = sys.modules.get("jax")
    with contextlib.nullcontext() if jax is None else jax.no_execution():
        yield


def memory_of(array: np.ndarray) -> memoryview:
    return memoryview(array)


def _lies_in(array: np.ndarray, rooms: list[np.ndarray]) -> bool:
    return any(np.may_share_memory(array, room) for room in rooms)


def _same(array: np.ndarray, room: np.ndarray) -> bool:
    """Whether the array is this room: the same memory, in the same shape."""
    ours, theirs = array.__array_interface__, room.__array_interface__
    return ours["data"][0] == theirs["data"][0] and array.strides == room.strides
