"""What may befall a worker process: nothing is lost, repeated, hung or left behind."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.workers.process_loaders import (
    BATCH,
    EXPECTED,
    N,
    children,
    in_processes,
    nothing_left,
    shared_files,
)
from tests.workers.reading import kept, numbers, within

import cereal
from cereal import BatchTransform, DataLoader, HostMapTransform, IterableSource

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures(nothing_left.__name__)]
_ = nothing_left

WITHOUT_9 = [[x for x in batch if x != 9] for batch in EXPECTED]


def slowly(i: int) -> int:
    time.sleep(0.004)
    return i


def once(folder: Path, fault: Callable[[], Any], at: int = 9) -> Callable[[int], int]:
    """A function whose element `at` has a fault, the first time that it is read."""
    mark = str(folder / "there")

    def read(i: int) -> int:
        if i == at and not os.path.exists(mark):
            open(mark, "w").close()
            fault()
        return i

    return read


def always(fault: Callable[[], Any], at: int = 9) -> Callable[[int], int]:
    def read(i: int) -> int:
        if i == at:
            fault()
        return i

    return read


def segfault() -> None:
    import ctypes

    ctypes.string_at(0)


FAULTS: dict[str, Callable[[], Any]] = {
    "SIGKILL": lambda: os.kill(os.getpid(), 9),
    "SIGTERM": lambda: os.kill(os.getpid(), 15) or time.sleep(10),
    "os._exit(0)": lambda: os._exit(0),
    "os._exit(1)": lambda: os._exit(1),
    "segmentation fault": segfault,
}


# One or all are killed


def test_workers_killed_between_epochs_are_replaced() -> None:
    with in_processes(lambda i: i, workers=4) as loader:
        for _ in range(3):
            assert numbers(loader.iterate()) == EXPECTED
            for pid in children():
                os.kill(pid, signal.SIGKILL)


# An element ends its worker


@pytest.mark.parametrize("name", FAULTS)
def test_an_element_that_ends_its_worker_once_is_read_again(name: str, tmp_path: Path) -> None:
    with in_processes(once(tmp_path, FAULTS[name])) as loader:
        assert within(lambda: numbers(loader.iterate())) == EXPECTED


@pytest.mark.parametrize("name", FAULTS)
def test_an_element_that_ends_its_worker_twice_is_an_error(name: str) -> None:
    with in_processes(always(FAULTS[name])) as loader:
        batches = loader.iterate()
        assert numbers([next(batches), next(batches)]) == EXPECTED[:2]
        with pytest.raises(RuntimeError, match="ended two worker processes") as caught:
            next(batches)
        assert caught.value.element.index == 9  # type: ignore[attr-defined]
        assert "element 9 of epoch 0" in caught.value.__notes__[0]


@pytest.mark.parametrize("code", [0, 1])
def test_sys_exit_in_a_function_is_an_error(code: int) -> None:
    def leave() -> None:
        import sys

        sys.exit(code)

    with in_processes(always(leave)) as loader, pytest.raises(RuntimeError, match=r"sys\.exit"):
        list(loader.iterate())
    with in_processes(always(leave), on_error="skip") as loader:
        assert kept(loader.iterate()) == WITHOUT_9


def test_too_little_memory_is_the_elements_error() -> None:
    def grow() -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, resource.RLIM_INFINITY))
        np.ones(2**30, np.uint8)

    with in_processes(always(grow), on_error="skip") as loader:
        assert kept(loader.iterate()) == WITHOUT_9
    with in_processes(always(grow)) as loader, pytest.raises(MemoryError):
        list(loader.iterate())


def test_a_worker_out_of_file_descriptors_goes_on() -> None:
    def open_all(i: int) -> int:
        global hoard
        if i == 9:
            hoard = []  # type: ignore[name-defined]
            with contextlib.suppress(OSError):
                while True:
                    hoard.append(open(os.devnull))  # noqa: SIM115
        return i

    with in_processes(open_all, workers=1) as loader:
        for _ in range(2):
            assert numbers(loader.iterate()) == EXPECTED


# Errors


def made_there() -> BaseException:
    """An error of a class that does not pickle, made where it is raised."""

    class MadeThereError(KeyError):
        lock = threading.Lock()

    return MadeThereError("deep")


def raising(make: Callable[[], BaseException]) -> Callable[[int], int]:
    def read(i: int) -> int:
        if i == 9:
            raise make()
        return i

    return read


def test_errors_of_all_kinds_arrive_and_the_loader_can_be_used_again() -> None:
    class OwnError(Exception):
        """Defined in the script."""

    class WithLockError(ValueError):
        def __init__(self) -> None:
            super().__init__("holds a lock")
            self.lock = threading.Lock()

    class NoPickleError(KeyError):
        def __reduce__(self) -> Any:
            raise TypeError("I do not pickle")

    class TwoError(Exception):
        def __init__(self, what: str, where: int) -> None:
            super().__init__(f"{what} at {where}")
            self.where = where

    cases: list[tuple[Callable[[], BaseException], type[BaseException], str]] = [
        (lambda: ValueError("plain"), ValueError, "plain"),
        (lambda: OwnError("mine"), OwnError, "mine"),
        (lambda: WithLockError(), WithLockError, "holds a lock"),
        (lambda: NoPickleError("deep"), NoPickleError, "deep"),
        (made_there, KeyError, "MadeThereError: 'deep'"),
        (lambda: TwoError("lost", 3), TwoError, "lost at 3"),
        (lambda: StopIteration(), RuntimeError, "StopIteration"),
        (lambda: UnicodeDecodeError("utf8", b"x", 0, 1, "bad"), UnicodeDecodeError, "bad"),
    ]
    for make, kind, words in cases:
        with in_processes(raising(make), workers=1) as loader:
            batches = loader.iterate()
            assert numbers([next(batches), next(batches)]) == EXPECTED[:2]
            for _ in range(2):  # the step is read again, and fails again
                with pytest.raises(kind) as caught:
                    within(lambda b=batches: next(b))
                assert words in str(caught.value)
                assert caught.value.element.index == 9  # type: ignore[attr-defined]
                assert "in a worker process" in str(caught.value.__cause__)
                assert "Error" in str(caught.value.__cause__) or "Stop" in str(caught.value)


def test_an_error_in_on_error_is_raised_and_the_worker_lives() -> None:
    def refuse(error: Exception) -> Any:
        raise LookupError("no") from error

    with in_processes(raising(lambda: KeyError(1)), workers=1, on_error=refuse) as loader:
        batches = loader.iterate()
        assert numbers([next(batches), next(batches)]) == EXPECTED[:2]
        before = children()
        with pytest.raises(LookupError):
            next(batches)
        assert children() == before


def test_elements_that_do_not_pickle_are_an_error_that_says_so() -> None:
    def make() -> Any:
        for _ in range(8):
            yield threading.Lock()

    stages = [IterableSource(make), HostMapTransform(lambda lock: 1), BatchTransform(4)]
    with (
        DataLoader(stages, workers=2, worker_type="process") as loader,
        pytest.raises(cereal.UsageError, match=r"does not pickle.*worker_type"),
    ):
        list(loader.iterate())


# Hangs


def test_a_hung_batch_function_is_ended() -> None:
    def hang(batch: Any) -> Any:
        if 9 in batch:
            time.sleep(1000)
        return batch

    stages = [list(range(N)), BatchTransform(BATCH), HostMapTransform(hang)]
    expected = [batch for batch in EXPECTED if 9 not in batch]
    with DataLoader(
        stages, workers=2, worker_type="process", timeout=0.5, on_error="skip"
    ) as loader:
        found = [batch for batch in within(lambda: kept(loader.iterate()), 20) if batch]
        assert found == expected


def test_closing_ends_a_worker_that_hangs() -> None:
    def hang(i: int) -> int:
        while True:
            pass

    loader = in_processes(hang)
    batches = loader.iterate()
    time.sleep(0.5)
    began = time.monotonic()
    loader.close()
    assert time.monotonic() - began < 5
    del batches
    assert not children()
    loader.close()  # twice is no harm


# Memory


def test_without_shared_memory_it_goes_on_and_says_so(caplog: Any) -> None:
    spec = jax.ShapeDtypeStruct((50_000,), np.int32)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with in_processes(lambda i: np.full(50_000, i, np.int32), spec=spec) as loader:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, before[1]))  # no file may grow
        try:
            found = [np.asarray(batch)[:, 0].tolist() for batch, _ in loader.iterate()]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert found == EXPECTED
    assert "no shared memory" in caplog.text


# Many at once, left early, forked


def test_leaving_a_loop_early_a_hundred_times() -> None:
    with in_processes(lambda i: i, n=4000) as loader:
        for turn in range(100):
            for step, (batch, _) in enumerate(loader.iterate()):
                assert batch.tolist() == list(range(step * BATCH, step * BATCH + BATCH))
                if step == turn % 4:
                    break
        assert len(children()) <= 2
        assert shared_files() < 40


def test_two_loaders_and_two_iterators_at_once() -> None:
    with in_processes(lambda i: i) as one, in_processes(lambda i: -i) as two:
        turns = zip(one.iterate(), one.iterate(), two.iterate(), strict=True)
        for step, ((a, _), (b, _), (c, _)) in enumerate(turns):
            assert a.tolist() == b.tolist() == [-x for x in c.tolist()] == EXPECTED[step]


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_by_the_user_does_no_harm() -> None:
    with in_processes(slowly) as loader:
        batches = loader.iterate()
        found = [next(batches)[0].tolist()]
        pid = os.fork()
        if pid == 0:  # the child only ends, in the ordinary way of a fork
            with contextlib.suppress(BaseException):
                del batches
                loader.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert found + numbers(batches) == EXPECTED


def test_a_forgotten_loader_leaves_nothing() -> None:
    loader = in_processes(slowly)
    next(iter(loader.iterate()))
    assert children()
    del loader
