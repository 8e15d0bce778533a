"""`scan_epoch` over host data, outside of jit: chunks that are read ahead."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal import BatchTransform, DataLoader, DiskSampleSource, HostRandomMapTransform
from cereal.loaders.scan import host_scan
from cereal.testing import assert_same

N, B = 42, 4  # an epoch of 11 steps, the last one half
GUARD = 60.0


class Reader:
    """Reads element `i` as its square; counts; cannot read while `bad` is set."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.bad = -1
        self._lock = threading.Lock()

    def __call__(self, i: int) -> np.int32:
        with self._lock:
            self.counts[i] += 1
        if i == self.bad:
            raise OSError(f"element {i} is lost")
        return np.int32(i * i)


@pytest.fixture
def reader() -> Reader:
    return Reader()


def make(reader: Any, rule: str = "pad", ordering: Any = "sequential", **options: Any) -> Any:
    rules: dict[str, Any] = {"pad": {"pad_last_batch": True}, "drop": {"drop_last": True}}
    spec = jax.ShapeDtypeStruct((), np.int32)
    source = DiskSampleSource(N, reader, sample_spec=spec, ordering=ordering)
    batch = BatchTransform(B, **rules.get(rule, {}))
    return DataLoader([source, batch], **{"workers": 2, **options})


def steps_of(rule: str, begin: int = 0) -> Iterator[tuple[list[int], list[bool]]]:
    """The batches of sequential epochs and their masks, by a plain loop."""
    position = 0
    number = 0
    while True:
        rows = range(position, position + B)
        if number >= begin:
            real = [rule != "pad" or i < N for i in rows]
            yield [(i % N) ** 2 for i in rows], real
        position += B
        number += 1
        if rule == "pad" and position >= N:
            position = 0
        if rule == "drop" and position + B > N:
            position = 0


