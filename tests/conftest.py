"""What all tests share: four CPU devices, a strict JAX for those who ask, and leak watchers."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

# Before jax is imported: shardings need devices to spread over.
_FLAG = "--xla_force_host_platform_device_count"
if _FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}=4".strip()

# A shell starts background jobs with Ctrl-C ignored, and children would inherit that.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

import hypothesis  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

# The first example of a property compiles, which takes longer than any deadline.
hypothesis.settings.register_profile("cereal", deadline=None)
hypothesis.settings.load_profile("cereal")

_DESCRIPTORS = Path("/proc/self/fd")
# The first compilation, callback or progress bar of a process opens a few descriptors for good
# (runtime pools, terminals); a test that leaks opens one for each loader, file or worker.
_FEW = 4


@pytest.fixture
def strict_jax() -> Iterator[None]:
    """No implicit promotion of dtypes or ranks, for one test."""
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    """A test ends with the threads that it began with, daemons aside."""
    before = _threads()
    yield
    left = _threads() - before
    assert not left, f"threads left running: {sorted(thread.name for thread in left)}"


@pytest.fixture(autouse=True)
def no_files_left_open() -> Iterator[None]:
    """A test ends with the file descriptors that it began with."""
    if not _DESCRIPTORS.exists():
        yield
        return
    before = _open_files()
    yield
    if len(_open_files()) > len(before) + _FEW:
        gc.collect()  # files in cycles are closed by the collector
    after = _open_files()
    new = sorted(target for number, target in after.items() if before.get(number) != target)
    assert len(after) <= len(before) + _FEW, f"files left open: {new}"


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.daemon}


def _open_files() -> dict[str, str]:
    found = {}
    for name in os.listdir(_DESCRIPTORS):
        try:
            found[name] = os.readlink(_DESCRIPTORS / name)
        except FileNotFoundError:  # the listing's own
            continue
    return found
