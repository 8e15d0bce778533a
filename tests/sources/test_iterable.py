"""Data that only iterates: epochs of known and unknown length, every road, errors, combinations."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import cloudpickle
import jax
import numpy as np
import pytest

import cereal
from cereal import (
    BatchTransform,
    CacheTransform,
    ConcatSource,
    DataLoader,
    HostMapTransform,
    IterableSource,
    MapTransform,
    MixSource,
    PipelineError,
    SliceSource,
    UsageError,
)
from cereal.testing import check_loader, check_resume


def squares(n: int = 10, bad: tuple[int, ...] = ()) -> Iterator[int]:
    for i in range(n):
        if i in bad:
            raise OSError(f"element {i} cannot be read")
        yield i * i


def loader_of(
    n: int = 10, size: int = 4, length: int | None = None, rule: Any = None, **options: Any
) -> DataLoader[Any]:
    source = IterableSource(lambda: squares(n), length=length)
    return DataLoader([source, BatchTransform(size, **(rule or {}))], **options)


def rows(loader: DataLoader[Any], state: Any = None, **options: Any) -> list[list[int]]:
    return [batch[mask].tolist() for batch, mask in loader.iterate(state, **options)]


def expected(n: int = 10, size: int = 4) -> list[list[int]]:
    all_of_them = [i * i for i in range(n)]
    return [all_of_them[k : k + size] for k in range(0, n, size)]


def keep(carry: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
    return carry, (batch, mask)


# Epochs


@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("n", [1, 3, 4, 8, 10])
def test_without_a_length_an_epoch_ends_with_the_iterator(n: int, workers: int) -> None:
    loader = loader_of(n, workers=workers)
    for epochs in (1, 3):
        found = list(loader.iterate(epochs=epochs))
        assert [batch[mask].tolist() for batch, mask in found] == expected(n) * epochs
        assert all(batch.shape == mask.shape == (4,) for batch, mask in found)


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_what_stands_in_the_padding_is_an_element(workers: int) -> None:
    (*_, (batch, mask)) = loader_of(10, workers=workers).iterate()
    assert mask.tolist() == [True, True, False, False]
    assert set(batch.tolist()) <= {i * i for i in range(10)}


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_the_rest_can_be_dropped(workers: int) -> None:
    dropped = loader_of(10, rule={"drop_last": True}, workers=workers)
    assert rows(dropped, epochs=2) == expected(10)[:2] * 2
    padded = loader_of(10, rule={"pad_last_batch": True}, workers=workers)
    assert rows(padded, epochs=2) == expected(10) * 2


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_steps_go_on_through_epochs(workers: int) -> None:
    loader = loader_of(10, workers=workers)
    assert rows(loader, steps=8) == (expected(10) * 3)[:8]
    endless = loader.iterate(epochs=None)
    assert [(lambda b, m: b[m].tolist())(*next(endless)) for _ in range(7)] == (expected(10) * 3)[
        :7
    ]


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_a_function_of_the_epoch_is_given_its_number(workers: int) -> None:
    def make(epoch: int) -> Iterator[int]:
        yield from range(100 * epoch, 100 * epoch + 3 + epoch)

    loader = DataLoader([IterableSource(make), BatchTransform(2)], workers=workers)
    assert rows(loader, loader.init_state(0), epochs=3) == [
        [0, 1], [2], [100, 101], [102, 103], [200, 201], [202, 203], [204]
    ]  # fmt: skip


def test_all_elements_may_be_dropped_only_with_an_error() -> None:
    loader = loader_of(3, rule={"drop_last": True}, workers=0)
    with pytest.raises((cereal.CerealError, RuntimeError), match=r"drop|no elements|no batch"):
        rows(loader, steps=2)


@pytest.mark.parametrize("length", [10, 8])
def test_with_a_length_an_epoch_is_as_any_other(length: int) -> None:
    wrapped = loader_of(10, length=length, workers=2)
    numbers = [i * i for i in range(length)] * 3
    assert rows(wrapped, steps=5) == [numbers[4 * k : 4 * k + 4] for k in range(5)]
    assert len(loader_of(10, length=length, rule={"pad_last_batch": True})) == -(-length // 4)


def test_with_a_length_it_keeps_the_contract() -> None:
    source = IterableSource(lambda: squares(7), length=7)
    check_loader(DataLoader([source, BatchTransform(3, pad_last_batch=True)]))
    check_resume(DataLoader([source, BatchTransform(3)]))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_length_that_promises_too_much_is_an_error_that_says_both(
    on_error: Any, workers: int
) -> None:
    loader = loader_of(5, 2, length=8, workers=workers, on_error=on_error)
    with pytest.raises(PipelineError, match=r"ended after 5 elements, and `length` says 8"):
        rows(loader)


# Every road


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("length", [None, 10])
def test_every_road_gives_the_batches_of_iterate(length: int | None, workers: int) -> None:
    loader = loader_of(10, 4, length, {"pad_last_batch": True}, workers=workers)
    step = jax.jit(lambda loader, state: loader.next_batch(state))
    for take in (loader.next_batch, lambda state: step(loader, state)):
        state, found = loader.init_state(0), []
        for _ in range(3):
            batch, state, mask = take(state)
            found.append(batch[mask].tolist())
        assert found == expected(10)
    _, _, (values, masks) = loader.scan_epoch(loader.init_state(0), 0, keep, steps=3)
    assert [v[m].tolist() for v, m in zip(values, masks, strict=True)] == expected(10)


def test_beyond_the_end_there_is_nothing_and_no_error() -> None:
    loader = loader_of(6, 4, workers=1)
    state = loader.init_state(0)
    masks = []
    for _ in range(3):
        _, state, mask = loader.next_batch(state)
        masks.append(mask.tolist())
    assert masks == [[True] * 4, [True, True, False, False], [False] * 4]


def test_what_needs_a_length_asks_for_it() -> None:
    loader = loader_of(10)
    asks = [
        lambda: loader.steps_per_epoch,
        lambda: len(loader),
        lambda: loader.scan_epoch(loader.init_state(0), 0, keep),
        lambda: cereal.evaluate(loader, lambda batch: batch),
    ]
    for ask in asks:
        with pytest.raises(UsageError, match=r"not known.*length="):
            ask()
    assert "2147483647" not in repr(loader)


def test_stages_follow_as_after_any_source() -> None:
    source = IterableSource(lambda: (("x" * i, i) for i in range(7)))
    stages = [HostMapTransform(lambda e: len(e[0]) + e[1]), BatchTransform(3)]
    loader = DataLoader([source, *stages, MapTransform(lambda x: x + 1)], workers=2)
    assert rows(loader) == [[1, 3, 5], [7, 9, 11], [13]]
    twice = DataLoader([IterableSource(lambda: squares(5)), BatchTransform(2), BatchTransform(2)])
    assert rows(twice) == [[0, 1, 4, 9], [16]]
    single = DataLoader(IterableSource(lambda: squares(3)), workers=1)
    assert [(int(x), bool(mask)) for x, mask in single] == [(0, True), (1, True), (4, True)]


def test_it_can_be_pickled() -> None:
    loader = loader_of(10, workers=1)
    next(loader.iterate())
    assert rows(cloudpickle.loads(cloudpickle.dumps(loader))) == expected(10)


# Several at once


@pytest.mark.parametrize("length", [None, 24])
@pytest.mark.parametrize("workers", [0, 1, 4])
def test_iterators_of_one_loader_do_not_disturb_each_other(
    workers: int, length: int | None
) -> None:
    loader = loader_of(24, 2, length, workers=workers)
    turns = np.random.default_rng(0).permutation(np.repeat(np.arange(6), 12))
    iterators = [loader.iterate() for _ in range(6)]  # more than are kept on their way
    found: list[list[Any]] = [[] for _ in range(6)]
    for turn in turns:
        batch, mask = next(iterators[turn])
        found[turn].append(batch[mask].tolist())
    assert all(each == expected(24, 2) for each in found)


@pytest.mark.parametrize("workers", [1, 4])
def test_threads_with_iterators_of_their_own_get_every_element(workers: int) -> None:
    loader = loader_of(40, 2, workers=workers)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(rows(loader))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [expected(40, 2)] * 3


# Errors


@pytest.mark.parametrize("on_error", ["raise", "skip", lambda error: 0])
@pytest.mark.parametrize("workers", [0, 1, 4])
def test_a_generator_that_raises_is_an_error_under_every_policy(
    workers: int, on_error: Any
) -> None:
    source = IterableSource(lambda: squares(10, bad=(5,)))
    loader = DataLoader([source, BatchTransform(2)], workers=workers, on_error=on_error)
    iterator = loader.iterate()
    assert [next(iterator)[0].tolist() for _ in range(2)] == expected(10, 2)[:2]
    for _ in range(2):
        with pytest.raises(OSError, match="element 5 cannot be read") as caught:
            next(iterator)
        assert caught.value.element.index == 5  # type: ignore[attr-defined]
        assert any("generator cannot go on" in note for note in caught.value.__notes__)
    assert int(iterator.state.offset) == 4


@pytest.mark.parametrize("workers", [0, 1])
def test_a_generator_that_raises_cannot_be_passed_by_starting_behind_it(workers: int) -> None:
    healthy = loader_of(10, 2, workers=0).iterate(steps=4)
    list(healthy)
    source = IterableSource(lambda: squares(10, bad=(5,)))
    loader = DataLoader([source, BatchTransform(2)], workers=workers, on_error="skip")
    for _ in range(2):
        with pytest.raises(OSError, match="element 5 cannot be read"):
            rows(loader, healthy.state, steps=6)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_goes_on_when_the_cause_of_an_error_is_gone(workers: int) -> None:
    bad: list[int] = [5]
    source = IterableSource(lambda: squares(10, bad=tuple(bad)))
    iterator = DataLoader([source, BatchTransform(2)], workers=workers).iterate()
    found = [next(iterator)[0].tolist() for _ in range(2)]
    with pytest.raises(OSError, match="element 5"):
        next(iterator)
    bad.clear()
    for _ in range(20):  # what was read ahead may have failed too, and is read again
        try:
            for batch, _ in iterator:
                found.append(batch.tolist())
            break
        except OSError:
            continue
    assert found == expected(10, 2)


BAD: dict[str, tuple[Any, str]] = {
    "a generator": (squares(3), r"must be a function that makes a new iterator, got generator"),
    "a list": ([1, 2], r"must be a function .* write `IterableSource\(lambda: iter"),
    "nothing to iterate": (lambda: 5, r"must return something to iterate over, returned int"),
    "nothing": (lambda: None, r"must return something to iterate over, returned NoneType"),
    "no element": (lambda: iter([]), r"the iterator gave no element at all"),
    "an error at first": (lambda: squares(3, bad=(0,)), r"first element: OSError: element 0"),
    "an error in making": (lambda: iter({}["rows"]), r"KeyError"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_iterated_is_refused_at_once(name: str) -> None:
    made, pattern = BAD[name]
    with pytest.raises(PipelineError, match=pattern):
        IterableSource(made)


@pytest.mark.parametrize("bad", [0, -1, 2.5, "3", True])
def test_a_length_that_is_none_is_refused(bad: Any) -> None:
    with pytest.raises(PipelineError, match="`length` must be an integer of at least 1"):
        IterableSource(squares, length=bad)


def test_an_iterator_that_is_handed_out_twice_is_noticed() -> None:
    once = iter(range(10))
    loader = DataLoader([IterableSource(lambda: once), BatchTransform(2)], workers=0)
    with pytest.raises((cereal.CerealError, RuntimeError), match="iterator"):
        rows(loader, epochs=2)


# Combinations


def both(length: int | None) -> tuple[Any, Any]:
    return (
        IterableSource(lambda: squares(10), length=length),
        IterableSource(lambda: (-x for x in squares(10)), length=length),
    )


COMBINED: dict[str, Any] = {
    "concat": lambda a, b: ConcatSource([a, b]),
    "shuffle": lambda a, b: ConcatSource([a], ordering="shuffle"),
    "mix": lambda a, b: MixSource([a, b], (2, 1)),
    "slice": lambda a, b: SliceSource(a, range(8, 0, -2)),
    "split": lambda a, b: cereal.split(a, (0.5, 0.5), key=1)[0],
    "repeat": lambda a, b: cereal.RepeatSource(a, 2),
    "zip": lambda a, b: cereal.ZipSource((a, b)),
    "select": lambda a, b: cereal.select(a, lambda x: x > 3),
    "with an array": lambda a, b: ConcatSource([cereal.RangeSource(5), a]),
    "after a host stage": lambda a, b: ConcatSource([HostMapTransform(lambda x: x)(a)]),
}


@pytest.mark.parametrize("length", [None, 10])
@pytest.mark.parametrize("name", COMBINED)
def test_what_reads_by_index_refuses_what_only_iterates(name: str, length: int | None) -> None:
    with pytest.raises(PipelineError, match="only iterates"):
        COMBINED[name](*both(length))


@pytest.mark.parametrize("where", ["host", "device"])
def test_with_a_length_it_can_be_cached(where: str) -> None:
    reads: list[int] = []

    def counted() -> Iterator[int]:
        for value in squares(10):
            reads.append(value)
            yield value

    source = IterableSource(counted, length=10)
    workers = 2 if where == "host" else None  # nothing is left to read
    loader = DataLoader([source, CacheTransform(where), BatchTransform(5)], workers=workers)
    assert rows(loader, epochs=3) == expected(10, 5) * 3
    assert sorted(reads) in (sorted(squares(10)), sorted([0, *squares(10)]))


@pytest.mark.parametrize("where", ["host", "device"])
def test_without_a_length_it_cannot_be_cached(where: str) -> None:
    with pytest.raises((PipelineError, UsageError), match="length"):
        CacheTransform(where)(both(None)[0])


def test_a_cache_is_no_end_to_epochs_that_differ() -> None:
    def make(epoch: int) -> Iterable[int]:
        return range(10 * epoch, 10 * epoch + 4)

    try:
        cached = CacheTransform("host")(IterableSource(make, length=4))
    except PipelineError:
        return  # refusing it is right too
    loader = DataLoader([cached, BatchTransform(4)], workers=0)
    assert rows(loader, epochs=2) == [[0, 1, 2, 3], [10, 11, 12, 13]]
