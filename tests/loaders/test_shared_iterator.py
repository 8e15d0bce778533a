"""Threads that share an iterator take turns: every batch goes to one of them."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
from tests.pipeline.counter import Counter

import cereal
from cereal import (
    BatchTransform,
    DataLoader,
    DiskSampleSource,
    HostCallbackTransform,
    IterableSource,
    MapTransform,
    RangeSource,
)

N, B = 600, 3


def watched(batch: Any, mask: Any) -> None:
    del batch, mask


def same(x: Any) -> Any:
    return x


def numpy_of(i: int) -> Any:
    return np.int32(i)


PIPELINES: dict[str, Callable[[], list[Any]]] = {
    "arrays": lambda: [RangeSource(N), BatchTransform(B)],
    "map": lambda: [RangeSource(N), MapTransform(same), BatchTransform(B)],
    "callback": lambda: [RangeSource(N), BatchTransform(B), HostCallbackTransform(watched)],
    "stream": lambda: [Counter(N), BatchTransform(B)],
    "disk": lambda: [DiskSampleSource(N, numpy_of, ordering="sequential"), BatchTransform(B)],
    "iterable": lambda: [IterableSource(lambda: map(np.int32, range(N))), BatchTransform(B)],
}


@pytest.fixture
def threads_switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_a_thread_that_comes_when_all_is_taken_is_not_warned() -> None:
    loader = DataLoader([RangeSource(4), BatchTransform(2)])
    batches = loader.iterate()
    assert len(list(batches)) == 2
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(list(batches)))  # warnings are errors
    thread.start()
    thread.join()
    assert seen == [[]]


@pytest.mark.usefixtures("threads_switch_often")
@pytest.mark.parametrize("kind", PIPELINES)
def test_no_batch_is_lost_or_given_twice(kind: str) -> None:
    with DataLoader(PIPELINES[kind]()) as loader:
        batches = loader.iterate(loader.init_state(0))
        got: list[list[int]] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                for batch, _ in batches:
                    got.append(batch.tolist())
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        after = batches.state
    assert not errors
    assert sorted(itertools.chain(*got)) == list(range(N))
    if isinstance(after, cereal.PipelineState):
        assert (int(after.epoch), int(after.offset)) == (1, 0)


@pytest.mark.usefixtures("threads_switch_often")
@pytest.mark.parametrize("kind", ["arrays", "callback", "disk"])
def test_a_state_is_always_one_that_a_batch_ended_at(kind: str) -> None:
    with DataLoader(PIPELINES[kind]()) as loader:
        batches = loader.iterate(loader.init_state(0))
        done, seen = threading.Event(), set()

        def look() -> None:
            while not done.is_set():
                state = batches.state
                seen.add((*np.asarray(state.key).tolist(), int(state.epoch), int(state.offset)))

        watcher = threading.Thread(target=look)
        watcher.start()
        for _ in range(20):
            next(batches)
        batches.state = loader.state_at(7, 100)
        for _ in range(20):
            next(batches)
        done.set()
        watcher.join()
    first = {(0, 0, 0, step * B) for step in range(21)}
    second = {(0, 7, 0, (100 + step) * B) for step in range(21)}
    assert seen <= first | second


def test_a_function_of_a_stage_that_asks_its_own_iterator_is_refused() -> None:
    holder: list[Any] = []

    def greedy(i: int) -> Any:
        return np.int32(i) if not holder else next(holder[0])

    source = DiskSampleSource(9, greedy, jax.ShapeDtypeStruct((), np.int32), ordering="sequential")
    loader = DataLoader([source, BatchTransform(3)], workers=0)
    batches = loader.iterate()
    holder.append(batches)
    with pytest.raises(cereal.UsageError, match="already making a batch, and something that runs"):
        next(batches)
    holder.clear()
    assert [batch.tolist() for batch, _ in batches] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_a_function_of_a_stage_may_look_at_the_state() -> None:
    holder: list[Any] = []
    seen: list[int] = []

    def curious(i: int) -> Any:
        if holder:
            seen.append(int(holder[0].state.words[4]))
        return np.int32(i)

    source = DiskSampleSource(9, curious, jax.ShapeDtypeStruct((), np.int32), ordering="sequential")
    with DataLoader([source, BatchTransform(3)], workers=1, prefetch=1) as loader:
        batches = loader.iterate()
        holder.append(batches)
        assert len(list(batches)) == 3
    assert len(seen) == 9
    assert set(seen) <= {0, 3, 6}
