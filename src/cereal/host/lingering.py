"""Data that a compiled program may still read after the user has deleted the loader.

JAX returns before a program has run, and does not say when it is done. But the results of the
program exist already, as arrays that are not ready. So we keep the data until all such arrays are
ready, and until a second has passed since it was last read.

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
_left: queue.SimpleQueue[Any] = queue.SimpleQueue()  # the garbage collector may call its `put`
_ending = threading.Event()
_lock = threading.RLock()  # the garbage collector may call `linger` while `linger` runs
_thread: threading.Thread | None = None


def linger(data: Any) -> bool:
    """Keeps data until the programs that were called are done. False if the process is ending."""
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
    """The thread: drops each piece of data when no program needs it any more, and then ends."""
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
        del data  # otherwise it would live until the next piece comes


def _being_computed() -> list[Any]:
    """All arrays of the process that are not ready.

    The bet: clients of JAX list their arrays in `live_arrays`. If it is lost, data is dropped a
    second after it was last read, although a program may still need it.
    `tests/host/test_lingering.py`,
    `test_a_loader_that_dies_under_a_running_program_is_read_to_the_end`, fails first.
    """
    found: list[Any] = []
    for client in jax.extend.backend.backends().values():
        with contextlib.suppress(Exception):  # a backend that was cleared
            found += [array for array in client.live_arrays() if not _is_done(array)]
    return found[::-1]


def _is_done(array: Any) -> bool:
    # We ask repeatedly instead of waiting inside of JAX: at the end of the process, a thread that
    # waits there could not return to Python, and would abort the process.
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
