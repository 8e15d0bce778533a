"""Data that a compiled program may still read when its last holder is gone.

JAX returns before a program has run, and nothing tells when it is done. But whoever will look at
its results has them already, as arrays that are not ready: so data stays until all arrays that
were being computed are ready, and for a second after it was last read.

    loader = None  ->  HostData.__del__  ->  a queue  ->  one thread, which waits and lets go
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import time
from typing import Any

import jax.extend.backend

_POLL = 0.01
_GRACE = 1.0
_left: queue.SimpleQueue[Any] = queue.SimpleQueue()  # its `put` may be called by the collector
_ending = threading.Event()
_lock = threading.Lock()
_thread: threading.Thread | None = None


def start_waiter() -> None:
    """Called when a program is traced: a finalizer must not start a thread."""
    global _thread
    with _lock:
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_wait, name="cereal-lingering", daemon=True)
            _thread.start()


def linger(data: Any) -> bool:
    """Keeps data until the programs that were called are done; not at the end of the process."""
    if _ending.is_set():
        return False
    _left.put(data)
    return True


def _wait() -> None:
    while not _ending.is_set():
        data = _left.get()
        for array in _being_computed():
            while not _is_done(array) and not _ending.wait(_POLL):
                pass
            del array
        while data is not None and not _ending.is_set():
            left = data.read_at + _GRACE - time.monotonic()
            if left <= 0:
                break
            _ending.wait(left)
        del data  # not while waiting for the next


def _being_computed() -> list[Any]:
    """All arrays of the process that are not ready."""
    found: list[Any] = []
    for client in jax.extend.backend.backends().values():
        with contextlib.suppress(Exception):  # a backend that was cleared
            found += [array for array in client.live_arrays() if not _is_done(array)]
    return found[::-1]


def _is_done(array: Any) -> bool:
    # Asked again and again: a thread that waits inside of JAX at the end of the process, when it
    # may not come back to Python, would abort it.
    try:
        return array.is_deleted() or array.is_ready()
    except Exception:  # it was donated between the two, or its program failed
        return True


@atexit.register
def _end() -> None:
    _ending.set()
    _left.put(None)
    if _thread is not None:
        _thread.join(1.0)
