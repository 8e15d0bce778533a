"""Steps read ahead: nothing lost, nothing repeated, in order, and never too many at once."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.workers.reading import INT, chunks, loader_of, numbers, until, within

from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    DatasetSource,
    DiskSampleSource,
    HostMapTransform,
    HostRandomMapTransform,
    IterableSource,
    MapTransform,
    MemmapSource,
    RangeSource,
    save_arrays,
)
from cereal.host import track
from cereal.workers.read_service import without_service

N, BATCH = 22, 4
SQUARES = np.arange(N, dtype=np.int32) ** 2


class Gets:
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        return index * index


class GetsMany(Gets):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [index * index for index in indices]


def source_of(kind: str, folder: Path) -> list[Any]:
    if kind == "disk":
        return [DiskSampleSource(N, lambda i: i * i, sample_spec=INT, ordering="sequential")]
    if kind == "memmap":
        save_arrays(folder / "squares", SQUARES, overwrite=True)
        return [MemmapSource(folder / "squares", ordering="sequential")]
    if kind == "iterable":
        return [IterableSource(lambda: (i * i for i in range(N)), length=N)]
    if kind == "array":
        return [ArraySampleSource(SQUARES, ordering="sequential"), HostMapTransform(lambda x: x)]
    if kind == "range":
        return [RangeSource(N), HostMapTransform(lambda x: int(x) ** 2)]
    return [DatasetSource(Gets() if kind == "dataset" else GetsMany())]


KINDS = ["disk", "memmap", "iterable", "array", "range", "dataset", "dataset of many"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 1, 2, 4, 8])
def test_batches_are_those_of_a_plain_loop(kind: str, workers: int, tmp_path: Path) -> None:
    twice = np.concatenate([SQUARES, SQUARES])
    expected = [twice[at : at + BATCH].tolist() for at in range(0, 2 * N, BATCH)]
    for prefetch in (0, 1, 2, 16):
        stages = [*source_of(kind, tmp_path), BatchTransform(BATCH)]
        loader = DataLoader(stages, workers=workers, prefetch=prefetch)
        found = numbers(loader.iterate(loader.init_state(0), epochs=2))
        assert found == expected, f"{prefetch=}"


@pytest.mark.parametrize("rule", ["wrap", "pad", "drop"])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_end_of_an_epoch_is_that_of_a_plain_loop(rule: str, workers: int) -> None:
    options = {"wrap": {}, "pad": {"pad_last_batch": True}, "drop": {"drop_last": True}}[rule]
    source = DiskSampleSource(10, lambda i: i, sample_spec=INT, ordering="sequential")
    loader = DataLoader([source, BatchTransform(4, **options)], workers=workers, prefetch=3)
    end = {"wrap": [[8, 9, 0, 1]], "pad": [[8, 9]], "drop": []}[rule]
    pairs = list(loader.iterate(loader.init_state(0)))
    assert [b[m].tolist() for b, m in pairs] == [[0, 1, 2, 3], [4, 5, 6, 7], *end]


@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("prefetch", [0, 1, 16])
def test_shuffled_and_augmented_batches_do_not_depend_on_who_reads(
    workers: int, prefetch: int
) -> None:
    def add(x: int, rng: np.random.Generator) -> int:
        return 1000 * x + int(rng.integers(1000))

    def made(**options: Any) -> DataLoader[Any]:
        source = DiskSampleSource(N, lambda i: i, sample_spec=INT)
        stages = [source, HostRandomMapTransform(add), BatchTransform(BATCH)]
        return DataLoader([*stages, MapTransform(lambda x: x + 1)], **options)

    loader = made(workers=workers, prefetch=prefetch)
    found = numbers(loader.iterate(loader.init_state(5), steps=9))
    plain = made(workers=0)
    expected = [
        [1 + plain.read_element(int(i), key=5, epoch=position // N) for i, position in lanes]
        for step in range(9)
        for lanes in [zip(plain.indices_at(5, step), range(step * 4, step * 4 + 4), strict=True)]
    ]
    assert found == expected


def test_steps_that_finish_in_the_opposite_order_are_handed_out_in_order() -> None:
    done = [threading.Event() for _ in range(5)]
    done[4].set()

    def read(i: int) -> int:
        assert done[i + 1].wait(60)
        done[i].set()
        return i

    loader = loader_of(read, 4, 1, workers=4, prefetch=4)
    assert within(lambda: numbers(loader.iterate(loader.init_state(0)))) == chunks(4, 1)


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (2, 1), (2, 3), (4, 2), (8, 5), (3, 0)])
def test_no_more_is_read_ahead_than_prefetch_allows(workers: int, prefetch: int) -> None:
    begun, handed, worst = 0, 0, 0
    lock = threading.Lock()

    def read(i: int) -> int:
        nonlocal begun, worst
        with lock:
            begun += 1
            worst = max(worst, begun - handed)
        return i

    loader = loader_of(read, 160, 4, workers=workers, prefetch=prefetch)
    for step, _ in enumerate(loader.iterate(loader.init_state(0))):
        with lock:
            handed = 4 * (step + 1)
        if step % 10 == 3:
            time.sleep(0.02)  # time to read too much
    assert begun == 160
    assert worst <= 4 * (prefetch + 1) + 4, "ahead, one on its way, one in the loop's head"


def test_reading_goes_on_to_the_bound_while_the_loop_is_busy() -> None:
    seen: set[int] = set()
    loader = loader_of(lambda i: seen.add(i) or i, 400, 4, workers=2, prefetch=5)
    iterator = loader.iterate(loader.init_state(0))
    next(iterator)
    assert until(lambda: len(seen) >= 4 * 6)
    time.sleep(0.05)
    assert len(seen) <= 4 * 7
    iterator.close()


@pytest.mark.parametrize("workers", [2, 4])
def test_a_slow_element_delays_only_its_batch(workers: int) -> None:
    later = threading.Event()
    seen: set[int] = set()

    def read(i: int) -> int:
        if i == 5:
            assert later.wait(60), "the batches after it were not read"
        seen.add(i)
        if seen >= set(range(8, 20)):
            later.set()
        return i

    loader = loader_of(read, 20, 4, workers=workers, prefetch=5)
    assert within(lambda: numbers(loader.iterate(loader.init_state(0)))) == chunks(20, 4)


def test_a_slow_element_keeps_reading_within_the_bound() -> None:
    release, seen = threading.Event(), set[int]()

    def read(i: int) -> int:
        seen.add(i)
        if i == 0:
            assert release.wait(60)
        return i

    loader = loader_of(read, 80, 4, workers=4, prefetch=3)
    iterator = loader.iterate(loader.init_state(0))
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(numbers(iterator)))
    thread.start()
    assert until(lambda: len(seen) == 12)
    time.sleep(0.05)
    assert seen == set(range(12))
    release.set()
    thread.join()
    assert found == chunks(80, 4)


@pytest.mark.parametrize("workers", [2, 4])
def test_all_threads_help_with_one_batch(workers: int) -> None:
    together = threading.Barrier(workers)
    names: set[str] = set()

    def read(i: int) -> int:
        names.add(threading.current_thread().name)
        together.wait(60)
        return i

    loader = loader_of(read, workers * 4, workers * 2, workers=workers, prefetch=1)
    found = within(lambda: numbers(loader.iterate(loader.init_state(0), steps=2)))
    assert found == chunks(workers * 4, workers * 2)
    assert len(names) == workers


def test_threads_help_with_a_chunk_of_batches_of_a_scan() -> None:
    together = threading.Barrier(4)

    def read(i: int) -> int:
        together.wait(60)
        return i

    loader = loader_of(read, 32, 8, workers=4, prefetch=1)
    run = lambda: loader.scan_epoch(loader.init_state(0), 0, lambda c, b, m: (c, b))  # noqa: E731
    assert within(run)[2].tolist() == chunks(32, 8)


def test_cheap_reading_goes_inline_and_back_and_loses_nothing() -> None:
    n, slow = 2400, set(range(1000, 1100)) | set(range(1700, 1750))
    threads: dict[int, str] = {}

    def read(i: int) -> int:
        threads[i] = threading.current_thread().name
        if i in slow:
            time.sleep(0.001)
        return i

    loader = loader_of(read, n, 2, workers=2, prefetch=3)
    assert numbers(loader.iterate(loader.init_state(0))) == chunks(n, 2)
    assert len(threads) == n
    assert threads[0].startswith("cereal")


def test_inline_reading_is_reached_and_left_at_will(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def read(i: int) -> int:
        threads.append(threading.current_thread().name)
        return i

    loader = loader_of(read, 300, 1, workers=2, prefetch=2)
    monkeypatch.setattr(track, "_CHEAP", 1e9)
    iterator = loader.iterate(loader.init_state(0))
    found = [next(iterator)[0].item() for _ in range(100)]
    assert threads[-1] == threading.current_thread().name
    monkeypatch.setattr(track, "_CHEAP", 0.0)
    found += [next(iterator)[0].item() for _ in range(100)]
    assert threads[-1].startswith("cereal")
    monkeypatch.setattr(track, "_CHEAP", 1e9)
    found += [batch.item() for batch, _ in iterator]
    assert found == list(range(300))
    assert sorted(threads[-50:]) == [threading.current_thread().name] * 50


def test_an_error_of_inline_reading_keeps_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track, "_CHEAP", 1e9)
    bad = {140}

    def read(i: int) -> int:
        if i in bad:
            raise OSError("gone")
        return i

    loader = loader_of(read, 300, 2, workers=2, prefetch=2)
    iterator = loader.iterate(loader.init_state(0))
    found = [next(iterator)[0].tolist() for _ in range(70)]
    for _ in range(3):
        with pytest.raises(OSError, match="gone"):
            next(iterator)
        assert np.asarray(iterator.state.words)[-1] == 140
    bad.clear()
    assert found + numbers(iterator) == chunks(300, 2)


def test_a_compiled_stage_that_fails_keeps_the_place() -> None:
    def inverse(x: Any) -> Any:
        return jnp.divide(1.0, jnp.asarray(x) - 9)

    loader = loader_of(lambda i: i, 24, 4, MapTransform(inverse), workers=2)
    iterator = loader.iterate(loader.init_state(0))
    found = [np.asarray(next(iterator)[0]).tolist() for _ in range(2)]
    jax.block_until_ready(found)
    iterator.state = loader.state_at(0, 2)
    with jax.debug_infs(True):
        for _ in range(2):
            with pytest.raises(FloatingPointError):
                next(iterator)
    found += [np.asarray(batch).tolist() for batch, _ in within(lambda: list(iterator))]
    plain = 1.0 / (jnp.arange(24).reshape(6, 4) - 9)
    np.testing.assert_allclose(np.array(found), np.asarray(plain), rtol=1e-6)


def test_steps_end_where_there_are_no_more_rows() -> None:
    loader = loader_of(lambda i: i * i, N, BATCH, workers=2)
    source: Any = loader.source
    rows, _ = source._plan.rows_for(np.zeros(5, np.uint32), 3)
    rows_of = lambda step: rows[step] if step < 3 else None  # noqa: E731
    steps = loader.service.open_track(without_service(source), rows_of)
    steps.start()
    found = [steps.take(step).below.values.tolist() for step in range(3)]
    assert steps.total == 3
    loader.service.close()
    assert found == SQUARES[: 3 * BATCH].reshape(3, BATCH).tolist()
