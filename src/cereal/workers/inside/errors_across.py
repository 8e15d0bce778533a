"""Errors on their way from a worker process to the loader.

    whole    the error pickles, and comes back as the same class
    parts    its constructor needs other arguments than it keeps: its class, arguments and fields
    words    it does not pickle: the nearest built-in class, with the same words

The text of the traceback comes along in each case.
"""

from __future__ import annotations

import builtins
import pickle
import traceback
from typing import Any


class WorkerTraceback(Exception):  # noqa: N818
    """The traceback of an error that was raised in a worker process; the error's `__cause__`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"in a worker process:\n\n{self.text}"


def packed(error: BaseException) -> tuple[str, Any, str]:
    """An error as a value that surely pickles."""
    text = _traceback_of(error)
    for kind, make in (("whole", _whole), ("parts", _parts)):
        try:
            body = make(error)
            if type(_MAKE[kind](body)) is type(error):
                return kind, body, text
        except BaseException:  # whatever its pickling, or its constructor, may raise
            continue
    return "words", _words(error), text


def unpacked(sent: tuple[str, Any, str]) -> BaseException:
    """The error, in the loader's process."""
    kind, body, text = sent
    try:
        error = _MAKE[kind](body)
    except BaseException:  # it unpickled there, but does not here
        error = RuntimeError(text.strip().rpartition("\n")[2])
    error.__cause__ = WorkerTraceback(text)
    return error


def _traceback_of(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except BaseException:  # its `__str__` raises
        return f"{type(error).__name__}\n"


def _whole(error: BaseException) -> bytes:
    import cloudpickle

    return cloudpickle.dumps(error)


def _parts(error: BaseException) -> bytes:
    import cloudpickle

    fields = {}
    for name, value in vars(error).items():
        try:
            cloudpickle.dumps(value)
            fields[name] = value
        except Exception:  # a lock, say: it stays behind
            continue
    return cloudpickle.dumps((type(error), error.args, fields))


def _from_parts(body: bytes) -> BaseException:
    cls, args, fields = pickle.loads(body)
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(fields)
    str(error)
    return error


def _words(error: BaseException) -> tuple[str, str, list[str]]:
    built_in = next(cls for cls in type(error).__mro__ if cls.__module__ == "builtins")
    name = built_in.__name__ if issubclass(built_in, Exception) else "RuntimeError"
    try:
        words = str(error)
    except Exception:
        words = ""
    notes = [note for note in getattr(error, "__notes__", []) if isinstance(note, str)]
    return name, f"{type(error).__name__}: {words}", notes


def _from_words(body: tuple[str, str, list[str]]) -> BaseException:
    name, words, notes = body
    try:
        error = getattr(builtins, name)(words)
    except TypeError:  # UnicodeDecodeError needs five arguments
        error = RuntimeError(words)
    for note in notes:
        error.add_note(note)
    return error


_MAKE: dict[str, Any] = {"whole": pickle.loads, "parts": _from_parts, "words": _from_words}
