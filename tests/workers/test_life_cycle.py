"""How reading ends: left early, closed, forgotten, after errors; nothing stays behind."""

from __future__ import annotations

import copy
import gc
import itertools
import os
import pickle
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.workers.reading import (
    INT,
    OwnError,
    chunks,
    loader_of,
    numbers,
    until,
    workers,
)

import cereal
from cereal import BatchTransform, DataLoader, DiskSampleSource, HostMapTransform, MemmapSource

N, BATCH = 24, 4


def same(i: int) -> int:
    return i


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_leaving_a_loop_early_a_hundred_times_leaves_no_thread() -> None:
    loader = loader_of(same, 4000, BATCH, workers=4, prefetch=3, worker_type="thread")
    before = descriptors()
    for turn in range(100):
        for step, (batch, _) in enumerate(loader.iterate(loader.init_state(0))):
            assert batch.tolist() == chunks(4000, BATCH)[step]
            if step == turn % 5:
                break
        assert len(workers()) <= 4
    assert until(lambda: not workers(), 20)
    assert descriptors() <= before + 4


def test_new_loaders_a_hundred_times_leave_no_thread() -> None:
    for _ in range(100):
        loader = loader_of(same, 400, BATCH, workers=2, prefetch=2)
        next(loader.iterate(loader.init_state(0)))
        del loader
    gc.collect()
    assert until(lambda: not workers(), 20)


def test_an_error_in_the_training_step_leaves_the_place_and_no_thread() -> None:
    loader = loader_of(same, N, BATCH, workers=2, prefetch=2)
    iterator = loader.iterate(loader.init_state(0))
    found = []

    def train() -> None:
        for batch, _ in iterator:
            found.append(batch.tolist())
            if len(found) == 3:
                raise OwnError

    with pytest.raises(OwnError):
        train()
    assert int(iterator.state.words[4]) == 12
    found += numbers(iterator)
    assert found == chunks(N, BATCH)
    assert until(lambda: not workers(), 20)


def test_the_end_of_a_loop_leaves_no_thread() -> None:
    loader = loader_of(same, N, BATCH, workers=4, prefetch=2)
    iterator = loader.iterate(loader.init_state(0))
    assert numbers(iterator) == chunks(N, BATCH)
    assert not workers()
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(iterator)


@pytest.mark.parametrize("road", ["scan_epoch", "next_batch", "jit"])
def test_other_roads_leave_no_thread(road: str) -> None:
    loader = loader_of(same, N, BATCH, workers=2, prefetch=2)
    keep = lambda carry, batch, mask: (carry, batch)  # noqa: E731
    state = loader.init_state(0)
    if road == "scan_epoch":
        assert loader.scan_epoch(state, 0, keep)[2].tolist() == chunks(N, BATCH)
    elif road == "jit":
        inside = jax.jit(lambda loader, state: loader.scan_epoch(state, 0, keep)[2])
        assert inside(loader, state).tolist() == chunks(N, BATCH)
    else:
        for expected in chunks(N, BATCH):
            batch, state, _ = loader.next_batch(state)
            assert batch.tolist() == expected
    loader.close()
    assert until(lambda: not workers(), 20)


def test_with_ends_the_threads_of_all_iterators() -> None:
    with loader_of(same, 400, BATCH, workers=2, prefetch=2) as loader:
        iterators = [loader.iterate(loader.init_state(0)) for _ in range(3)]
        for iterator in iterators:
            next(iterator)
        assert workers()
    assert not workers()
    for iterator in iterators:
        with pytest.raises(RuntimeError, match="closed"):
            list(iterator)
    assert numbers(itertools.islice(loader.iterate(loader.init_state(0)), 2)) == chunks(8, 4)
    loader.close()
    loader.close()


def test_with_an_iterator_ends_its_threads_after_an_error_too() -> None:
    loader = loader_of(same, 400, BATCH, workers=2, prefetch=2)

    def train() -> None:
        with loader.iterate(loader.init_state(0)) as iterator:
            next(iterator)
            raise OwnError

    with pytest.raises(OwnError):
        train()
    assert not workers()


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_closed_iterator_goes_on_where_it_was_or_says_that_it_is_closed(
    count: int, taken: int
) -> None:
    loader = loader_of(same, N, BATCH, workers=count, prefetch=2)
    iterator = loader.iterate(loader.init_state(0))
    found = numbers(itertools.islice(iterator, taken))
    before = np.asarray(iterator.state.words).tolist()
    iterator.close()
    iterator.close()
    assert np.asarray(iterator.state.words).tolist() == before
    try:
        found += numbers(iterator)
    except RuntimeError as error:
        said = str(error)
    else:
        said = "closed" if found == chunks(N, BATCH) else f"{found}"
    assert "closed" in said


