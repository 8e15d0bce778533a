"""Loops over epochs: who repeats one, or loops over nothing, is told so."""

from __future__ import annotations

import gc
import itertools
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    DiskSampleSource,
    EpochWarning,
    HostCallbackTransform,
    IterableSource,
    RandomMapTransform,
    RangeSource,
    UnbatchTransform,
)

N = 10
AGAIN = r"run epoch 0 of this key to its end and begins it again.*`state = batches\.state`"


def number(i: int) -> Any:
    return np.int32(i)


def watched(batch: Any, mask: Any) -> None:
    del batch, mask


def noisy(x: Any, key: Any) -> Any:
    return x + jax.random.normal(key)


def shuffled() -> Any:
    return RangeSource(N, ordering="shuffle")


RANDOM: dict[str, Callable[[], list[Any]]] = {
    "wrap": lambda: [shuffled(), BatchTransform(4)],
    "pad": lambda: [shuffled(), BatchTransform(4, pad_last_batch=True)],
    "drop": lambda: [shuffled(), BatchTransform(4, drop_last=True)],
    "callback": lambda: [shuffled(), BatchTransform(4), HostCallbackTransform(watched)],
    "disk": lambda: [DiskSampleSource(N, number), BatchTransform(4)],
    "augmented": lambda: [
        ArraySampleSource(np.arange(10.0, dtype=np.float32), "sequential"),
        RandomMapTransform(noisy),
        BatchTransform(4),
    ],
    "iterable": lambda: [
        IterableSource(lambda: map(np.float32, range(N))),
        RandomMapTransform(noisy),
        BatchTransform(4),
    ],
}
FIXED: dict[str, Callable[[], list[Any]]] = {
    "range": lambda: [RangeSource(N), BatchTransform(4)],
    "disk": lambda: [DiskSampleSource(N, number, ordering="sequential"), BatchTransform(4)],
}


@pytest.mark.parametrize("kind", RANDOM)
def test_a_loop_that_begins_the_same_epoch_again_is_told_so_once(kind: str) -> None:
    with DataLoader(RANDOM[kind]()) as loader:
        first = [np.asarray(batch).tolist() for batch, _ in loader.iterate(loader.init_state(0))]
        with pytest.warns(EpochWarning, match=AGAIN) as found:
            again = list(loader.iterate(loader.init_state(0)))
        assert found[0].filename == __file__
        assert [np.asarray(batch).tolist() for batch, _ in again] == first
        assert len(list(loader.iterate(loader.init_state(0)))) == len(first)  # and no word


@pytest.mark.parametrize("kind", RANDOM)
def test_a_loop_that_goes_on_hears_nothing(kind: str) -> None:
    with DataLoader(RANDOM[kind]()) as loader:
        state = loader.init_state(0)
        for _ in range(3):
            batches = loader.iterate(state)
            assert len(list(batches)) >= 2
            state = batches.state
        # A second training from the beginning is not a loop that forgot to go on.
        batches = loader.iterate(loader.init_state(0))
        assert len(list(batches)) >= 2
        assert len(list(loader.iterate(batches.state))) >= 2


def test_so_does_one_that_repeats_all_steps_of_an_epoch() -> None:
    loader = DataLoader(RANDOM["wrap"]())
    list(loader.iterate(loader.init_state(0), steps=8))
    with pytest.warns(EpochWarning, match=AGAIN):
        loader.iterate(loader.init_state(0), steps=8)


@pytest.mark.parametrize("kind", RANDOM)
def test_trainings_of_several_epochs_may_begin_with_one_key(kind: str) -> None:
    with DataLoader(RANDOM[kind]()) as loader:
        for _learning_rate in (0.1, 0.01):
            assert len(list(loader.iterate(loader.init_state(0), epochs=3))) >= 6


def test_other_keys_a_look_at_a_batch_and_the_rest_of_an_epoch_are_no_repetition() -> None:
    loader = DataLoader(RANDOM["pad"]())
    list(loader.iterate(loader.init_state(0)))
    list(loader.iterate(loader.init_state(1)))
    next(loader.iterate(loader.init_state(0), steps=1))
    for _ in range(2):
        assert len(list(loader.iterate(loader.state_at(0, 1)))) == 2
    fresh = DataLoader(RANDOM["pad"]())  # has not run anything
    for _ in range(3):
        assert len(list(itertools.islice(fresh.iterate(fresh.init_state(0)), 2))) == 2
    with pytest.warns(EpochWarning, match=AGAIN):
        loader.iterate(loader.init_state(0))


