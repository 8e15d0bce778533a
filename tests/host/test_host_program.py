"""Host data in programs: any position, any order, any leaves, any number of callers."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.functions.programs import spread

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    DatasetSource,
    DiskSampleSource,
    HostMapTransform,
    MixSource,
    SliceSource,
    WeightedSampling,
)
from cereal.workers import read_service

pytestmark = pytest.mark.optimized

N, B = 30, 4
GUARD = 60.0


def square(i: int) -> np.int32:
    return np.int32(i * i)


def make(fn: Callable[[int], Any] = square, ordering: Any = "sequential", **options: Any) -> Any:
    options = {"workers": 2, "prefetch": 2, **options}
    return DataLoader([DiskSampleSource(N, fn, ordering=ordering), BatchTransform(B)], **options)


def at(step: int, n: int = N) -> list[int]:
    """The squares of a step, in order."""
    return [(i % n) ** 2 for i in range(step * B, (step + 1) * B)]


def tracks_of(loader: Any) -> int:
    return len(loader.running.service.crew._tracks)


# Positions


@pytest.mark.parametrize("places", [[5, 4, 3, 2, 1, 0], [0, 9, 0, 9, 0], [3, 3, 3], [0, 2, 1, 3]])
@pytest.mark.parametrize("workers", [0, 1])
def test_any_position_may_be_asked_for_at_any_time(places: list[int], workers: int) -> None:
    with make(workers=workers) as loader:
        step = jax.jit(loader.next_batch)
        for place in places:
            batch, after, mask = step(loader.state_at(0, place))
            assert batch.tolist() == at(place)
            assert mask.all()
            assert np.asarray(after.words).tolist() == loader.state_at(0, place + 1).words.tolist()


def test_two_programs_walk_one_loader_by_turns() -> None:
    with make() as loader:
        first, second = (jax.jit(lambda s, k=k: (loader.next_batch(s), k)[0]) for k in range(2))
        one, two = loader.init_state(0), loader.state_at(0, 6)
        for turn in range(5):
            batch, one, _ = first(one)
            assert batch.tolist() == at(turn)
            batch, two, _ = second(two)
            assert batch.tolist() == at(6 + turn)


def test_one_loader_twice_and_another_one_in_one_program() -> None:
    with make() as squares, make(lambda i: np.int32(-i)) as negatives:

        @jax.jit
        def step(squares: Any, negatives: Any, states: Any) -> Any:
            a, first, _ = squares.next_batch(states[0])
            b, _, _ = squares.next_batch(states[0])
            c, second, _ = squares.next_batch(states[1])
            d, third, _ = negatives.next_batch(states[2])
            return (a, b, c, d), (first, second, third)

        states = squares.init_state(0), squares.state_at(0, 3), negatives.init_state(0)
        for turn in range(4):
            (a, b, c, d), states = step(squares, negatives, states)
            assert a.tolist() == b.tolist() == at(turn)
            assert c.tolist() == at(3 + turn)
            assert d.tolist() == [-(i % N) for i in range(turn * B, turn * B + B)]


def test_programs_and_python_loops_share_a_loader() -> None:
    with make() as loader:
        step, state = jax.jit(loader.next_batch), loader.init_state(0)
        iterator, outside = loader.iterate(epochs=None), loader.init_state(0)
        for turn in range(9):
            batch, state, _ = step(state)
            assert batch.tolist() == at(turn)
            assert next(iterator)[0].tolist() == at(turn)
            batch, outside, _ = loader.next_batch(outside)
            assert batch.tolist() == at(turn)


# Orders whose leaves are arguments

PLACES = np.array([7, 3, 3, 11, 0, 29, 5, 8, 20])


def pipelines() -> dict[str, Any]:
    numbers = [np.int32(i * i) for i in range(N)]
    source = DatasetSource(numbers)
    return {
        "a list of indices": DatasetSource(numbers, ordering=PLACES),
        "weights": DatasetSource(numbers, ordering=WeightedSampling(np.arange(1.0, N + 1))),
        "a slice": SliceSource(source, PLACES.tolist(), ordering="shuffle"),
        "a mixture": MixSource([source, SliceSource(source, PLACES.tolist())], (2, 1)),
        "a part": cereal.split(source, (0.5, 0.5), key=3)[1],
    }


NAMES = list(pipelines())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("workers", [0, 2])
def test_orders_with_tables_are_the_same_inside_and_outside(name: str, workers: int) -> None:
    with DataLoader([pipelines()[name], BatchTransform(B)], workers=workers) as loader:
        passed = jax.jit(lambda loader, state: loader.next_batch(state))
        captured = jax.jit(loader.next_batch)
        one = two = loader.init_state(5)
        for number, (batch, _) in enumerate(loader.iterate(loader.init_state(5), steps=6)):
            found, one, _ = passed(loader, one)
            assert found.tolist() == batch.tolist()
            found, two, _ = captured(two)
            assert found.tolist() == batch.tolist()
            if name == "a list of indices":
                rows = np.arange(number * B, number * B + B) % len(PLACES)
                assert batch.tolist() == (PLACES[rows] ** 2).tolist()


def roads(loader: Any, steps: int) -> dict[str, list[list[int]]]:
    """The first batches of key 0, by every road."""
    start = loader.init_state(0)
    passed = jax.jit(lambda loader, state: loader.next_batch(state))
    inside, outside, one, two = [], [], start, start
    for _ in range(steps):
        batch, one, _ = passed(loader, one)
        inside.append(batch.tolist())
        batch, two, _ = loader.next_batch(two)
        outside.append(batch.tolist())
    body = lambda carry, batch, mask: (carry, batch)  # noqa: E731
    scan = jax.jit(lambda loader, state: loader.scan_epoch(state, 0, body, steps=steps)[2])
    return {
        "jit": inside,
        "next_batch": outside,
        "iterate": [b.tolist() for b, _ in loader.iterate(start, steps=steps)],
        "scan_epoch": loader.scan_epoch(start, 0, body, steps=steps)[2].tolist(),
        "scan_epoch in jit": scan(loader, start).tolist(),
        "evaluate": [[round(float(cereal.evaluate(loader, lambda b: b * 1.0)))]],
    }


ROADS = ["jit", "next_batch", "iterate", "scan_epoch", "scan_epoch in jit", "evaluate"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_with_another_order_than_it_was_built_with_reads_that(workers: int) -> None:
    source = DatasetSource([i * i for i in range(N)], ordering=PLACES)
    with DataLoader([source, BatchTransform(3)], workers=workers) as loader:
        assert set(roads(loader, 3)) == set(ROADS)
        other: Any = jax.tree.map(lambda x: x[::-1] + 0, loader)
        found = roads(other, 3)
    truth = (PLACES[::-1].reshape(3, 3) ** 2).tolist()
    mean = [[round(float((PLACES.astype(float) ** 2).mean()))]]
    wrong = {road for road in ROADS[:-1] if found[road] != truth}
    assert not wrong
    assert found["evaluate"] == mean


@pytest.mark.parametrize("workers", [0, 1])
def test_arrays_below_a_host_stage_are_no_leaves_and_all_roads_read_them(workers: int) -> None:
    source = ArraySampleSource(np.arange(12, dtype=np.int32), ordering="sequential")
    stages = [HostMapTransform(lambda x: x * 2), BatchTransform(4)]
    with DataLoader([source, *stages], workers=workers) as loader:
        assert not jax.tree.leaves(loader)
        other: Any = jax.tree.map(lambda x: x + 100, loader)
        found = roads(other, 3)
    truth = (2 * np.arange(12)).reshape(3, 4).tolist()
    wrong = {road for road in ROADS[:-1] if found[road] != truth}
    assert not wrong
    assert found["evaluate"] == [[11]]


def test_a_source_without_a_loader_is_read_in_a_program_with_its_own_leaves() -> None:
    source = BatchTransform(3)(DatasetSource([i * i for i in range(N)], ordering=PLACES))
    other: Any = jax.tree.map(lambda x: x[::-1] + 0, source)
    step = jax.jit(lambda source, state: source.next(state)[0])
    assert step(source, source.init_state(0)).tolist() == (PLACES[:3] ** 2).tolist()
    assert step(other, other.init_state(0)).tolist() == (PLACES[::-1][:3] ** 2).tolist()
    keys = jax.random.split(jax.random.key(0), 2)
    many = jax.vmap(lambda s: source.next(s)[0])(jax.vmap(source.init_state)(keys))
    assert many.tolist() == [(PLACES[:3] ** 2).tolist()] * 2


# Many callers


def run_all(jobs: list[Callable[[], None]]) -> None:
    """Runs them in threads of their own; raises what one raised."""
    errors: list[BaseException] = []

    def guarded(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    end = time.monotonic() + GUARD
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "a caller hangs"
    if errors:
        raise errors[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_threads_call_one_program_at_the_same_and_at_other_positions(workers: int) -> None:
    with make(ordering="shuffle", workers=workers) as loader:
        step = jax.jit(loader.next_batch)
        step(loader.init_state(0))

        def job(key: int) -> None:
            state = loader.init_state(key)
            for number in range(8):
                batch, state, _ = step(state)
                assert batch.tolist() == (loader.indices_at(key, number) ** 2).tolist()

        run_all([lambda key=key: job(key) for key in (0, 0, 1, 1, 2, 3)])


@pytest.mark.slow
def test_more_callers_at_once_than_walks_are_remembered() -> None:
    many = read_service._MOST_WALKS + 24
    together = threading.Barrier(many, timeout=GUARD)
    with make(ordering="shuffle", workers=1) as loader:
        step = jax.jit(loader.next_batch)
        step(loader.init_state(0))

        def job(key: int) -> None:
            state = loader.init_state(key)
            together.wait()
            for number in range(3):
                batch, state, mask = step(state)
                assert batch.tolist() == (loader.indices_at(key, number) ** 2).tolist()
                assert mask.all()

        run_all([lambda key=key: job(key) for key in range(many)])


def test_callers_outside_of_programs_that_overtake_each_other_get_their_own_position(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread at step 2 has found its walk, and the one at step 3 comes first."""
    found, waits, overtaken = {}, threading.Event(), threading.Event()
    take = read_service._Walk.take

    def paused(walk: Any, *args: Any) -> Any:
        if threading.current_thread().name == "slow":
            waits.set()
            assert overtaken.wait(GUARD)
        return take(walk, *args)

    with make() as loader:
        state = loader.init_state(0)
        for _ in range(2):
            _, state, _ = loader.next_batch(state)
        monkeypatch.setattr(read_service._Walk, "take", paused)

        def slow() -> None:
            found[2] = loader.next_batch(loader.state_at(0, 2))[0].tolist()

        thread = threading.Thread(target=slow, name="slow", daemon=True)
        thread.start()
        assert waits.wait(GUARD)
        found[3] = loader.next_batch(loader.state_at(0, 3))[0].tolist()
        overtaken.set()
        thread.join(GUARD)
    assert found == {2: at(2), 3: at(3)}


