"""What a worker process is given: the host part of the pipeline, pickled.

Functions travel by value if they come from the user's script or a notebook (cloudpickle). Large
arrays are written once into shared memory, which every worker maps; arrays in files travel as the
names of their files.
"""

from __future__ import annotations

import io
import itertools
import logging
import pickle
import threading
import time
from functools import partial
from typing import Any

import cloudpickle
import numpy as np

from ...base.errors import PipelineError, in_one_line
from ...reading.readers.arrays import as_file
from ..inside.c_library import same_bytes
from .slots import Slots

log = logging.getLogger("cereal")
_LARGE = 1 << 16
_SLOW = 1.0  # seconds of pickling after which changes are not looked for
_MOST_RECENT = 4
_numbers = itertools.count()
_MOST_COPIED = 32 * 2**20  # bytes that are copied into every process without being asked
_MOST_SHARED = 2**30


class TooLargeError(Exception):
    """The pipeline holds so much data that it is sent only to processes that the user asked for."""


class Payload:
    """A pickled program; its large arrays are in shared memory."""

    def __init__(self, body: bytes, arrays: list[np.ndarray], slots: Slots) -> None:
        self.number, self.slots = next(_numbers), slots
        self.body = body
        self._slots = []
        for array in arrays:
            slot = slots.keep(array.nbytes)
            slot.memory[: array.nbytes] = array
            self._slots.append((slot, array.nbytes))
        self.parts = [(slot.part[0], size) for slot, size in self._slots]

    def holds(self, body: bytes, arrays: list[np.ndarray]) -> bool:
        """Whether these are its contents."""
        if body != self.body or [a.nbytes for a in arrays] != [size for _, size in self._slots]:
            return False
        pairs = zip(arrays, self._slots, strict=True)
        return all(same_bytes(array, slot.memory, size) for array, (slot, size) in pairs)


class Payloads:
    """The payloads of a loader. One is made anew if a function, or what it refers to, changed."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._lock = threading.Lock()
        self._recent: list[Payload] = []
        self._slow: list[tuple[Any, Payload, float]] = []  # programs that take long to pickle

    def payload_of(self, program: Any, *, willingly: bool = False) -> Payload:
        """The program as a worker gets it; the same object as long as nothing has changed.

        `willingly`: the user has not asked for processes, so it must not be too large.
        """
        with self._lock:
            for known, payload, took in self._slow:
                if known is program:
                    self._warn(took)
                    return payload
            began = time.perf_counter()
            body, arrays = pickled(program, small=willingly)
            found = next((each for each in self._recent if each.holds(body, arrays)), None)
            if found is None:
                found = _payload(body, arrays, program, self._slots)
                self._recent = [*self._recent[-_MOST_RECENT:], found]
            took = time.perf_counter() - began
            if took > _SLOW:
                self._slow = [*self._slow[-_MOST_RECENT:], (program, found, took)]
            return found

    def forget(self) -> None:
        """Everything is pickled again, and sent again."""
        with self._lock:
            self._recent, self._slow = [], []

    def _warn(self, took: float) -> None:
        log.warning(
            "pickling the pipeline for the worker processes took %.1f s, so it is done only once: "
            "if you change the dataset, or what its functions refer to, call `loader.close()`, and "
            "the next iteration sends it again",
            took,
        )


def _payload(body: bytes, arrays: list[np.ndarray], program: Any, slots: Slots) -> Payload:
    try:
        return Payload(body, arrays, slots)
    except OSError as error:
        log.warning(
            "there is no shared memory for the arrays of the pipeline (%s): every worker process "
            "gets a copy of them",
            str(error),
        )
        return Payload(pickled(program, shared=False)[0], [], slots)


def pickled(
    program: Any, *, shared: bool = True, small: bool = False
) -> tuple[bytes, list[np.ndarray]]:
    """The pickled program, and its large arrays, which are not in it (if `shared`).

    `small`: stops with a TooLargeError if there is much data.
    """
    arrays: list[np.ndarray] = []

    def take(buffer: pickle.PickleBuffer) -> bool:
        raw = np.frombuffer(buffer.raw(), np.uint8)
        if raw.nbytes < _LARGE or not shared:
            return True
        arrays.append(raw)
        if small and sum(array.nbytes for array in arrays) > _MOST_SHARED:
            raise TooLargeError("its arrays have more than a gigabyte")
        return False

    file = _Small() if small else io.BytesIO()
    try:
        _Pickler(file, 5, take).dump(program)
    except TooLargeError:
        raise
    except Exception as error:
        raise PipelineError(
            f"this pipeline cannot be sent to worker processes, because a part of it does not "
            f"pickle: {in_one_line(error)}; open files, connections and locks inside of the "
            f"function that uses them, or let threads read: `DataLoader(..., "
            f'worker_type="thread")`.'
        ) from error
    return file.getvalue(), arrays


class _Small(io.BytesIO):
    def write(self, data: Any, /) -> int:
        if self.tell() + len(data) > _MOST_COPIED:
            raise TooLargeError("its objects would be copied into every process")
        return super().write(data)


class _Pickler(cloudpickle.Pickler):
    def __init__(self, file: Any, protocol: int, take: Any) -> None:
        super().__init__(file, protocol=protocol, buffer_callback=take)

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is np.memmap:
            found = as_file(obj)
            if isinstance(found, partial):
                return found.func, found.args
        return super().reducer_override(obj)
