"""Data that a compiled program may still read when its last holder is gone.

JAX returns before a program has run, and nothing tells when it is done. But whoever will look at
its results has them already, as arrays that are not ready: so data stays until all arrays that
were being computed are ready, and for a second after it was last read.

    loader = None  ->  HostData.__del__  ->  a queue  ->  a thread, which waits, lets go and ends
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
_lock = threading.RLock()  # so may all of `linger`, in the midst of itself
_thread: threading.Thread | None = None


def linger(data: Any) -> bool:
    """Keeps data until the programs that were called are done; not at the end of the process."""
    global _thread
    if _ending.is_set():
        return False
    _left.put(data)
    with _lock:
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_wait, name="cereal-lingering", daemon=True)
            _thread.start()
    return True


def _wait() -> None:
    """Lets go of all that lingers, each in its time, and ends."""
    global _thread
    while not _ending.is_set():
        with _lock:
            if _left.empty():
                _thread = None
                return
            data = _left.get()
        waited_for = _being_computed()
        while waited_for and not _ending.is_set():
            if _is_done(waited_for[-1]):
                waited_for.pop()
            else:
                _ending.wait(_POLL)
        while not _ending.is_set():
            left = data.read_at + _GRACE - time.monotonic()
            if left <= 0:
                break
            _ending.wait(left)
        del data  # not while waiting for the next


def _being_computed() -> list[Any]:
    """All arrays of the process that are not ready.

    The bet: clients of JAX list their arrays in `live_arrays`. If it is lost, data goes a second
    after it was last read, under a program that may still ask for it.
    `tests/core/test_lingering.py`,
    `test_a_loader_that_dies_under_a_running_program_is_read_to_the_end`, fails first.
    """
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
    thread = _thread
    if thread is not None:
        thread.join(1.0)
