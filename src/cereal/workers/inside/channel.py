"""Messages between a loader and a worker process: pickled values through a pair of sockets.

Both ends belong to the same user and the same program, so unpickling is no danger here; data files
are never unpickled.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections import deque
from typing import Any

import numpy as np

from .shared_memory import as_bytes

ANSWERS = ("use", "skip", "raise")
_LENGTH = struct.Struct("<Q")


class ClosedError(Exception):
    """The other end is gone."""


class Channel:
    """One end of a pair of sockets."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._early: deque[Any] = deque()  # messages that came while another was waited for

    def send(self, value: Any) -> None:
        """Sends a value that pickles."""
        self.send_pickled(pickle.dumps(value, 5))

    def send_pickled(self, body: bytes) -> None:
        try:
            if len(body) < 1 << 16:
                self._end.sendall(_LENGTH.pack(len(body)) + body)
            else:
                self._end.sendall(_LENGTH.pack(len(body)))
                self._end.sendall(body)
        except OSError as error:
            raise ClosedError(str(error)) from error

    def receive(self) -> Any:
        """The next value; waits for it."""
        return self._early.popleft() if self._early else self._receive()

    def receive_answer(self) -> Any:
        """The next value that answers a question; jobs that came before it are kept for later."""
        while (found := self._receive())[0] not in ANSWERS:
            self._early.append(found)
        return found

    def _receive(self) -> Any:
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return pickle.loads(self._exactly(length))

    def _exactly(self, length: int) -> bytearray:
        body = bytearray(length)
        self._fill(memoryview(body))
        return body

    def _fill(self, view: memoryview) -> None:
        try:
            while len(view):
                read = self._end.recv_into(view)
                if not read:
                    raise ClosedError("the other end is closed")
                view = view[read:]
        except OSError as error:
            raise ClosedError(str(error)) from error

    def send_array(self, array: np.ndarray) -> None:
        """Sends the bytes of an array, without pickling it."""
        if not array.nbytes:
            return
        try:
            self._end.sendall(as_bytes(np.ascontiguousarray(array).reshape(-1).view(np.uint8)))
        except OSError as error:
            raise ClosedError(str(error)) from error

    def receive_array(self, into: np.ndarray) -> None:
        """Fills a contiguous array with bytes that `send_array` sent."""
        if into.nbytes:
            self._fill(as_bytes(into.reshape(-1).view(np.uint8)))

    def close(self) -> None:
        self._end.close()