@pytest.mark.parametrize("kind", FIXED)
def test_pipelines_that_are_not_random_may_be_repeated(kind: str) -> None:
    with DataLoader(FIXED[kind]()) as loader:
        for _ in range(3):
            assert len(list(loader.iterate(loader.init_state(0)))) == 3
            assert len(list(loader)) == 3
            assert len(list(loader.iterate())) == 3


def test_what_is_remembered_is_bounded_and_dies_with_the_loader() -> None:
    loader = DataLoader(RANDOM["pad"]())
    for key in range(100):
        list(loader.iterate(loader.init_state(key)))
    assert len(loader.learnt._ended) == 64
    learnt = weakref.ref(loader.learnt)
    assert jax.tree.leaves(loader) == jax.tree.leaves(DataLoader(RANDOM["pad"]()))
    del loader
    gc.collect()
    assert learnt() is None


def test_many_threads_hear_it_once() -> None:
    loader = DataLoader(RANDOM["pad"]())
    list(loader.iterate(loader.init_state(0)))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        work = lambda: list(loader.iterate(loader.init_state(0)))  # noqa: E731
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [each.category for each in found] == [EpochWarning]


@pytest.mark.parametrize("kind", RANDOM)
def test_without_a_state_a_random_pipeline_is_refused(kind: str) -> None:
    match = r"would repeat the same order every time\. Write `state = loader\.init_state\(key\)`"
    with DataLoader(RANDOM[kind]()) as loader:
        with pytest.raises(cereal.UsageError, match=r"random.*`loader\.iterate\(\)` " + match):
            loader.iterate()
        with pytest.raises(cereal.UsageError, match=r"random.*`for \.\.\. in loader` " + match):
            iter(loader)


def test_streams_of_a_fixed_order_need_no_state_and_others_do() -> None:
    stages = [RangeSource(4), BatchTransform(2), UnbatchTransform()]
    assert [int(x) for x, _ in DataLoader(stages)] == [0, 1, 2, 3]
    for random in (
        [RangeSource(4, ordering="shuffle"), BatchTransform(2), UnbatchTransform()],
        [*stages, RandomMapTransform(noisy)],
    ):
        with pytest.raises(cereal.UsageError, match="this pipeline is random"):
            DataLoader(random).iterate()


@cereal.pytree_dataclass
class Ones(cereal.Source[Any]):
    """A stream, of which nobody knows whether the key counts."""

    steps_per_epoch: int = cereal.static_field(default=4)

    def element_spec(self) -> Any:
        return jax.ShapeDtypeStruct((), np.int32)

    def init_state(self, key: Any) -> Any:
        return key

    def next(self, state: Any) -> Any:
        return np.int32(1), np.bool_(True), state


def test_a_stream_of_the_users_own_needs_a_state() -> None:
    match = r"may be random \(it begins with a stream\), and a loader has no state"
    with pytest.raises(cereal.UsageError, match=match):
        DataLoader([Ones(), BatchTransform(2)]).iterate()


# Iterators that have ended


@pytest.mark.parametrize("kind", FIXED)
def test_a_second_loop_over_an_iterator_that_has_ended_is_told_so(kind: str) -> None:
    with DataLoader(FIXED[kind]()) as loader:
        batches = loader.iterate()
        assert len(list(batches)) == 3
        assert next(batches, None) is None
        with pytest.warns(
            EpochWarning, match=r"does nothing; .* loader\.iterate\(batches\.state\)`"
        ):
            assert list(batches) == []
        batches.state = loader.init_state(0)
        assert len(list(batches)) == 3


def test_taking_an_iterator_in_pieces_is_not_a_second_loop() -> None:
    loader = DataLoader(FIXED["range"]())
    batches = loader.iterate(epochs=3)
    sizes = []
    while chunk := list(itertools.islice(batches, 5)):
        sizes.append(len(chunk))
    assert sizes == [5, 3]
    assert list(loader.iterate(steps=0)) == []


# Words


@pytest.mark.parametrize("given", [(3,), (3, 4), ("a",)])
def test_counts_go_by_name(given: tuple[Any, ...]) -> None:
    loader: Any = DataLoader(FIXED["range"]())
    match = r"options by name; got .*`loader\.iterate\(state, steps=3\)` for 3 batches"
    with pytest.raises(cereal.UsageError, match=match):
        loader.iterate(loader.init_state(0), *given)


def test_a_key_or_a_seed_is_no_state() -> None:
    loader = DataLoader(FIXED["range"]())
    with pytest.raises(
        cereal.StateError, match=r"integer 3; write `state = loader\.init_state\(3\)"
    ):
        loader.iterate(3)
    for key in (jax.random.key(0), jax.random.PRNGKey(0)):
        with pytest.raises(cereal.StateError, match=r"random key; write `state = loader\.init_st"):
            loader.iterate(key)
