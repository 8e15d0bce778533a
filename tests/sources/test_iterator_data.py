"""Positions of iterators: found again by their own state or by skipping, and what is kept."""

from __future__ import annotations

import gc
import io
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal import BatchTransform, DataLoader, HostMapTransform, IterableSource

N = 40
SIZE = 2


class Counting:
    """An iterator with a state; notes every element that it makes, and every state it is given."""

    made: list[int]
    states: list[Any]

    def __init__(self, made: list[int], states: list[Any], n: int = N) -> None:
        self.at, self.n, self.made, self.states = 0, n, made, states

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.at >= self.n:
            raise StopIteration
        self.at += 1
        self.made.append(self.at - 1)
        return (self.at - 1) * 3


class Grain(Counting):
    def get_state(self) -> Any:
        return {"at": self.at}

    def set_state(self, state: Any) -> None:
        self.states.append(state)
        self.at = state["at"]


class OldGrain(Counting):
    def get_state(self) -> bytes:
        return b"\xff\x00" + str(self.at).encode()

    def set_state(self, state: bytes) -> None:
        self.states.append(state)
        self.at = int(state[2:])


class Torch(Counting):
    def state_dict(self) -> Any:
        return {"at": self.at}

    def load_state_dict(self, state: Any) -> None:
        self.states.append(state)
        self.at = state["at"]


class NumPyState(Torch):
    """Numbers as NumPy has them."""

    def state_dict(self) -> Any:
        return {"at": np.int64(self.at)}


class ArrayState(Torch):
    def state_dict(self) -> Any:
        return {"at": np.array(self.at), "more": np.arange(3)}


class SharedState(Torch):
    """Its state is the dict that it goes on to change, and it takes the one it is given."""

    def __init__(self, *args: Any) -> None:
        self.words = {"at": 0}
        super().__init__(*args)

    @property
    def at(self) -> int:
        return self.words["at"]

    @at.setter
    def at(self, at: int) -> None:  # type: ignore[override]
        self.words["at"] = at

    def state_dict(self) -> Any:
        return self.words

    def load_state_dict(self, state: Any) -> None:
        self.states.append(dict(state))
        self.words = state


class NumberedShards(Torch):
    """Keys that are no text, and tuples."""

    def state_dict(self) -> Any:
        return {0: (self.at, "shard"), 1: (0, "other")}

    def load_state_dict(self, state: Any) -> None:
        self.states.append(state)
        self.at, name = state[0]
        assert name == "shard"
        assert isinstance(state[0], tuple)


class LargeState(Torch):
    """Larger than a state has room for."""

    def state_dict(self) -> Any:
        return {"at": self.at, "words": "x" * 100_000}


OWN = [Grain, OldGrain, Torch, NumPyState]
ODD = [ArrayState, SharedState, NumberedShards, LargeState]


class Made:
    """A loader over such an iterator, and what was made by it."""

    def __init__(self, kind: Any, length: int | None = None, **options: Any) -> None:
        self.made: list[int] = []
        self.states: list[Any] = []
        source = IterableSource(lambda: kind(self.made, self.states), length=length)
        self.loader = DataLoader([source, BatchTransform(SIZE)], **options)
        self.made.clear()  # the first was read to see what elements look like


def saved(state: Any) -> Any:
    """The state as it comes back from a file."""
    leaves, structure = jax.tree.flatten(state)
    file = io.BytesIO()
    np.savez(file, *(np.asarray(leaf) for leaf in leaves))
    file.seek(0)
    with np.load(file) as found:
        leaves = [jnp.asarray(found[f"arr_{k}"]) for k in range(len(leaves))]
    return jax.tree.unflatten(structure, leaves)


def after(loader: DataLoader[Any], steps: int) -> Any:
    """The state after so many batches."""
    with loader.iterate() as iterator:
        for _ in range(steps):
            next(iterator)
        return saved(iterator.state)


def rest_from(step: int) -> list[list[int]]:
    return [[3 * k, 3 * k + 3] for k in range(SIZE * step, N, SIZE)]


def rows(loader: DataLoader[Any], state: Any = None, **options: Any) -> list[list[int]]:
    return [batch[mask].tolist() for batch, mask in loader.iterate(state, **options)]


# Resuming


