"""What the tests of the workers share: small loaders, plain loops to compare with, guards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

from cereal import BatchTransform, DataLoader, DiskSampleSource

T = TypeVar("T")
GUARD = 60.0  # seconds after which something hangs
INT = jax.ShapeDtypeStruct((), np.int32)


class OwnError(Exception):
    """An error of the user's."""


def loader_of(
    read: Callable[[int], Any],
    n: int = 24,
    batch: int = 4,
    *stages: Any,
    ordering: str = "sequential",
    spec: Any = INT,
    **options: Any,
) -> DataLoader[Any]:
    """Batches of what `read` gives; it is not called before they are asked for."""
    source = DiskSampleSource(n, read, sample_spec=spec, ordering=ordering)
    return DataLoader([source, BatchTransform(batch), *stages], **options)


def chunks(n: int, batch: int, begin: int = 0) -> list[list[int]]:
    """What a sequential loader over `range(n)` gives, by a plain loop."""
    return [list(range(at, at + batch)) for at in range(begin, n, batch)]


def numbers(pairs: Any) -> list[list[int]]:
    return [batch.tolist() for batch, _ in pairs]


def kept(pairs: Any) -> list[list[int]]:
    """The elements that the masks count."""
    return [np.asarray(batch)[np.asarray(mask)].tolist() for batch, mask in pairs]


def within(run: Callable[[], T], seconds: float = GUARD) -> T:
    """What `run` returns or raises, from a thread of its own; a hang is an assertion."""
    found: list[T] = []
    raised: list[BaseException] = []

    def work() -> None:
        try:
            found.append(run())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True, name="guarded")
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), f"hangs: not done after {seconds:.0f} s"
    if raised:
        raise raised[0]
    return found[0]


def workers() -> list[threading.Thread]:
    """Threads that read for loaders and are alive."""
    return [each for each in threading.enumerate() if each.name.startswith("cereal-worker")]


def until(holds: Callable[[], bool], seconds: float = GUARD) -> bool:
    """Waits until it holds; whether it does."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


SCRIPT = """
import gc, os, signal, sys, threading, time
import jax, numpy as np
import cereal
from cereal import *

def loader_of(read, n=24, batch=4, *stages, **options):
    spec = jax.ShapeDtypeStruct((), np.int32)
    source = DiskSampleSource(n, read, sample_spec=spec, ordering="sequential")
    return DataLoader([source, BatchTransform(batch), *stages], **options)

def chunks(n, batch):
    return [list(range(at, at + batch)) for at in range(0, n, batch)]

def say(word):
    sys.stdout.write(word + "\\n")
    sys.stdout.flush()
"""


def script(code: str, *, interrupt: bool = False, devices: int = 1) -> tuple[int, str, str, float]:
    """Runs the code in a process of its own; it is interrupted once it says "now".

    Its exit status, output, errors, and the seconds from "now" (or from the start) to its end.
    """
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT + code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    heard = ""
    try:
        while interrupt and "now" not in heard:
            line = process.stdout.readline()
            heard += line
            if not line:
                break
        begin = time.monotonic()
        if interrupt:
            time.sleep(0.3)  # until it waits
            process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=GUARD)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        raise AssertionError(f"hangs: {heard}{output}\n{errors}") from None
    return process.returncode, heard + output, errors, time.monotonic() - begin
