"""Errors of Python code in programs over several devices, which the program itself cannot raise.

An exception that leaves such a callback would make the other devices wait for ever. The program
goes on with a poisoned batch, the error is printed at once, and it is raised by whatever comes
first: a call of cereal, or a program that is given a loader or a state (JAX asks these for their
parts at every call, see `pytree`). If nothing comes, the process ends with an exit code.
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
_seen: set[Hashable] = set()  # what was raised: other devices may raise the same a little later


def keep_unseen(identity: Hashable, error: BaseException) -> None:
    """Prints an error, and keeps it until somebody can raise it: the first of each callback."""
    with _lock:
        if _unseen.get(identity) is error:  # several devices asked for one batch
            return
        traceback.print_exception(without_our_frames(error))
        if identity not in _unseen:
            _unseen[identity] = without_frames(error)


def raise_unseen() -> None:
    """Raises an error that nobody has seen, if there is one."""
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
    """The error with the frames of the user's code alone."""
    trace = error.__traceback__
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "")
        if not module.startswith(("cereal.", "jax.", "threading")):
            break
        trace = trace.tb_next
    return error.with_traceback(trace)


def without_frames(error: BaseException) -> BaseException:
    """The error with its frames as text: frames would keep a dataset, and JAX would report all of
    them, up to the first of the process."""
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
    """A stream that is what it was, but cannot be flushed at the end."""

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
    """Makes the process end with an exit code if nobody has seen an error.

    The bet (`tests/loaders/test_unseen_errors.py` loses it): Python ends with code 120 if it cannot
    flush a standard stream. Nothing else that runs so late changes the code, unless it skips all
    that is left to do.
    """
    left = [error for error in list(_unseen.values()) if _words(error) not in _seen]
    if not left or isinstance(sys.stderr, _Failing):
        return
    for error in left:
        print(
            "cereal: the program ends, and this error of a host function inside of a compiled "
            "program over several devices was never raised; what was computed from its batch is "
            "wrong:",
            file=sys.stderr,
        )
        traceback.print_exception(error)
    sys.stderr = _Failing(sys.stderr)  # type: ignore[assignment]
