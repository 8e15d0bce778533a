"""`get_state` and `set_state`: any iterator goes on from a dict that was JSON in between."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pipeline.counter import Counter
from tests.rl.corridor import ONE, walk
from tests.slowly import quickly

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    DiskSampleSource,
    HostCallbackTransform,
    HostRandomMapTransform,
    IterableSource,
    MapTransform,
    RandomMapTransform,
    RangeSource,
    UnbatchTransform,
)
from cereal.loaders.iterators.saved_state import position_from, saved_position
from cereal.pipeline.state import Fingerprint, host_words
from cereal.testing import assert_same

N = 22


class Marked:
    """An iterator with a state of its own, which counts what it gave."""

    given = 0

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Marked:
        return self

    def __next__(self) -> Any:
        if self.at == N:
            raise StopIteration
        self.at += 1
        Marked.given += 1
        return np.float32(self.at)

    def get_state(self) -> Any:
        return {"at": self.at, "raw": b"\x00\xff"}

    def set_state(self, state: Any) -> None:
        assert state["raw"] == b"\x00\xff"
        self.at = state["at"]


def noise(x: Any, key: Any) -> Any:
    return x + jax.random.uniform(key)


def host_noise(x: Any, rng: np.random.Generator) -> Any:
    return np.float32(x + rng.random())


def numbers() -> Any:
    return ArraySampleSource(np.arange(float(N)), ordering="shuffle")


def disk() -> Any:
    return DiskSampleSource(N, np.float32, ordering="shuffle")


def unbatched(n: int = N) -> list[Any]:
    centred = MapTransform(lambda batch: batch - batch.mean())
    return [ArraySampleSource(np.arange(float(n))), BatchTransform(5), centred, UnbatchTransform()]


PIPELINES: dict[str, Callable[[], list[Any]]] = {
    "memory": lambda: [numbers(), RandomMapTransform(noise), BatchTransform(4)],
    "host": lambda: [disk(), HostRandomMapTransform(host_noise), BatchTransform(4)],
    "bookmarks": lambda: [IterableSource(Marked), BatchTransform(4)],
    "iterable": lambda: [IterableSource(lambda: map(np.float32, range(N))), BatchTransform(4)],
    "callback": lambda: [
        numbers(),
        BatchTransform(4),
        HostCallbackTransform(lambda batch, mask: None),
    ],
    "stream": lambda: [Counter(N), BatchTransform(4)],
    "unbatched": lambda: [*unbatched(), BatchTransform(4)],
    "rollout": lambda: [walk(num_envs=2), BatchTransform(4)],
}


def started(loader: DataLoader[Any], key: int) -> Any:
    rollout = isinstance(loader.source, cereal.Source) and "Rollout" in repr(loader)
    return loader.init_state(key, ONE if rollout else None)


def through_json(saved: dict[str, Any]) -> dict[str, Any]:
    """As a file would give it back."""
    back = json.loads(json.dumps(saved))
    assert back == saved
    return back


def taken(batches: Any, count: int) -> list[Any]:
    return [jax.device_get(pair) for pair in itertools.islice(batches, count)]


# Every kind of iterator


@pytest.mark.parametrize("kind", PIPELINES)
def test_every_iterator_goes_on_exactly_from_any_step(kind: str) -> None:
    """Eight steps are more than an epoch; each is restored in a loader of its own, and in use."""
    with DataLoader(PIPELINES[kind]()) as loader, DataLoader(PIPELINES[kind]()) as other:
        batches = loader.iterate(started(loader, 3), epochs=None)
        saved, given = [through_json(batches.get_state())], []
        for _ in range(8):
            given += taken(batches, 1)
            saved.append(through_json(batches.get_state()))
        rest = other.iterate(started(other, 0), epochs=None)
        for step in (8, 5, 0, 3, 7):
            rest.set_state(saved[step])
            assert rest.get_state() == saved[step] or kind == "bookmarks"
            assert_same(taken(rest, 8 - step), given[step:], f"from step {step}")
            assert {**rest.get_state(), "bookmark": 0, "checksum": 0} == {
                **saved[8],
                "bookmark": 0,
                "checksum": 0,
            }


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("prefetch", [1, 7])
def test_workers_and_prefetch_may_change(workers: int, prefetch: int) -> None:
    with (
        DataLoader(PIPELINES["host"](), workers=2, prefetch=2) as loader,
        DataLoader(PIPELINES["host"](), workers=workers, prefetch=prefetch) as other,
    ):
        batches = loader.iterate(loader.init_state(3), epochs=None)
        taken(batches, 4)
        saved = through_json(batches.get_state())
        rest = other.iterate(other.init_state(0), epochs=None)
        rest.set_state(saved)
        assert_same(taken(rest, 6), taken(batches, 6), "the rest")


@pytest.mark.slow
def test_processes_go_on_where_threads_stopped() -> None:
    with (
        DataLoader(PIPELINES["host"](), workers=2) as loader,
        DataLoader(PIPELINES["host"](), workers=2, worker_type="process") as other,
    ):
        batches = loader.iterate(loader.init_state(3), epochs=None)
        taken(batches, 3)
        rest = other.iterate(other.init_state(0), epochs=None)
        rest.set_state(through_json(batches.get_state()))
        assert_same(taken(rest, 6), taken(batches, 6), "the rest")


def test_a_bookmark_saves_reading_again() -> None:
    with DataLoader(PIPELINES["bookmarks"](), workers=0) as loader:
        batches = loader.iterate(loader.init_state(0))
        taken(batches, 4)
        saved = through_json(batches.get_state())
    assert saved["bookmark"]
    with DataLoader(PIPELINES["bookmarks"](), workers=0) as loader:
        rest = loader.iterate(loader.init_state(0))
        rest.set_state(saved)
        Marked.given = 0
        [(batch, _)] = taken(rest, 1)
    assert batch.tolist() == [17, 18, 19, 20]
    assert Marked.given <= 8  # without the bookmark, sixteen more


# The batch size


RULES: dict[str, dict[str, Any]] = {
    "wrap": {},
    "pad": {"pad_last_batch": True},
    "drop": {"drop_last": True},
}


def elements(batches: Any, count: int) -> list[float]:
    """The real elements of some batches, in order."""
    return [float(x) for batch, mask in taken(batches, count) for x in batch[mask]]


SIZES = [(4, 3), (3, 11), (5, 1), (2, N)]
OTHER = quickly(itertools.product([numbers, disk], SIZES), (disk, SIZES[0]), (numbers, SIZES[1]))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("make", "sizes"), OTHER)
def test_another_batch_size_loses_and_repeats_nothing(
    make: Any, rule: str, sizes: tuple[int, int]
) -> None:
    first, second = (DataLoader([make(), BatchTransform(size, **RULES[rule])]) for size in sizes)
    with first, second:
        whole = DataLoader([make(), BatchTransform(1)])
        order = [float(x[0]) for x, _ in whole.iterate(whole.init_state(3), epochs=2)]
        whole.close()
        batches = first.iterate(first.init_state(3), epochs=None)
        before = elements(batches, 3)
        rest = second.iterate(second.init_state(0))  # to the end of the epoch
        rest.set_state(through_json(batches.get_state()))
        after = elements(rest, 1000)
    seen = before + after
    assert seen == order[: len(seen)]  # each element of the order, once
    left = N - len(before)
    ends = {"pad": N, "drop": N - left % sizes[1], "wrap": N + -left % sizes[1]}
    assert len(seen) == ends[rule]


def test_the_batch_size_may_change_at_every_step() -> None:
    loaders = {size: DataLoader([numbers(), BatchTransform(size)]) for size in range(1, 6)}
    order = elements(loaders[1].iterate(loaders[1].init_state(3), epochs=3), 1000)
    batches = loaders[1].iterate(loaders[1].init_state(3), epochs=None)
    seen = []
    for step in range(20):
        saved = through_json(batches.get_state())
        batches = loaders[1 + step * 3 % 5].iterate(loaders[1].init_state(0), epochs=None)
        batches.set_state(saved)
        seen += elements(batches, 1)
    assert len(seen) == 60
    assert seen == order[:60]


# What a state says


def test_a_finished_iterator_gives_the_beginning_of_the_next_epoch() -> None:
    for kind in ("memory", "host", "bookmarks", "callback"):
        with DataLoader(PIPELINES[kind]()) as loader:
            batches = loader.iterate(loader.init_state(3))
            assert len(list(batches)) == 6
            saved = batches.get_state()
            wrapped = 0 if kind == "bookmarks" else -N % 4
            assert (saved["epoch"], saved["offset"]) == (1, wrapped), kind
            batches.set_state(through_json(saved))
            assert len(list(batches)) in (5, 6)
            assert batches.get_state()["epoch"] == 2


def test_a_finished_stream_can_be_set_back() -> None:
    loader = DataLoader(PIPELINES["stream"]())
    batches = loader.iterate(loader.init_state(0), steps=3)
    saved = batches.get_state()
    taken(batches, 3)
    with pytest.raises(StopIteration):
        next(batches)
    again = loader.iterate(loader.init_state(0), steps=1)
    again.set_state(saved)
    assert next(again)[0].tolist() == [0, 1, 2, 3]


def test_a_state_is_small_and_in_words() -> None:
    loader = DataLoader(PIPELINES["memory"]())
    saved = loader.iterate(loader.state_at(2**40 + 7, 10**7)).get_state()
    assert saved["version"] == 1
    assert saved["key"] == [256, 7]
    assert saved["epoch"] * N + saved["offset"] == 4 * 10**7
    assert saved["pipeline"] == {"length": N, "ordering": "shuffle", "random_stages": 1}
    assert len(json.dumps(saved)) < 300


def test_the_state_of_many_parts_is_small_too() -> None:
    def made(swap: bool) -> DataLoader[Any]:
        lengths = [*range(3, 60), *((61, 60) if swap else (60, 61))]
        parts = [cereal.SliceSource(RangeSource(99), [*range(n), 0]) for n in lengths]
        return DataLoader([cereal.ConcatSource(parts), BatchTransform(4)])

    loader = made(swap=False)
    saved = loader.iterate(loader.init_state(0)).get_state()
    assert len(json.dumps(saved)) < 600
    made(swap=False).iterate().set_state(saved)
    with pytest.raises(cereal.StateError, match="belongs to another pipeline: it has ordering="):
        made(swap=True).iterate().set_state(saved)


@given(
    st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**62),
)
def test_json_keeps_every_position(key: tuple[int, int], epoch: int, offset: int) -> None:
    fingerprint = Fingerprint(2**62, ("shuffle",), 3)
    saved = through_json(saved_position(fingerprint, key, epoch, offset, None))
    assert host_words(position_from(saved, fingerprint)) == (*key, epoch, offset)


def test_positions_beyond_32_bits_are_kept() -> None:
    source = DiskSampleSource(2**40, np.float32, ordering="shuffle")
    with DataLoader([source, BatchTransform(4)], workers=0) as loader:
        batches = loader.iterate(loader.state_at(3, 2**37))
        saved = through_json(batches.get_state())
        assert saved["offset"] == 2**39
        expected = taken(batches, 2)
        batches.set_state(saved)
        assert_same(taken(batches, 2), expected, "far away")


def test_the_arrays_of_a_stream_come_back_bit_by_bit() -> None:
    @cereal.pytree_dataclass
    class Odd(cereal.Source[Any]):
        steps_per_epoch: int = cereal.static_field(default=4)

        def element_spec(self) -> Any:
            return jax.ShapeDtypeStruct((), jnp.int32)

        def init_state(self, key: Any) -> Any:
            nan = jnp.array([jnp.nan, -0.0, jnp.inf], jnp.bfloat16)
            rest = {"nan": nan, "flag": jnp.array(True), "empty": jnp.zeros((0, 3)), "weak": 0}
            return {"key": key, "keys": jax.random.split(key, 3), **rest}

        def next(self, state: Any) -> Any:
            return jnp.int32(1), jnp.bool_(True), {**state, "weak": state["weak"] + 1}

    loader = DataLoader([Odd(), BatchTransform(2)])
    batches = loader.iterate(loader.init_state(7))
    next(batches)
    saved, state = through_json(batches.get_state()), batches.state
    other = loader.iterate(loader.init_state(0))
    other.set_state(saved)
    assert other.get_state() == saved
    for one, two in zip(jax.tree.leaves(other.state), jax.tree.leaves(state), strict=True):
        assert one.dtype == two.dtype
        if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            assert (jax.random.key_data(one) == jax.random.key_data(two)).all()
        else:
            assert (one.weak_type, one.committed) == (two.weak_type, two.committed)
            assert np.asarray(one).tobytes() == np.asarray(two).tobytes()


# Threads, and who waits


def test_any_thread_may_ask_while_a_batch_is_made() -> None:
    """The function of the source waits until another thread has asked."""
    asked, holder = threading.Event(), []

    def slow(index: int) -> Any:
        if holder:
            assert asked.wait(60)
        return np.float32(index)

    spec = jax.ShapeDtypeStruct((), np.float32)
    loader = DataLoader([DiskSampleSource(9, slow, spec, ordering="sequential"), BatchTransform(3)])
    with loader:
        batches = loader.iterate(loader.init_state(0))
        holder.append(batches)
        thread = threading.Thread(target=lambda: next(batches))
        thread.start()
        saved = batches.get_state()
        asked.set()
        thread.join()
        assert saved["offset"] == 0
        assert batches.get_state()["offset"] == 3


def test_asking_does_not_touch_the_device() -> None:
    for kind in ("memory", "host", "callback"):
        with DataLoader(PIPELINES[kind]()) as loader:
            batches = loader.iterate(loader.init_state(0))
            next(batches)
            with jax.transfer_guard("disallow_explicit"):
                assert batches.get_state()["offset"] == 4


def test_states_that_other_threads_see_are_those_after_a_batch() -> None:
    with DataLoader(PIPELINES["host"]()) as loader:
        batches = loader.iterate(loader.init_state(0), epochs=None)
        done, seen = threading.Event(), set()

        def look() -> None:
            while not done.is_set():
                saved = batches.get_state()
                seen.add(saved["epoch"] * N + saved["offset"])

        watcher = threading.Thread(target=look)
        watcher.start()
        taken(batches, 30)
        done.set()
        watcher.join()
    assert seen <= set(range(0, 121, 4))
