"""Elements that hang: a line says which, a timeout makes them errors, and nothing else suffers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
from tests.slowly import slowly
from tests.workers.reading import (
    OwnError,
    chunks,
    kept,
    loader_of,
    numbers,
    until,
    within,
    workers,
)

from cereal import BatchTransform, DataLoader, HostMapTransform, IterableSource
from cereal.host import track

N, BATCH = 24, 4
SOON = 0.3


class Hanging:
    """Reads element i; the bad ones hang until they are released."""

    def __init__(self, *bad: int) -> None:
        self.bad, self.released = set(bad), threading.Event()
        self.threads: list[threading.Thread] = []

    def __call__(self, i: Any) -> Any:
        i = int(i)
        if i in self.bad and not self.released.is_set():
            self.threads.append(threading.current_thread())
            assert self.released.wait(120)
        return i


@pytest.fixture
def hanging() -> Iterator[Callable[..., Hanging]]:
    """Makes them, releases them at the end, and sees that no thread is left."""
    made: list[Hanging] = []

    def make(*bad: int) -> Hanging:
        made.append(Hanging(*bad))
        return made[-1]

    yield make
    for each in made:
        each.released.set()
    stuck = [thread for each in made for thread in each.threads]
    assert until(lambda: not any(thread.is_alive() for thread in stuck), 30), "threads are left"


def good(bad: set[int]) -> list[list[int]]:
    return [[i for i in each if i not in bad] for each in chunks(N, BATCH)]


SLOWLY_1, SLOWLY_4 = (pytest.param(count, marks=pytest.mark.slow) for count in (1, 4))


@pytest.mark.parametrize("count", [2, SLOWLY_1, SLOWLY_4])
@pytest.mark.parametrize(
    "bad", [pytest.param(0, marks=pytest.mark.slow), 9, pytest.param(23, marks=pytest.mark.slow)]
)
def test_a_hung_element_is_an_error_and_the_rest_follows(
    count: int, bad: int, hanging: Callable[..., Hanging]
) -> None:
    read = hanging(bad)
    loader = loader_of(read, N, BATCH, workers=count, prefetch=2, timeout=SOON)

    def run() -> list[Any]:
        iterator = loader.iterate(loader.init_state(0))
        found = [next(iterator)[0].tolist() for _ in range(bad // BATCH)]
        for _ in range(2):
            with pytest.raises(TimeoutError, match="not read in") as raised:
                next(iterator)
            assert raised.value.element.index == bad  # type: ignore[attr-defined]
            assert int(iterator.state.words[4]) == bad // BATCH * BATCH
        read.bad.clear()
        return found + numbers(iterator)

    assert within(run) == chunks(N, BATCH)


@pytest.mark.parametrize("count", [2, SLOWLY_1, SLOWLY_4])
@pytest.mark.parametrize(
    "bad",
    [
        pytest.param({5}, marks=pytest.mark.slow),
        slowly({4, 5, 6, 7}),
        {0, 9, 10, 23},
        pytest.param({0, 1, 2}, marks=pytest.mark.slow),
    ],
)
def test_hung_elements_are_skipped_alone(
    count: int, bad: set[int], hanging: Callable[..., Hanging]
) -> None:
    loader = loader_of(
        hanging(*bad), N, BATCH, workers=count, prefetch=2, timeout=SOON, on_error="skip"
    )
    assert within(lambda: kept(loader.iterate(loader.init_state(0)))) == good(bad)
    assert loader.skipped == len(bad)


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_many_hung_elements_of_one_batch_take_no_thread_for_good(
    count: int, hanging: Callable[..., Hanging]
) -> None:
    bad = {0, 2, 4, 6, 8, 10, 12, 14}
    loader = loader_of(
        hanging(*bad), 32, 16, workers=count, prefetch=2, timeout=0.2, on_error="skip"
    )
    found = within(lambda: kept(loader.iterate(loader.init_state(0))))
    assert found == [[i for i in each if i not in bad] for each in chunks(32, 16)]
    assert loader.skipped == len(bad)


def test_a_policy_replaces_hung_elements(hanging: Callable[..., Hanging]) -> None:
    met: list[Any] = []

    def policy(error: Any) -> Any:
        met.append((type(error), error.element.index))
        return -1

    loader = loader_of(hanging(6, 13), N, BATCH, workers=2, timeout=SOON, on_error=policy)
    found = within(lambda: kept(loader.iterate(loader.init_state(0))))
    assert found == [[-1 if i in (6, 13) else i for i in each] for each in chunks(N, BATCH)]
    assert met == [(TimeoutError, 6), (TimeoutError, 13)]


def test_elements_beside_a_hung_one_are_counted_once(hanging: Callable[..., Hanging]) -> None:
    hang = hanging(6)

    def read(i: int) -> int:
        if i == 4:
            raise OwnError
        return hang(i)

    loader = loader_of(read, N, BATCH, workers=1, timeout=SOON, on_error="skip")
    assert within(lambda: kept(loader.iterate(loader.init_state(0)))) == good({4, 6})
    assert loader.skipped == 2


@pytest.mark.parametrize("on_error", ["raise", slowly("skip")])
def test_the_element_that_hangs_is_blamed_and_not_one_that_is_being_read(
    on_error: Any, hanging: Callable[..., Hanging]
) -> None:
    hang = hanging(0)

    def read(i: int) -> int:
        if 0 < i < 16:
            time.sleep(0.12)
        return hang(i)

    loader = loader_of(read, 16, 16, workers=2, prefetch=1, timeout=0.7, on_error=on_error)
    run = lambda: kept(loader.iterate(loader.init_state(0)))  # noqa: E731
    if on_error == "raise":
        with pytest.raises(TimeoutError) as raised:
            within(run)
        assert raised.value.element.index == 0  # type: ignore[attr-defined]
    else:
        assert within(run) == [list(range(1, 16))]


@pytest.mark.slow  # it waits
def test_a_batch_of_many_elements_may_take_longer_than_the_timeout_of_one() -> None:
    def read(i: int) -> int:
        time.sleep(0.08)
        return i

    loader = loader_of(read, 32, 16, workers=1, prefetch=1, timeout=0.6, on_error="skip")
    assert within(lambda: kept(loader.iterate(loader.init_state(0)))) == chunks(32, 16)
    assert loader.skipped == 0


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_hung_function_over_batches_skips_its_batch(
    count: int, hanging: Callable[..., Hanging]
) -> None:
    hang = hanging(8)

    def double(batch: Any) -> Any:
        hang(batch[0])
        return batch * 2

    loader = loader_of(
        lambda i: i,
        N,
        BATCH,
        HostMapTransform(double),
        workers=count,
        timeout=SOON,
        on_error="skip",
    )
    found = within(lambda: kept(loader.iterate(loader.init_state(0))))
    assert found == [[] if c[0] == 8 else [2 * i for i in c] for c in chunks(N, BATCH)]


def test_a_hung_function_over_batches_is_an_error(hanging: Callable[..., Hanging]) -> None:
    hang = hanging(8)

    def double(batch: Any) -> Any:
        hang(batch[0])
        return batch * 2

    stage = HostMapTransform(double)
    loader = loader_of(lambda i: i, N, BATCH, stage, workers=2, timeout=SOON)
    with pytest.raises(TimeoutError) as raised:
        within(lambda: list(loader.iterate(loader.init_state(0))))
    assert raised.value.element.stage == "HostMapTransform(double)"  # type: ignore[attr-defined]


@pytest.mark.parametrize("road", ["scan_epoch", slowly("next_batch"), "jit"])
def test_hung_elements_are_skipped_by_every_road(
    road: str, hanging: Callable[..., Hanging]
) -> None:
    bad = {5, 14}
    loader = loader_of(
        hanging(*bad), N, BATCH, workers=2, prefetch=2, timeout=SOON, on_error="skip"
    )
    keep = lambda carry, batch, mask: (carry, (batch, mask))  # noqa: E731

    def run() -> Any:
        state = loader.init_state(0)
        if road == "scan_epoch":
            return zip(*loader.scan_epoch(state, 0, keep)[2], strict=True)
        if road == "jit":
            inside = jax.jit(lambda loader, state: loader.scan_epoch(state, 0, keep)[2])
            return zip(*jax.block_until_ready(inside(loader, state)), strict=True)
        found = []
        for _ in range(6):
            batch, state, mask = loader.next_batch(state)
            found.append((batch, mask))
        return found

    assert kept(within(run)) == good(bad)


def test_an_iterator_that_hangs_times_out_too(hanging: Callable[..., Hanging]) -> None:
    hang = hanging(6)
    source = IterableSource(lambda: (hang(i) for i in range(N)), length=N)
    loader = DataLoader([source, BatchTransform(BATCH)], workers=2, prefetch=2, timeout=SOON)
    iterator = loader.iterate(loader.init_state(0))
    assert within(lambda: next(iterator))[0].tolist() == [0, 1, 2, 3]
    with pytest.raises(TimeoutError):
        within(lambda: next(iterator))
    hang.released.set()
    assert within(lambda: numbers(iterator)) == chunks(N, BATCH, 4)


def test_a_loader_whose_threads_hang_for_an_iterator_that_is_gone_reads_for_the_next(
    hanging: Callable[..., Hanging],
) -> None:
    read = hanging(5)
    loader = loader_of(read, N, BATCH, workers=1, prefetch=4)
    iterator = loader.iterate(loader.init_state(0))
    next(iterator)
    assert until(lambda: bool(read.threads))
    iterator.close()
    read.bad.clear()
    assert within(lambda: numbers(loader.iterate(loader.init_state(0))), 20) == chunks(N, BATCH)


def test_an_iterator_times_out_when_all_threads_hang_for_another_one(
    hanging: Callable[..., Hanging],
) -> None:
    read = hanging(4, 8)
    loader = loader_of(read, N, BATCH, workers=2, prefetch=4, timeout=SOON)
    first, second = (loader.iterate(loader.init_state(0)) for _ in range(2))
    next(first)
    assert until(lambda: len(read.threads) == 2)
    assert within(lambda: next(second), 20)[0].tolist() == [0, 1, 2, 3]
    first.close()
    second.close()


# The line that says what is being waited for


@pytest.mark.parametrize("count", [1, 3])
def test_one_line_says_what_is_late(
    count: int,
    hanging: Callable[..., Hanging],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(track, "LATE", 0.1)
    read = hanging(9)
    loader = loader_of(read, N, BATCH, workers=count, prefetch=2)

    def release() -> None:
        assert until(lambda: bool(lines()))
        time.sleep(0.3)
        read.released.set()

    def lines() -> list[str]:
        return [each.getMessage() for each in caplog.records if "waiting for" in each.getMessage()]

    with caplog.at_level(logging.WARNING, "cereal"):
        helper = threading.Thread(target=release)
        helper.start()
        assert within(lambda: numbers(loader.iterate(loader.init_state(0)))) == chunks(N, BATCH)
        helper.join()
    assert len(lines()) == 1, "once for a batch"
    assert "DiskSampleSource" in lines()[0]
    assert "element 9 of epoch 0" in lines()[0]


def test_no_line_is_written_while_nothing_is_late(caplog: pytest.LogCaptureFixture) -> None:
    loader = loader_of(lambda i: i, workers=2)
    with caplog.at_level(logging.WARNING, "cereal"):
        list(loader.iterate(loader.init_state(0)))
    assert not [record for record in caplog.records if record.name == "cereal"]


@pytest.mark.parametrize("timeout", [float("inf"), 1e12, 60, np.float64(60)])
def test_a_timeout_may_be_long(
    timeout: float, hanging: Callable[..., Hanging], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(track, "LATE", 0.05)
    read = hanging(5)
    loader = loader_of(read, N, BATCH, workers=1, timeout=timeout)
    timer = threading.Timer(0.4, read.released.set)
    timer.start()
    assert within(lambda: numbers(loader.iterate(loader.init_state(0)))) == chunks(N, BATCH)
    timer.join()


def test_no_thread_is_left_when_what_hung_is_released(hanging: Callable[..., Hanging]) -> None:
    read = hanging(3, 8, 13)
    loader = loader_of(read, N, BATCH, workers=2, timeout=0.2, on_error="skip")
    assert within(lambda: kept(loader.iterate(loader.init_state(0)))) == good({3, 8, 13})
    loader.close()
    read.released.set()
    assert until(lambda: not workers(), 30)


def test_a_slow_iterator_is_not_taken_for_a_hung_one_and_a_hung_one_is_named() -> None:
    gate = threading.Event()

    def slowly() -> Any:
        for i in range(12):
            gate.wait(0.1 if i < 8 else 60)
            yield i

    loader = DataLoader(
        [IterableSource(slowly, length=12), BatchTransform(8)], workers=1, prefetch=1, timeout=0.5
    )
    with loader:
        batches = loader.iterate(loader.init_state(0))
        assert next(batches)[0].tolist() == list(range(8))
        with pytest.raises(TimeoutError) as raised:
            next(batches)
        gate.set()
    error: Any = raised.value
    assert error.element.index == 8