@pytest.mark.parametrize("length", [None, N])
@pytest.mark.parametrize(
    "workers", [1, *(pytest.param(count, marks=pytest.mark.slow) for count in (0, 4))]
)
@pytest.mark.parametrize("kind", [Counting, *OWN, *ODD])
def test_a_new_loader_goes_on_exactly(kind: Any, workers: int, length: int | None) -> None:
    first = Made(kind, length, workers=workers, prefetch=3)
    for step in (0, 1, 7, 19):
        state = after(first.loader, step)
        assert rows(Made(kind, length, workers=workers).loader, state) == rest_from(step)
        assert rows(first.loader, state) == rest_from(step)


@pytest.mark.parametrize("kind", [Counting, *OWN, *ODD])
def test_a_loader_that_was_pickled_goes_on_exactly(kind: Any) -> None:
    first = Made(kind, N, workers=1, prefetch=3)
    states = [after(first.loader, step) for step in (3, 11)]
    for step, state in zip((3, 11), states, strict=True):
        again = cloudpickle.loads(cloudpickle.dumps(Made(kind, N, workers=0).loader))
        assert rows(again, state) == rest_from(step)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", OWN)
def test_a_new_loader_uses_the_iterators_own_state_and_skips_nothing(
    kind: Any, workers: int
) -> None:
    state = after(Made(kind, workers=0).loader, 10)
    second = Made(kind, workers=workers)
    assert rows(second.loader, state) == rest_from(10)
    assert len(second.states) == 1
    assert second.made == list(range(20, N))


@pytest.mark.parametrize("kind", OWN)
def test_a_step_from_a_saved_state_uses_it_too(kind: Any) -> None:
    state = after(Made(kind, N, workers=0).loader, 10)
    for jitted in (False, True):
        second = Made(kind, N, workers=0)
        step: Any = jax.jit(lambda loader, state: loader.next_batch(state))
        loader = second.loader
        batch = step(loader, state)[0] if jitted else loader.next_batch(state)[0]
        assert batch.tolist() == rest_from(10)[0]
        assert min(second.made) == 20


@pytest.mark.parametrize("prefetch", [1, 8, 100])
def test_a_state_has_a_bookmark_however_far_workers_are_ahead(prefetch: int) -> None:
    made: list[int] = []
    source = IterableSource(lambda: Torch(made, [], 400), length=400)
    loader = DataLoader([source, BatchTransform(SIZE)], workers=1, prefetch=prefetch)
    with loader.iterate() as iterator:
        for _ in range(10):
            next(iterator)
        end = time.monotonic() + 60
        while len(made) < 2 * min(prefetch, 80) and time.monotonic() < end:
            time.sleep(0.001)
        state = saved(iterator.state)
    again = cloudpickle.loads(cloudpickle.dumps(loader))
    assert next(again.iterate(state))[0].tolist() == [60, 63]
    assert np.asarray(state.bookmark).any()


def test_without_a_state_of_its_own_it_resumes_by_skipping() -> None:
    state = after(Made(Counting, workers=0).loader, 10)
    assert state.bookmark is None
    second = Made(Counting, workers=0)
    assert rows(second.loader, state) == rest_from(10)
    assert sorted(set(second.made)) in (list(range(N)), list(range(1, N)))  # 0 was seen before


def test_the_state_of_an_iterator_is_of_one_size_from_the_beginning() -> None:
    loader = Made(Torch, N, workers=0).loader
    states = [loader.init_state(0), after(loader, 0), after(loader, 5)]
    assert len({tuple(x.shape for x in jax.tree.leaves(state)) for state in states}) == 1
    step: Any = jax.jit(lambda loader, state: loader.next_batch(state)[0])
    assert step(loader, loader.init_state(0)).tolist() == rest_from(0)[0]
    assert step(loader, after(loader, 5)).tolist() == rest_from(5)[0]
    assert step._cache_size() == 1


def test_a_state_of_another_iterator_with_the_same_length_is_a_position() -> None:
    state = after(Made(Counting, N, workers=0).loader, 4)
    assert rows(Made(Torch, N, workers=0).loader, state) == rest_from(4)


