"""What the tests of the workers share: small loaders, plain loops to compare with, guards."""

from __future__ import annotations

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
    """Threads that this library started and that are alive."""
    return [each for each in threading.enumerate() if each.name.startswith("cereal")]


def until(holds: Callable[[], bool], seconds: float = GUARD) -> bool:
    """Waits until it holds; whether it does."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True
