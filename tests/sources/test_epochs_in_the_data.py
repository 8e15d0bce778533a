"""Functions of data that are given the epoch, and the key: every road reads the same elements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cloudpickle
import jax
import numpy as np
import pytest

from cereal import (
    BatchTransform,
    CacheTransform,
    ConcatSource,
    DataLoader,
    DiskSampleSource,
    HostMapTransform,
    IterableSource,
    PipelineError,
    RepeatSource,
    UsageError,
    select,
    split,
)
from cereal.testing import check_loader, check_resume

N = 10


def of_epoch(index: int, epoch: int) -> int:
    return 100 * epoch + index


def by_epoch(epoch: int) -> Iterator[int]:
    yield from range(100 * epoch, 100 * epoch + N)


def by_key(epoch: int, key: np.ndarray) -> Iterator[int]:
    yield from np.random.default_rng([*key, epoch]).permutation(N).tolist()


class Shuffled:
    """An iterator with a state, whose order the key and the epoch decide."""

    def __init__(self, epoch: int, key: np.ndarray) -> None:
        self.order = np.random.default_rng([*key, epoch]).permutation(N)
        self.at = 0

    def __iter__(self) -> Shuffled:
        return self

    def __next__(self) -> int:
        if self.at == N:
            raise StopIteration
        self.at += 1
        return int(self.order[self.at - 1])

    def get_state(self) -> dict[str, int]:
        return {"at": self.at}

    def set_state(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def words(key: int) -> np.ndarray:
    return np.array([0, key], np.uint32)


def disk(**options: Any) -> DiskSampleSource:
    return DiskSampleSource(N, of_epoch, ordering="sequential", **options)


SOURCES = {
    "sample_fn": disk,
    "epoch": lambda: IterableSource(by_epoch, length=N),
    "key": lambda: IterableSource(by_key, length=N),
    "own state": lambda: IterableSource(Shuffled, length=N),
}


def elements(loader: DataLoader[Any], key: int = 0, epochs: int = 2) -> list[int]:
    found = loader.iterate(loader.init_state(key), epochs=epochs)
    return [x for batch, mask in found for x in np.asarray(batch)[np.asarray(mask)].tolist()]


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_sample_fn_is_given_the_epoch_if_it_takes_one(workers: int) -> None:
    loader = DataLoader([disk(), BatchTransform(4)], workers=workers)
    assert elements(loader) == [*range(10), *range(100, 110)]


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_make_iterator_is_given_epoch_and_key_if_it_takes_them(workers: int) -> None:
    loader = DataLoader([IterableSource(by_key), BatchTransform(4)], workers=workers)
    for key in (0, 7):
        wanted = [*by_key(0, words(key)), *by_key(1, words(key))]
        assert elements(loader, key) == wanted
    assert [*by_key(0, words(0))] != [*by_key(0, words(7))]


def test_the_key_is_that_of_jax() -> None:
    given = []

    def make(epoch: int, key: np.ndarray) -> Iterator[float]:
        theirs = jax.random.wrap_key_data(key)  # type: ignore[arg-type]
        given.append((epoch, jax.random.key_data(theirs).tolist()))
        yield 0.0

    loader = DataLoader([IterableSource(make, length=1), BatchTransform(1)], workers=0)
    next(loader.iterate(loader.init_state(jax.random.key(5))))
    assert given[-1] == (0, jax.random.key_data(jax.random.key(5)).tolist())


@pytest.mark.parametrize("name", SOURCES)
def test_every_road_and_every_restart_reads_the_same(name: str) -> None:
    check_loader(DataLoader([SOURCES[name](), BatchTransform(3, pad_last_batch=True)]))
    check_resume(DataLoader([SOURCES[name](), BatchTransform(3)]))


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("workers", [0, 3])
def test_a_new_process_goes_on_in_the_second_epoch(name: str, workers: int) -> None:
    whole = elements(DataLoader([SOURCES[name](), BatchTransform(4)]), key=3, epochs=2)
    loader = DataLoader([SOURCES[name](), BatchTransform(4)], workers=workers)
    batches = loader.iterate(loader.init_state(3), epochs=2)
    head = [x for _ in range(3) for x in next(batches)[0].tolist()]  # two elements of epoch 1
    other, state = cloudpickle.loads(cloudpickle.dumps((loader, batches.state)))
    tail = [x for batch, _ in other.iterate(state) for x in batch.tolist()]
    assert (head + tail)[: 2 * N] == whole[: 2 * N]


def test_a_state_of_an_iterator_belongs_to_its_key() -> None:
    loader = DataLoader([IterableSource(Shuffled, length=N), BatchTransform(4)], workers=0)
    first = loader.iterate(loader.init_state(1))
    next(first)
    assert elements(loader, 2, epochs=1)[:N] == list(Shuffled(0, words(2)))
    rest = [x for batch, _ in loader.iterate(first.state) for x in batch.tolist()]
    assert rest[:6] == list(Shuffled(0, words(1)))[4:]


def test_states_of_several_keys_are_read_in_one_vmap() -> None:
    loader = DataLoader([IterableSource(by_key, length=N), BatchTransform(5)], workers=0)
    states = jax.vmap(loader.init_state)(jax.random.split(jax.random.key(0), 3))
    batch, _, _ = jax.vmap(lambda state: loader.next_batch(state))(states)
    for lane in range(3):
        assert batch[lane].tolist() == [*by_key(0, np.asarray(states.key[lane]))][:5]


def test_an_element_can_be_read_again_by_its_epoch() -> None:
    loader = DataLoader([disk(), BatchTransform(2)])
    assert loader.read_element(3, epoch=2) == 203
    stream = DataLoader([IterableSource(by_key, length=N), BatchTransform(2)])
    assert stream.read_element(3, key=5, epoch=2) == [*by_key(2, words(5))][3]


def test_a_shuffled_epoch_has_the_elements_of_that_epoch() -> None:
    source = DiskSampleSource(N, of_epoch)
    found = elements(DataLoader([source, BatchTransform(5)]))
    assert sorted(found[:N]) == [*range(10)]
    assert sorted(found[N:]) == [*range(100, 110)]


def test_passes_of_a_repeated_source_are_epochs_of_it() -> None:
    loader = DataLoader([RepeatSource(disk(), 2), BatchTransform(4)])
    assert elements(loader, epochs=1) == [*range(10), *range(100, 110)]
    both = ConcatSource([disk(), disk()])
    found = elements(DataLoader([both, BatchTransform(4)]))
    assert found == [*range(10), *range(10), *range(100, 110), *range(100, 110)]


def test_a_default_counts_only_under_its_name() -> None:
    table = np.arange(N) * 2

    def read(index: int, table: np.ndarray = table) -> int:
        return int(table[index])

    def read_in(index: int, epoch: int = 5) -> int:
        return 100 * epoch + index

    plain = DataLoader([DiskSampleSource(N, read, ordering="sequential"), BatchTransform(5)])
    assert [x for batch, _ in plain for x in batch.tolist()] == table.tolist()
    named = DataLoader([DiskSampleSource(N, read_in, ordering="sequential"), BatchTransform(5)])
    assert elements(named) == [*range(10), *range(100, 110)]


# What is refused


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("name", SOURCES)
def test_a_cache_would_keep_the_first_epoch_and_is_refused(name: str, where: str) -> None:
    with pytest.raises(PipelineError, match=r"change from epoch to epoch.*leave the cache out"):
        DataLoader([SOURCES[name](), HostMapTransform(lambda x: x), CacheTransform(where)])


def test_select_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"select: .* depends on the epoch"):
        select(disk(), lambda x: x > 3)


def test_parts_of_a_split_read_their_own_elements() -> None:
    train, val = split(disk(), (0.8, 0.2))
    found = elements(DataLoader([val, BatchTransform(2)]))
    assert (len(train), found) == (8, [8, 9, 108, 109])


@pytest.mark.parametrize("name", SOURCES)
def test_a_loop_without_a_state_would_repeat_the_first_epoch_and_is_refused(name: str) -> None:
    loader = DataLoader([SOURCES[name](), BatchTransform(5)])
    with pytest.raises(UsageError, match=r"init_state\(key\)"):
        iter(loader)


def test_arguments_in_the_wrong_place_are_told() -> None:
    with pytest.raises(PipelineError, match=r"make_iterator\(key\)`: write `make_iterator\(epoch"):
        IterableSource(lambda key: iter([0]))
    with pytest.raises(PipelineError, match=r"make_iterator\(key, epoch\)`: write"):
        IterableSource(lambda key, epoch: iter([0]))
    with pytest.raises(PipelineError, match=r"this one is called `rng`.*HostRandomMapTransform"):
        DiskSampleSource(N, lambda index, rng: index)
