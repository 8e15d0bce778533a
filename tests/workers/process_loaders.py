"""What the tests of worker processes share."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.workers.reading import INT, chunks, until

from cereal import BatchTransform, DataLoader, DiskSampleSource

N, BATCH = 48, 4
EXPECTED = chunks(N, BATCH)


def in_processes(
    read: Callable[..., Any],
    *stages: Any,
    n: int = N,
    batch: int = BATCH,
    spec: Any = INT,
    workers: int = 2,
    **options: Any,
) -> DataLoader[Any]:
    """Batches of what `read` gives, read by processes."""
    source = DiskSampleSource(n, read, sample_spec=spec, ordering="sequential")
    return DataLoader(
        [source, BatchTransform(batch), *stages],
        workers=workers,
        worker_type="process",
        **options,
    )


def arrays(pairs: Any) -> list[Any]:
    """Batches and masks as NumPy arrays."""
    return [jax.tree.map(np.array, pair) for pair in pairs]


def equal(ours: list[Any], theirs: list[Any]) -> bool:
    """Whether batches and masks are the same, bit for bit."""
    if len(ours) != len(theirs):
        return False
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)


def children() -> list[int]:
    """The worker processes of this process that have not been waited for."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in (task / "children").read_text().split()]
    return [pid for pid in found if _is_worker(pid)]


def _is_worker(pid: int) -> bool:
    try:
        return b"inside/start.py" in Path(f"/proc/{pid}/cmdline").read_bytes() or _is_zombie(pid)
    except OSError:
        return False


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def shared_files() -> int:
    """The pieces of shared memory that this process has mapped."""
    return Path("/proc/self/maps").read_text().count("memfd:cereal")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def reading_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("cereal-")]


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """After the test there is no process, thread, descriptor or shared memory of its own."""
    gc.collect()
    before = descriptors(), shared_files()
    yield
    gc.collect()
    assert until(lambda: not children(), 5), children()
    assert until(lambda: not reading_threads(), 5), reading_threads()
    assert until(lambda: descriptors() <= before[0], 5), os.listdir("/proc/self/fd")
    # (A thread that has just ended may leave a cycle, which holds a batch.)
    assert until(lambda: gc.collect() >= 0 and shared_files() <= before[1], 5)