@pytest.mark.parametrize("count", [0, 2])
def test_a_state_that_is_refused_leaves_the_iterator_where_it_was(count: int) -> None:
    loader = loader_of(same, N, BATCH, workers=count, prefetch=2)
    other = DataLoader([cereal.RangeSource(99), BatchTransform(3)])
    iterator = loader.iterate(loader.init_state(0))
    found = numbers(itertools.islice(iterator, 2))
    with pytest.raises(cereal.CerealError):
        iterator.state = other.init_state(0)
    assert found + numbers(iterator) == chunks(N, BATCH)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_the_state_can_be_set_in_mid_way(count: int) -> None:
    loader = loader_of(same, N, BATCH, workers=count, prefetch=3)
    iterator = loader.iterate(loader.init_state(0))
    for begin in (0, 3, 1, 5, 2, 0):
        iterator.state = loader.state_at(0, begin)
        assert numbers(itertools.islice(iterator, 2)) == chunks(N, BATCH)[begin : begin + 2]
    iterator.state = loader.state_at(0, 4)
    assert numbers(iterator) == chunks(N, BATCH)[4:]
    iterator.state = loader.state_at(0, 3)
    assert numbers(iterator) == chunks(N, BATCH)[3:]


def test_states_may_be_donated() -> None:
    loader = loader_of(same, N, BATCH, workers=2)
    use = jax.jit(lambda state: state.replaced(state.words + 0), donate_argnums=0)
    state = loader.init_state(0)
    iterator = loader.iterate(state)
    use(state)
    found = []
    for batch, _ in iterator:
        found.append(batch.tolist())
        use(iterator.state)
    assert found == chunks(N, BATCH)


def test_an_iterator_in_a_cycle_is_collected_with_its_threads() -> None:
    loader = loader_of(same, 4000, BATCH, workers=2, prefetch=2)
    gone = []
    for _ in range(5):
        iterator: Any = loader.iterate(loader.init_state(0))
        next(iterator)
        iterator.me = iterator
        gone.append(weakref.ref(iterator))
        del iterator
    # `gc.collect` does nothing while another thread collects.
    assert until(lambda: gc.collect() >= 0 and all(each() is None for each in gone), 20)
    assert until(lambda: not workers(), 20)


def test_a_loader_in_a_cycle_with_its_function_is_collected() -> None:
    class Holder:
        loader: Any = None

        def read(self, i: int) -> int:
            return i

    holder = Holder()
    holder.loader = loader_of(holder.read, 4000, BATCH, workers=2, prefetch=2)
    iterator: Any = holder.loader.iterate(holder.loader.init_state(0))
    next(iterator)
    iterator.me = iterator
    gone = weakref.ref(holder)
    del holder, iterator
    until(lambda: gc.collect() == 0 and gone() is None, 5)
    assert gone() is None
    assert until(lambda: not workers(), 20)


def test_what_was_read_ahead_is_freed_with_the_iterator() -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()

    class Big:
        def __init__(self, i: int) -> None:
            self.i = i
            alive.add(self)

        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return np.asarray(self.i, np.int32)

    loader = loader_of(Big, 400, BATCH, workers=2, prefetch=4)
    iterator = loader.iterate(loader.init_state(0))
    next(iterator)
    iterator.close()
    gc.collect()
    assert until(lambda: len(alive) == 0, 20)


# Several at once


def test_iterators_of_one_loader_do_not_disturb_each_other() -> None:
    loader = loader_of(same, N, BATCH, workers=2, prefetch=2)
    iterators = [loader.iterate(loader.state_at(0, step)) for step in range(4)]
    found: list[list[Any]] = [[] for _ in iterators]
    for turn in range(40):
        which = (turn * 7) % 4
        found[which] += numbers(itertools.islice(iterators[which], 1 + turn % 2))
    for which, iterator in enumerate(iterators):
        assert found[which] + numbers(iterator) == chunks(N, BATCH)[which:]
    assert not workers()


def test_iterators_in_several_threads_do_not_disturb_each_other() -> None:
    loader = loader_of(same, 200, BATCH, workers=3, prefetch=2)
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        found[number] = numbers(loader.iterate(loader.init_state(number), epochs=2))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert all(found[number] == chunks(200, BATCH) * 2 for number in range(6))
    assert until(lambda: not workers(), 20)