# What is left behind


def test_lanes_at_one_position_leave_no_walks_behind_and_read_it_once() -> None:
    counts: Counter[int] = Counter()

    def read(i: int) -> np.int32:
        counts[i] += 1
        return np.int32(i * i)

    with make(read, workers=1) as loader:
        counts.clear()
        step = jax.jit(jax.vmap(loader.next_batch))
        states = jax.vmap(lambda _: loader.init_state(0))(jnp.arange(6))
        for number in range(6):
            batches, states, _ = step(states)
            assert batches.tolist() == [at(number)] * 6
        assert tracks_of(loader) <= 2
        assert max(counts.values()) == 1


def test_programs_that_jump_about_leave_a_bounded_number_of_walks() -> None:
    with make() as loader:
        step = jax.jit(loader.next_batch)
        for place in range(0, 400, 2):
            jax.block_until_ready(step(loader.state_at(0, place)))
        assert tracks_of(loader) <= read_service._MOST_WALKS


def test_after_an_error_in_one_lane_the_others_are_read_once_again() -> None:
    counts: Counter[int] = Counter()
    failing = threading.Event()

    def read(i: int) -> np.int32:
        counts[i] += 1
        if failing.is_set() and i == 0:
            raise OSError("no such row")
        return np.int32(i * i)

    with make(read, workers=1) as loader:
        states = [loader.state_at(0, step) for step in (0, 2, 4)]
        together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
        step = jax.jit(jax.vmap(loader.next_batch))
        step(spread(jax.tree.map(lambda *leaves: jnp.stack(leaves), *[loader.state_at(9, 1)] * 3)))
        failing.set()
        assert not step(spread(together))[2].any()
        failing.clear()
        with pytest.raises(OSError, match="no such row"):
            loader.next_batch(states[0])
        batches, together, _ = step(together)
        assert batches.tolist() == [at(0), at(2), at(4)]
        counts.clear()
        batches, together, _ = step(together)
        assert batches.tolist() == [at(1), at(3), at(5)]
        jax.block_until_ready(step(together))
        assert max(counts.values(), default=1) == 1  # or they were read ahead
        assert tracks_of(loader) <= 4