def test_any_position_is_found_forwards_and_backwards() -> None:
    for kind in (Counting, Torch):
        loader = Made(kind, N, workers=2).loader
        for step in (15, 2, 2, 19, 0, 7, 23, 1):
            at = step % (N // SIZE)
            assert loader.batch_at(0, step)[0].tolist() == rest_from(at)[0]


def test_the_end_of_an_epoch_is_one_state_whoever_reads() -> None:
    """With read-ahead the end may be known before the user comes to it."""
    states = []
    for workers in (0, 1):
        loader = Made(Counting, None, workers=workers, prefetch=64).loader
        iterator: Any = loader.iterate(epochs=2)
        for _ in range(N // SIZE - 1):
            next(iterator)
        end = time.monotonic() + 60
        stream = iterator._source._iterators
        while workers and time.monotonic() < end and stream.end_of((0, 0), 0) is None:
            time.sleep(0.001)
        time.sleep(0.05 * workers)
        next(iterator)
        states.append(repr(iterator.state))
        iterator.close()
        assert rows(loader, iterator.state, steps=3) == rest_from(0)[:3]
    assert states[0] == states[1]


# Errors


class Bad(Counting):
    """It raises at some elements, and goes on."""

    def __next__(self) -> int:
        value = super().__next__()
        if value in (15, 60):
            raise OSError(f"element {value // 3} cannot be read")
        return value


@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("length", [None, N])
def test_an_iterator_that_can_go_on_loses_only_what_it_could_not_read(
    length: int | None, workers: int
) -> None:
    loader = Made(Bad, length, workers=workers, on_error="skip").loader
    found = [x for row in rows(loader, steps=N // SIZE) for x in row]
    assert found == [3 * k for k in range(N) if k not in (5, 20)]
    assert loader.skipped == 2


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_that_raises_is_named_with_its_position(workers: int) -> None:
    iterator = Made(Bad, N, workers=workers).loader.iterate()
    assert [next(iterator)[0].tolist() for _ in range(2)] == rest_from(0)[:2]
    for _ in range(2):
        with pytest.raises(OSError, match="element 5 cannot be read") as caught:
            next(iterator)
        assert caught.value.element.index == 5  # type: ignore[attr-defined]
    assert int(iterator.state.offset) == 4


def test_an_element_beyond_the_end_is_no_element() -> None:
    loader = Made(Counting, None, workers=0).loader
    assert loader.read_element(7) == 21
    with pytest.raises((IndexError, cereal.CerealError), match=r"40|end"):
        loader.read_element(N + 5)


# What is kept


class Thing:
    """An element that can be watched."""

    def __init__(self, number: int) -> None:
        self.number = number


@pytest.mark.parametrize("kind", ["from the start", "resumed"])
def test_elements_that_nobody_will_ask_for_are_not_kept(kind: str) -> None:
    living: weakref.WeakSet[Thing] = weakref.WeakSet()

    def things() -> Iterator[Thing]:
        for number in range(4000):
            thing = Thing(number)
            living.add(thing)
            yield thing
            del thing

    source = IterableSource(things, length=4000)
    stages = [HostMapTransform(lambda thing: thing.number), BatchTransform(10)]
    loader = DataLoader([source, *stages], workers=2, prefetch=2)
    state = loader.state_at(0, 300 if kind == "resumed" else 0)
    begin = 3000 if kind == "resumed" else 0
    with loader.iterate(state) as iterator:
        for step in range(20):
            batch, _ = next(iterator)
            assert batch.tolist() == list(range(begin + 10 * step, begin + 10 * step + 10))
    gc.collect()
    assert len(living) < 200


def test_generators_are_closed_when_the_loader_is_gone() -> None:
    closed = threading.Event()

    def numbers() -> Iterator[int]:
        try:
            yield from range(1000)
        finally:
            closed.set()

    loader = DataLoader([IterableSource(numbers), BatchTransform(2)], workers=1)
    with loader.iterate() as iterator:
        next(iterator)
    loader.close()
    del loader, iterator
    gc.collect()
    assert closed.wait(60)


@pytest.mark.parametrize("workers", [1, 4])
def test_workers_that_ask_out_of_order_get_every_element_once(workers: int) -> None:
    made = Made(Counting, None, workers=workers, prefetch=8)
    assert rows(made.loader) == rest_from(0)
    assert sorted(made.made) == list(range(1, N))  # 0 was read to see what elements look like
