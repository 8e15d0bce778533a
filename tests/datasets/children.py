"""Processes that want a dataset: forked from one that has imported cereal, so that they are cheap.

child = Child(Wish(record, folder))       a real process, with its own locks and signals
child.result()                            {"image": ..., "label": ...}, or what was raised
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.datasets.server import GUARD

from cereal.datasets import fetching
from cereal.datasets.record import Record
from cereal.datasets.storage import SplitFiles

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["cereal", "http.server", "pooch", "pytest", "requests", "tqdm.auto"]
)


@dataclass(frozen=True)
class Wish:
    """What a child does, and under which conditions."""

    record: Record | None  # None: it takes the lock of the folder, and waits for its end
    folder: Path
    split: str = "train"
    mapped: bool = False
    largest: int | None = None  # bytes that a file may have, as on a disk that is full
    deadly: bool = False  # a larger file is the end of the process, in the middle of writing it
    rights: bool = True  # False: what the rights of files forbid is forbidden, even to root
    start: Any = None  # a barrier, which it passes before it begins
    waits: Any = None  # a semaphore, which it releases when it waits for another process
    variables: dict[str, str] = field(default_factory=dict)


class Child:
    """A process with a wish."""

    def __init__(self, wish: Wish) -> None:
        self._here, there = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=_work, args=(wish, there), daemon=True)
        self.process.start()
        there.close()

    def result(self) -> Any:
        """The arrays, or the error as its class's name and its message."""
        found = self.hear()
        self.end()
        return found

    def hear(self) -> Any:
        """What it says next."""
        assert self._here.poll(GUARD), "the child hangs"
        return self._here.recv()

    def interrupt(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGINT)

    def end(self, number: int | None = None) -> int | None:
        """Sends a signal, if one is given, and waits; the exit code."""
        if number is not None:
            assert self.process.pid is not None
            os.kill(self.process.pid, number)
        self.process.join(GUARD)
        code = self.process.exitcode
        if code is None:
            self.process.kill()
            self.process.join()
        self.process.close()
        self._here.close()
        return code


class _Tell(logging.Handler):
    """Tells of each message that is about waiting."""

    def __init__(self, tell: Callable[[], object]) -> None:
        super().__init__()
        self.tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        if "waiting" in record.getMessage():
            self.tell()


def tell_of_waiting(tell: Callable[[], object]) -> logging.Handler:
    """From now on `tell` is called when this process waits for another one's download."""
    handler = _Tell(tell)
    fetching.log.addHandler(handler)
    fetching.log.setLevel(logging.INFO)
    return handler


def _work(wish: Wish, connection: Any) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(wish.variables)
    fetching.PAUSE = 0.001
    if wish.waits is not None:
        tell_of_waiting(wish.waits.release)
    if wish.largest is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (wish.largest, wish.largest))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if wish.deadly else signal.SIG_IGN)
    if not wish.rights:
        _give_up_rights()
    if wish.start is not None:
        wish.start.wait(GUARD)
    try:
        connection.send(_fulfil(wish, connection))
    except BaseException as error:
        connection.send((type(error).__name__, str(error)))


def _fulfil(wish: Wish, connection: Any) -> Any:
    if wish.record is None:
        with fetching.locked(wish.folder):
            connection.send("locked")
            time.sleep(GUARD)
        return None
    files = SplitFiles(wish.record, wish.split, wish.folder, verify=True, owner="TinyDataset")
    arrays = files.mapped() if wish.mapped else files.load()
    return {name: array[:] + 0 for name, array in arrays.items()}


def _give_up_rights() -> None:
    """Root stays the owner of its files, but may no more than their rights say."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "capset"):
        raise OSError("root cannot give up its rights on this system: test as an ordinary user")
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # the version of the call; this process
    if libc.capset(header, (ctypes.c_uint32 * 6)()):
        raise OSError(ctypes.get_errno(), "capset")