# Metrics and settings


@pytest.mark.parametrize("workers", [0, 2])
def test_a_metric_inside_a_program_is_the_one_outside(workers: int) -> None:
    with make(lambda i: np.int32(i), workers=workers) as loader:
        fn = lambda batch: {"mean": batch * 1.0, "odd": batch % 2 == 1}  # noqa: E731
        inside = jax.jit(lambda loader: cereal.evaluate(loader, fn))(loader)
        for found in (cereal.evaluate(loader, fn), inside):
            assert (float(found["mean"]), float(found["odd"])) == ((N - 1) / 2, 0.5)


def test_wide_types_go_through_a_program() -> None:
    big = [2**40 + i for i in range(8)]
    with jax.enable_x64(True), DataLoader([DatasetSource(big), BatchTransform(4)]) as loader:
        state, found = loader.init_state(0), []
        step = jax.jit(loader.next_batch)
        for _ in range(2):
            batch, state, _ = step(state)
            assert batch.dtype == jnp.int64
            found += batch.tolist()
        assert found == big
        assert [x for b, _ in loader for x in b.tolist()] == big


def test_without_jit_the_batches_are_the_same() -> None:
    with make() as loader, jax.disable_jit():
        state = loader.init_state(0)
        for number in range(3):
            batch, state, _ = loader.next_batch(state)
            assert batch.tolist() == at(number)
