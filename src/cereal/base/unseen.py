"""Errors of Python code in programs over several devices. Such a program cannot raise them itself.

If a callback raised an exception there, the other devices would wait for ever. So the program goes
on with a poisoned batch, and the error is printed at once. The next call of cereal raises it, or
the next program that gets a loader or a state as an argument (JAX asks these for their parts at
every call, see `pytree`). If there is no such call, the process ends with an exit code that is
not 0.
"""

from __future__ import annotations

import atexit
import sys
import threading
import traceback
from collections.abc import Hashable
from typing import Any

_lock = threading.Lock()
_unseen: dict[Hashable, BaseException] = {}
_seen: set[Hashable] = set()  # errors already raised; other devices may report the same one later


def keep_unseen(identity: Hashable, error: BaseException) -> None:
    """Prints an error. Keeps the first one of each callback until somebody can raise it."""
    with _lock:
        if _unseen.get(identity) is error:  # several devices asked for one batch
            return
        traceback.print_exception(without_our_frames(error))
        if identity not in _unseen:
            _unseen[identity] = without_frames(error)


def raise_unseen() -> None:
    """Raises a kept error, if there is one."""
    if not _unseen:
        return
    with _lock:
        error = _unseen.pop(next(iter(_unseen)), None) if _unseen else None
    if error is not None:
        _seen.add(_words(error))
        raise error


def _words(error: BaseException) -> Hashable:
    return type(error), str(error), str(getattr(error, "element", ""))


def without_our_frames(error: BaseException) -> BaseException:
    """The error, with a traceback that begins with the user's code."""
    trace = error.__traceback__
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "")
        if not module.startswith(("cereal.", "jax.", "threading")):
            break
        trace = trace.tb_next
    return error.with_traceback(trace)


def without_frames(error: BaseException) -> BaseException:
    """The error with its frames as text. Frames would keep a dataset alive, and JAX would print all
    of them."""
    lines = traceback.format_tb(without_our_frames(error).__traceback__)
    if lines:
        error.add_note("It was raised at:\n" + "".join(lines).rstrip())
    each: BaseException | None = error
    for _ in range(100):  # causes may go round in a circle
        if each is not None:
            each.__traceback__ = None
            each = each.__cause__ or each.__context__
    return error


class _Failing:
    """Standard error as it was, but `flush` raises."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def flush(self) -> None:
        if self._stream is not None:
            self._stream.flush()
        raise OSError("an error inside of a compiled program was never raised")


@atexit.register
def _fail_at_exit() -> None:
    """Makes the process end with an exit code other than 0 if a kept error was never raised.

    The bet: Python ends with code 120 if it cannot flush a standard stream. If it is lost,
    `tests/loaders/test_unseen_errors.py` fails first. At this point nothing else can change the
    exit code, except `os._exit`, which would skip the rest of the shutdown.
    """
    left = [error for error in list(_unseen.values()) if _words(error) not in _seen]
    if not left or isinstance(sys.stderr, _Failing):
        return
    for error in left:
        print(
            "cereal: the process ends, and this error was never raised. A host function raised it "
            "inside of a compiled program over several devices; what was computed from its batch "
            "is wrong:",
            file=sys.stderr,
        )
        traceback.print_exception(error)
    sys.stderr = _Failing(sys.stderr)  # type: ignore[assignment]