def test_several_loaders_at_once() -> None:
    loaders = [loader_of(lambda i, k=k: i + k, N, BATCH, workers=2) for k in range(5)]
    walks = zip(*(loader.iterate(loader.init_state(0)) for loader in loaders), strict=True)
    for step, pairs in enumerate(walks):
        for k, (batch, _) in enumerate(pairs):
            assert batch.tolist() == [i + k for i in chunks(N, BATCH)[step]]
    assert until(lambda: not workers(), 20)


def test_one_iterator_shared_by_threads_gives_every_batch_once() -> None:
    loader = loader_of(same, 400, BATCH, workers=2, prefetch=2)
    iterator, lock, found = loader.iterate(loader.init_state(0)), threading.Lock(), []

    def work() -> None:
        while True:
            with lock:
                pair = next(iterator, None)
            if pair is None:
                return
            found.append(pair[0].tolist())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == chunks(400, BATCH)


def test_closing_a_loader_wakes_who_waits_for_it() -> None:
    release, begun = threading.Event(), threading.Event()

    def read(i: int) -> int:
        begun.set()
        assert release.wait(120)
        return i

    loader = loader_of(read, 400, BATCH, workers=1, prefetch=1)
    first, second = (loader.iterate(loader.init_state(0)) for _ in range(2))
    ended: list[Any] = []

    def wait(iterator: Any) -> None:
        try:
            ended.append(next(iterator))
        except RuntimeError as error:
            ended.append(error)

    threads = [threading.Thread(target=wait, args=(it,), daemon=True) for it in (first, second)]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    tracks = loader.running.service.crew._tracks  # type: ignore[attr-defined]
    assert until(lambda: len(tracks) == 2 and all(each._wanted for each in tracks))
    time.sleep(0.2)
    loader.close()
    release.set()
    assert until(lambda: len(ended) == 2, 20), "it waits for ever"


def test_asking_twice_for_every_state_does_not_gather_walks() -> None:
    loader = loader_of(same, 4000, BATCH, workers=2, prefetch=2)
    state = loader.init_state(0)
    for step in range(60):
        first, _, _ = loader.next_batch(state)
        again, state, _ = loader.next_batch(state)
        assert first.tolist() == again.tolist() == chunks(4000, BATCH)[step]
    tracks = loader.running.service.crew._tracks  # type: ignore[attr-defined]
    assert len(tracks) <= 16
    loader.close()


def test_states_from_everywhere_do_not_gather_walks() -> None:
    loader = loader_of(same, 4000, BATCH, workers=2, prefetch=2)
    for step in range(100):
        batch, state, _ = loader.next_batch(loader.state_at(0, 7 * step))
        assert batch.tolist() == chunks(4000, BATCH)[7 * step]
        assert loader.next_batch(state)[0].tolist() == chunks(4000, BATCH)[7 * step + 1]
    tracks = loader.running.service.crew._tracks  # type: ignore[attr-defined]
    assert len(tracks) <= 16
    loader.close()
    assert until(lambda: not workers(), 20)


# Copies


@pytest.mark.parametrize("way", ["pickle", "deepcopy", "copy"])
def test_a_copy_of_a_loader_reads_for_itself(way: str) -> None:
    source = DiskSampleSource(N, same, sample_spec=INT, ordering="sequential")
    options: dict[str, Any] = {"workers": 2, "prefetch": 3, "on_error": "skip", "timeout": 30}
    loader = DataLoader([source, HostMapTransform(abs), BatchTransform(BATCH)], **options)
    iterator = loader.iterate(loader.init_state(0))
    found = numbers(itertools.islice(iterator, 2))
    ways: dict[str, Any] = {
        "pickle": lambda x: pickle.loads(pickle.dumps(x)),
        "deepcopy": copy.deepcopy,
        "copy": copy.copy,
    }
    other = ways[way](loader)
    assert numbers(other.iterate(other.init_state(0))) == chunks(N, BATCH)
    assert numbers(other.iterate(iterator.state)) == chunks(N, BATCH)[2:]
    assert repr(other) == repr(loader)
    if way != "copy":
        other.close()
    assert found + numbers(iterator) == chunks(N, BATCH)


def test_a_memmap_is_read_by_the_caller_and_leaves_no_descriptor(tmp_path: Path) -> None:
    cereal.save_arrays(tmp_path / "a", np.arange(N, dtype=np.int32))
    before = descriptors()
    for _ in range(20):
        loader = DataLoader(
            [MemmapSource(tmp_path / "a", ordering="sequential"), BatchTransform(4)]
        )
        assert numbers(loader.iterate(loader.init_state(0))) == chunks(N, 4)
        assert not workers()
        del loader
    gc.collect()
    assert descriptors() <= before + 4