def keep(carry: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
    return carry + 1, (batch, mask)


def check(loader: Any, rule: str, steps: int, begin: int = 0, **options: Any) -> Any:
    state = loader.state_at(0, begin)
    state, count, (batches, masks) = loader.scan_epoch(state, 0, keep, steps=steps, **options)
    assert int(count) == steps
    assert batches.shape == masks.shape == (steps, B)
    walk = steps_of(rule, begin)
    for number in range(steps):
        batch, mask = next(walk)
        assert batches[number].tolist() == batch
        assert masks[number].tolist() == mask
    assert_same(state, loader.state_at(0, begin + steps), "the state")
    return state


@pytest.mark.parametrize("rule", ["pad", "drop", "wrap"])
@pytest.mark.parametrize("steps", [0, 1, 7, 11, 16, 17, 37])
def test_any_number_of_steps_is_a_plain_loop(rule: str, steps: int, reader: Reader) -> None:
    with make(reader, rule) as loader:
        check(loader, rule, steps)


@pytest.mark.parametrize("most", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("begin", [0, 4, 10])
def test_chunks_of_any_size_from_anywhere(
    most: int, begin: int, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_scan, "MOST_STEPS", most)
    with make(reader) as loader:
        check(loader, "pad", 13, begin)


@pytest.mark.parametrize("most", [1, 16, 33, 80])  # bytes; a batch has 16
def test_chunks_are_bounded_in_bytes(
    most: int, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_scan, "MOST_BYTES", most)
    with make(reader) as loader:
        check(loader, "pad", 12)


@pytest.mark.parametrize("options", [{"workers": 0}, {"workers": 1, "prefetch": 0}])
@pytest.mark.parametrize("unroll", [1, 3, True])
def test_whatever_reads_and_however_unrolled(
    options: dict[str, Any], unroll: Any, reader: Reader
) -> None:
    with make(reader, **options) as loader:
        check(loader, "pad", 11, unroll=unroll)


def test_every_element_is_read_exactly_once(reader: Reader) -> None:
    with make(reader, "drop") as loader:
        reader.counts.clear()
        loader.scan_epoch(loader.init_state(0), 0, keep)
    assert reader.counts == dict.fromkeys(range(N - N % B), 1)


def test_epoch_after_epoch_is_one_walk(reader: Reader) -> None:
    with make(reader, ordering="shuffle") as loader:
        state, seen = loader.init_state(3), []
        for _ in range(3):
            state, _, (batches, masks) = loader.scan_epoch(state, 0, keep)
            seen.append(np.asarray(batches)[np.asarray(masks)].tolist())
        for epoch in seen:
            assert sorted(epoch) == [i * i for i in range(N)]
        assert seen[0] != seen[1] != seen[2]
        truth = [loader.indices_at(3, step) ** 2 for step in range(33)]
        assert np.concatenate(truth).tolist() == [x for epoch in seen for x in epoch]


def test_random_host_stages_are_those_of_iterate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_scan, "MOST_STEPS", 3)
    source = DiskSampleSource(N, lambda i: i, ordering="shuffle")
    noisy = HostRandomMapTransform(lambda x, rng: x * 1000 + rng.integers(1000))
    with DataLoader([source, noisy, BatchTransform(B)], workers=2) as loader:
        _, _, (batches, _) = loader.scan_epoch(loader.init_state(1), 0, keep, steps=14)
        pairs = list(loader.iterate(loader.init_state(1), steps=14))
    for step, (batch, _) in enumerate(pairs):
        assert batches[step].tolist() == batch.tolist()
        assert (batch // 1000).tolist() == loader.indices_at(1, step).tolist()


# Carry, outputs, bodies


def test_a_carry_may_be_any_tree_and_outputs_none(reader: Reader) -> None:
    with make(reader) as loader:

        def body(carry: Any, batch: Any, mask: Any) -> Any:
            total = carry["total"] + jnp.where(mask, batch, 0).sum()
            return {"total": total, "key": jax.random.fold_in(carry["key"], 1)}, None

        carry = {"total": jnp.int32(0), "key": jax.random.key(0)}
        _, carry, outputs = loader.scan_epoch(loader.init_state(0), carry, body)
        assert outputs is None
        assert int(carry["total"]) == sum(i * i for i in range(N))


def test_a_body_that_is_written_anew_is_another_one(reader: Reader) -> None:
    with make(reader) as loader:
        for factor in (1, 2, 3):

            def body(carry: Any, batch: Any, mask: Any, factor: int = factor) -> Any:
                return carry + factor * jnp.where(mask, batch, 0).sum(), None

            total = loader.scan_epoch(loader.init_state(0), 0, body)[1]
            assert int(total) == factor * sum(i * i for i in range(N))


def test_arrays_that_a_body_closes_over_are_seen_as_they_are(reader: Reader) -> None:
    with make(reader) as loader:
        for value in (1.0, 5.0):
            weight = jnp.float32(value)

            def body(carry: Any, batch: Any, mask: Any, weight: Any = weight) -> Any:
                return carry, weight * batch[1]

            outputs = loader.scan_epoch(loader.init_state(0), 0, body, steps=3)[2]
            assert outputs.tolist() == [value * x for x in (1, 25, 81)]


@pytest.mark.parametrize("body", [None, lambda carry: carry, lambda carry, batch, mask: carry])
def test_a_body_of_another_kind_is_refused_and_the_loader_works_on(
    body: Any, reader: Reader
) -> None:
    with make(reader) as loader:
        with pytest.raises(cereal.UsageError):
            loader.scan_epoch(loader.init_state(0), 0, body)
        check(loader, "pad", 11)


def test_a_body_that_raises_leaves_the_loader_usable(reader: Reader) -> None:
    def body(carry: Any, batch: Any, mask: Any) -> Any:
        raise RuntimeError("in the body")

    with make(reader) as loader:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="in the body"):
                loader.scan_epoch(loader.init_state(0), 0, body)
        check(loader, "pad", 11)


def test_a_donated_state_and_carry_do_no_harm(reader: Reader) -> None:
    with make(reader) as loader:
        state = loader.scan_epoch(loader.init_state(0), 0, keep, steps=5)[0]
        jax.jit(lambda s: s, donate_argnums=0)(state)
        check(loader, "pad", 6, begin=5)


# Errors


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("most", [1, 4, 16])
def test_an_error_in_the_middle_comes_out_and_the_loader_works_on(
    workers: int, most: int, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_scan, "MOST_STEPS", most)
    with make(reader, workers=workers) as loader:
        reader.bad = 25
        for _ in range(2):
            with pytest.raises(OSError, match="element 25 is lost") as caught:
                loader.scan_epoch(loader.init_state(0), 0, keep)
            error: Any = caught.value
            assert error.element.index == 25
        check(loader, "pad", 6)
        reader.bad = -1
        check(loader, "pad", 11)


def test_an_error_under_skip_masks_its_element(reader: Reader) -> None:
    with make(reader, on_error="skip") as loader:
        reader.bad = 25
        batches, masks = loader.scan_epoch(loader.init_state(0), 0, keep)[2]
        kept = np.asarray(batches)[np.asarray(masks)].tolist()
        assert kept == [i * i for i in range(N) if i != 25]
        assert loader.skipped == 1


def test_the_callback_of_another_loader_may_scan(reader: Reader) -> None:
    """A scan inside of a host function, outside of programs."""
    with make(reader) as inner:

        def total(i: int) -> np.int32:
            state = inner.state_at(0, i)
            add = lambda c, b, m: (c + b.sum(), None)  # noqa: E731
            return np.int32(inner.scan_epoch(state, 0, add, steps=1)[1])

        with DataLoader([DiskSampleSource(8, total, ordering="sequential")], workers=1) as outer:
            found = [int(x) for x, _ in outer]
        walk = steps_of("pad")
        assert found == [sum(next(walk)[0]) for _ in range(8)]


# Memory and reading ahead


def test_the_next_chunk_is_read_while_this_one_is_scanned(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The body waits until an element of the next chunk has been asked for."""
    monkeypatch.setattr(host_scan, "MOST_STEPS", 2)
    ahead, late = threading.Event(), []

    def read(i: int) -> np.int32:
        if i >= 2 * B:
            ahead.set()
        return np.int32(i * i)

    def wait(batch: Any) -> np.ndarray:
        late.append(not ahead.wait(GUARD))
        return np.asarray(batch)

    def body(carry: Any, batch: Any, mask: Any) -> Any:
        return carry, jax.pure_callback(wait, batch, batch)

    with make(read, workers=1, prefetch=2) as loader:
        found = loader.scan_epoch(loader.init_state(0), 0, body, steps=6)[2]
        walk = steps_of("pad")
        assert found.tolist() == [next(walk)[0] for _ in range(6)]
    assert not any(late)


def test_no_more_chunks_are_read_than_may_be_on_their_way(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first chunk is scanned, only a few others are read."""
    monkeypatch.setattr(host_scan, "MOST_STEPS", 1)
    most, waits = [], threading.Event()

    def read(i: int) -> np.int32:
        if i >= 8 * B:
            waits.set()
        return reader(i)

    def look(number: Any) -> np.ndarray:
        if number == 0:
            assert not waits.wait(0.3)
            most.append(max(reader.counts))
        return np.asarray(number)

    def body(carry: Any, batch: Any, mask: Any) -> Any:
        seen = jax.pure_callback(look, jax.ShapeDtypeStruct((), np.int32), batch[0])
        return carry + seen, batch

    with make(read, workers=1, prefetch=2) as loader:
        found = loader.scan_epoch(loader.init_state(0), jnp.int32(0), body)[2]
        walk = steps_of("pad")
        assert found.tolist() == [next(walk)[0] for _ in range(11)]
    assert most[0] < 8 * B


@pytest.mark.parametrize("size", [3, 4])
def test_large_chunks_are_not_overwritten_by_the_next(size: int) -> None:
    width = 1 << 15
    source = DiskSampleSource(
        40, lambda i: np.full(width, i, np.float32), ordering="sequential", prefetch_size=8
    )
    with DataLoader([source, BatchTransform(size)], workers=2) as loader:

        def body(carry: Any, batch: Any, mask: Any) -> Any:
            return carry, (batch.min(axis=1), batch.max(axis=1))

        low, high = loader.scan_epoch(loader.init_state(0), 0, body, steps=60)[2]
    truth = np.arange(60 * size).reshape(60, size) % 40
    np.testing.assert_array_equal(low, truth)
    np.testing.assert_array_equal(high, truth)


def test_several_scans_at_once(reader: Reader) -> None:
    with make(reader, ordering="shuffle") as loader:
        found: dict[int, Any] = {}

        def work(key: int) -> None:
            found[key] = loader.scan_epoch(loader.init_state(key), 0, keep)[2][0]

        threads = [threading.Thread(target=work, args=(key,)) for key in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(GUARD)
        for key in range(4):
            for step in range(10):
                assert found[key][step].tolist() == (loader.indices_at(key, step) ** 2).tolist()
