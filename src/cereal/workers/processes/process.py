"""One worker process, as the loader sees it."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np

from ...base.errors import CerealError, PipelineError, in_one_line
from ..inside import serve, start
from ..inside.channel import Channel, ClosedError
from ..inside.errors_across import unpacked
from .payload import Payload
from .slots import Slots

_NO_DEVICES = {
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "-1",
    "HIP_VISIBLE_DEVICES": "-1",
    "ROCR_VISIBLE_DEVICES": "-1",
    "TPU_VISIBLE_CHIPS": "",
}
_LAST = 1.0  # seconds that an idle process has to end by itself


class DiedError(CerealError, RuntimeError):
    """A worker process ended while it was needed."""


class Turn:
    """A `with` block: the time in which a thread hears the answer to its message.

    Answers come in the order of the messages: those of others are waited for. If an answer was not
    heard to its end, nobody could tell what comes next: the process is of no use any more.
    """

    __slots__ = ("_number", "_process", "over")

    def __init__(self, process: WorkerProcess, number: int) -> None:
        self._process, self._number = process, number
        self.over = False  # whether the answer was heard to its end

    def __enter__(self) -> Turn:
        self._process.wait_for_turn(self._number)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.end_turn(useless=not self.over)


class WorkerProcess:
    """A process that reads for a loader. Threads send it jobs, and hear its answers in turn."""

    def __init__(self, slots: Slots, life: int) -> None:
        self._slot = slots.keep(serve.STATUS)
        self.status = self._slot.memory[: serve.STATUS].view(np.float64)
        self.status[:] = serve.IDLE
        self._known: list[int] = []  # numbers of the programs that it has
        self.ready = False
        self._lock = threading.RLock()  # the garbage collector may end it
        self._giving, self._sending = threading.Lock(), threading.Lock()
        self._turn = threading.Condition()
        self._sent = self._heard = 0  # jobs that were sent, and those whose answers were heard
        self.hung = 0.0  # for how many seconds an element hung when it was ended for that
        self._useless = False  # whether nobody can listen to it any more
        ours, theirs = socket.socketpair()
        descriptors = (theirs.fileno(), life, slots.file)
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        script = [sys.executable, *flags, "-P", str(Path(start.__file__))]
        try:
            with theirs:
                self._popen = subprocess.Popen(
                    [*script, *map(str, descriptors)],
                    pass_fds=descriptors,
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, **_NO_DEVICES},
                    process_group=0,  # so that Ctrl-C does not reach it
                )
        except BaseException:
            ours.close()
            raise
        self.channel = Channel(ours)
        self.pid = self._popen.pid
        try:
            self._send_first()
        except BaseException:
            self.end(kill=True)
            raise

    def _send_first(self) -> None:
        self.channel.send(("hello", [*sys.path], self._slot.part[0]))

    def give(self, payload: Payload) -> None:
        """Sends the program, if the process does not have it."""
        with self._giving:
            if payload.number in self._known:
                return
            message = ("program", payload.number, payload.body, payload.parts)
            with self.turn(pickle.dumps(message, 5)) as turn:
                kind, *answer = self.channel.receive()
                turn.over = True
            self.ready = True
            if kind == "broken":
                error = unpacked(answer[0])
                raise PipelineError(
                    f"a worker process cannot load the pipeline: {in_one_line(error)}; make what "
                    f"it needs importable there, or let threads read: `DataLoader(..., "
                    f'worker_type="thread")`.'
                ) from error
            self._known = sorted([*self._known, payload.number])[-serve.MOST_PROGRAMS :]

    def turn(self, message: bytes) -> Turn:
        """Sends a message; within it, this thread hears the answer."""
        with self._sending:
            self.channel.send_pickled(message)
            number, self._sent = self._sent, self._sent + 1
        return Turn(self, number)

    def wait_for_turn(self, number: int) -> None:
        with self._turn:
            while self._heard != number:
                if self._useless:
                    break
                self._turn.wait()
            if self._useless:
                raise ClosedError("it has ended, or must end")

    def end_turn(self, *, useless: bool) -> None:
        with self._turn:
            self._heard += 1
            self._useless = self._useless or useless
            self._turn.notify_all()

    def forget_program(self, payload: Payload) -> None:
        """It does not have this program any more."""
        with self._giving:
            self._known = [number for number in self._known if number != payload.number]

    def answer(self, message: bytes) -> None:
        """Answers a question that the process has asked."""
        with self._sending:
            self.channel.send_pickled(message)

    @property
    def place(self) -> tuple[int, float, int, int]:
        """The lane that it reads (-1: none), since when, the number of the stage and the step."""
        lane, since, stage, step = self.status[:4].tolist()
        return int(lane), since, int(stage), int(step)

    def lives(self) -> bool:
        with self._lock:
            return self._popen.poll() is None

    def kill(self) -> None:
        """Ends it at once, whatever it does."""
        with self._lock:
            if self._popen.returncode is None:
                self._popen.kill()

    def end(self, *, kill: bool = False) -> str:
        """Ends it and waits for its end; says how it ended. An idle one ends by itself."""
        if kill:
            self.kill()
        self.channel.close()
        with self._lock:
            try:
                self._popen.wait(_LAST)
            except subprocess.TimeoutExpired:
                self._popen.kill()
                self._popen.wait(_LAST * 5)
            how = _in_words(self._popen.returncode)
        with self._turn:
            self._useless = True
            self._turn.notify_all()
        return how

    def forget(self) -> None:
        """After a fork: this copy of the loader has no business with the process."""
        self.channel.close()
        self._popen.returncode = 0  # the destructor must not wait for it


def _in_words(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"
