"""A cache gives what its upstream gives, and what is above it runs once per element."""

from __future__ import annotations

import gc
import signal
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.workers.reading import until

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    CacheTransform,
    DataLoader,
    FilterTransform,
    MapTransform,
    MixSource,
    RandomMapTransform,
    RangeSource,
    SliceSource,
)
from cereal.cache import elements
from cereal.pipeline.host_source import HostData, HostIndexed, living
from cereal.testing import assert_same, check_loader, check_resume, check_source

N = 24
WHERE = ["device", "host", "folder"]


class Numbers(HostData):
    """0, 10, 20, ..., counted as they are read."""

    def __init__(self, n: int = N) -> None:
        super().__init__()
        self.asked = np.zeros(n, np.int64)  # how often each was asked for
        self.visits = np.zeros(n, np.int64)  # ... in how many reads
        self.calls = 0
        self.hook: Callable[[int], None] = lambda call: None

    def take(self, indices: np.ndarray) -> np.ndarray:
        self.calls += 1
        self.hook(self.calls)
        np.add.at(self.asked, indices, 1)
        self.visits[np.unique(indices)] += 1
        return (indices * 10).astype(np.int32)

    def digest_of(self) -> Any:
        return len(self.asked)


@cereal.pytree_dataclass
class OnHost(HostIndexed[Any]):
    """The numbers, read by Python outside of compiled programs."""

    numbers: Numbers
    ordering: Any = cereal.static_field(default="sequential")

    def __len__(self) -> int:
        return len(self.numbers.asked)

    def element_spec(self) -> Any:
        return jax.ShapeDtypeStruct((), np.int32)

    def _take_host(self, indices: np.ndarray) -> Any:
        return self.numbers.take(indices)

    def reader(self) -> Any:
        number = self.numbers.number
        return lambda indices: living(number).take(indices)


@cereal.pytree_dataclass
class Compiled(cereal.IndexedSource[Any]):
    """The numbers, read by a user's own compiled `take`."""

    numbers: Numbers
    ordering: Any = cereal.static_field(default="sequential")

    def __len__(self) -> int:
        return len(self.numbers.asked)

    def element_spec(self) -> Any:
        return jax.ShapeDtypeStruct((), np.int32)

    def take(self, indices: Any) -> Any:
        number = self.numbers.number
        result = jax.ShapeDtypeStruct(indices.shape, np.int32)
        return jax.pure_callback(lambda at: living(number).take(np.asarray(at)), result, indices)


def cache(where: str, tmp_path: Path) -> CacheTransform:
    return CacheTransform(tmp_path if where == "folder" else where)


def epochs(loader: DataLoader[Any], count: int = 2, key: int = 3) -> list[Any]:
    pairs = loader.iterate(loader.init_state(key), epochs=count)
    return [jax.tree.map(np.asarray, pair) for pair in pairs]


def square(x: Any) -> Any:
    return x * x


# The same batches


CASES = [("device", "sequential"), ("host", "shuffle"), ("folder", "sequential")]


@pytest.mark.slow
@pytest.mark.parametrize(("where", "ordering"), CASES)
def test_a_cached_pipeline_keeps_the_contract(where: str, ordering: str, tmp_path: Path) -> None:
    data = {"x": np.arange(10, dtype=np.float32).reshape(5, 2), "y": np.arange(5) > 3}
    source = ArraySampleSource(data, ordering=ordering)
    loader = DataLoader([source, cache(where, tmp_path), BatchTransform(3)])
    check_loader(loader)
    check_resume(loader)
    plain = DataLoader([source, BatchTransform(3)])
    assert_same(epochs(loader), epochs(plain), "cached and not")


def test_augmentation_below_the_cache_is_that_without_it(strict_jax: None) -> None:
    jitter = RandomMapTransform(lambda x, key: x + jax.random.randint(key, (), 0, 100))
    cached = DataLoader([RangeSource(6), CacheTransform("host"), jitter, BatchTransform(4)])
    plain = DataLoader([RangeSource(6), jitter, BatchTransform(4)])
    assert_same(epochs(cached), epochs(plain), "cached and not")


def test_a_cached_source_is_a_source() -> None:
    check_source(CacheTransform("host")(RangeSource(5)))


ORDERS = ["sequential", "shuffle", cereal.BlockShuffle(3), [4, 4, 0, 23]]


@pytest.mark.parametrize("ordering", ORDERS, ids=["in order", "shuffled", "in blocks", "listed"])
@pytest.mark.filterwarnings("ignore:.*is larger than the data")
def test_every_order_above_the_cache_is_kept(ordering: Any) -> None:
    stages = [MapTransform(square), BatchTransform(4)]
    plain = DataLoader([RangeSource(N, ordering=ordering), *stages])
    cached = DataLoader([RangeSource(N, ordering=ordering), CacheTransform("host"), *stages])
    assert_same(epochs(cached, 1), epochs(plain, 1), "cached and not")


def test_a_state_goes_on_in_the_same_pipeline_with_a_cache() -> None:
    plain = DataLoader([RangeSource(N, ordering="shuffle"), BatchTransform(5)])
    cached = DataLoader([
        RangeSource(N, ordering="shuffle"), CacheTransform("host"), BatchTransform(5)
    ])  # fmt: skip
    _, state, _ = plain.next_batch(plain.init_state(1))
    assert_same(cached.next_batch(state), plain.next_batch(state), "the second batch")


DTYPES = [np.bool_, np.uint8, np.int16, np.float16, jnp.bfloat16, np.complex64]


@pytest.mark.parametrize("where", WHERE)
def test_every_dtype_comes_back_as_it_was(where: str, tmp_path: Path) -> None:
    values = np.arange(12).reshape(6, 2)
    data = {str(np.dtype(dtype)): values.astype(dtype) for dtype in DTYPES}
    data["nothing"] = np.zeros((6, 0), np.float32)
    source = ArraySampleSource(data, ordering="sequential")
    loader = DataLoader([source, cache(where, tmp_path), BatchTransform(6)])
    plain = DataLoader([source, BatchTransform(6)])
    assert loader.element_spec() == plain.element_spec()
    assert_same(loader.batch_at(0, 0), plain.batch_at(0, 0), where)


@pytest.mark.parametrize("where", ["device", "host"])
def test_batches_go_to_the_device_that_was_named_above_the_cache(where: str) -> None:
    device = jax.devices()[1]
    stages = [RangeSource(4), cereal.DevicePutTransform(device), CacheTransform(where)]
    batch, _ = DataLoader([*stages, BatchTransform(2)]).batch_at(0, 0)
    assert batch.devices() == {device}


@pytest.mark.parametrize("where", WHERE)
def test_with_64_bit_types_on_elements_have_64_bits(where: str, tmp_path: Path) -> None:
    with jax.enable_x64(True):
        source = ArraySampleSource(np.arange(4) / 3, ordering="sequential")
        stages = [source, MapTransform(lambda x: (x * 1.1, jnp.int32(1)))]
        plain = DataLoader([*stages, BatchTransform(2)])
        loader = DataLoader([*stages, cache(where, tmp_path), BatchTransform(2)])
        assert loader.element_spec() == plain.element_spec()
        (batch, _), _, _ = jax.jit(loader.next_batch)(loader.init_state(0))
        np.testing.assert_array_equal(batch, plain.batch_at(0, 0)[0][0])


# Once per element


@pytest.mark.parametrize("kind", [OnHost, Compiled])
@pytest.mark.parametrize("where", WHERE)
def test_what_is_above_runs_in_the_first_epoch_only(kind: Any, where: str, tmp_path: Path) -> None:
    numbers = Numbers()
    stages = [kind(numbers, "shuffle"), MapTransform(square), cache(where, tmp_path)]
    loader = DataLoader([*stages, BatchTransform(8)])
    first, second = epochs(loader, 1), epochs(loader, 1, key=4)
    most = 2 if (kind, where) == (Compiled, "folder") else 1  # a few run alone, as witnesses
    assert set(numbers.visits.tolist()) == {*range(1, most + 1)}
    for batches in (first, second):
        found = np.sort(np.concatenate([batch for batch, _ in batches]))
        np.testing.assert_array_equal(found, (np.arange(N) * 10) ** 2)


def test_python_is_asked_for_each_element_exactly_once() -> None:
    numbers = Numbers()
    epochs(DataLoader([OnHost(numbers), CacheTransform("host"), BatchTransform(3)]))
    np.testing.assert_array_equal(numbers.asked, np.ones(N))


def test_only_what_was_handed_out_is_read() -> None:
    numbers = Numbers()
    loader = DataLoader([OnHost(numbers, "shuffle"), CacheTransform("host"), BatchTransform(4)])
    loader.batch_at(0, 3)
    np.testing.assert_array_equal(np.flatnonzero(numbers.visits), np.sort(loader.indices_at(0, 3)))


def test_after_half_an_epoch_the_other_half_is_read() -> None:
    numbers = Numbers()
    loader = DataLoader([OnHost(numbers, "shuffle"), CacheTransform("host"), BatchTransform(4)])
    batches = loader.iterate(loader.init_state(0))
    for _ in range(3):
        next(batches)
    handed = np.concatenate([loader.indices_at(0, step) for step in range(3)])
    ahead = loader.indices_at(0, 3)  # the iterator may be one batch ahead
    assert set(handed) <= set(np.flatnonzero(numbers.visits)) <= {*handed, *ahead}
    assert len(list(batches)) == 3
    np.testing.assert_array_equal(numbers.visits, np.ones(N))


@pytest.mark.parametrize("kind", [OnHost, Compiled])
def test_your_own_jit_finds_all_elements_read(kind: Any) -> None:
    numbers = Numbers()
    loader = DataLoader([kind(numbers), CacheTransform("host"), BatchTransform(4)])
    step = jax.jit(loader.next_batch)
    batch, state, _ = step(loader.init_state(0))
    np.testing.assert_array_equal(batch, [0, 10, 20, 30])
    np.testing.assert_array_equal(step(state)[0], [40, 50, 60, 70])
    np.testing.assert_array_equal(numbers.visits, np.ones(N))


def test_scan_epoch_reads_once_outside_and_inside_of_jit() -> None:
    def add(total: Any, batch: Any, mask: Any) -> tuple[Any, None]:
        return total + batch.sum(), None

    for wrap in (lambda run: run, jax.jit):
        numbers = Numbers()
        loader = DataLoader([OnHost(numbers, "shuffle"), CacheTransform("host"), BatchTransform(4)])
        run = wrap(lambda state, loader=loader: loader.scan_epoch(state, 0, add)[1])
        assert [int(run(loader.init_state(key))) for key in (0, 1)] == [10 * 276] * 2
        np.testing.assert_array_equal(numbers.visits, np.ones(N))


def test_two_caches_in_one_pipeline_read_once_each() -> None:
    numbers = Numbers()
    twice = [CacheTransform("host"), MapTransform(square), CacheTransform("host")]
    loader = DataLoader([OnHost(numbers, "shuffle"), *twice, BatchTransform(4)])
    jax.jit(loader.next_batch)(loader.init_state(0))
    found = np.sort(np.concatenate([batch for batch, _ in epochs(loader, 1)]))
    np.testing.assert_array_equal(found, (np.arange(N) * 10) ** 2)
    np.testing.assert_array_equal(numbers.visits, np.ones(N))


def test_loaders_over_one_cached_source_share_its_elements() -> None:
    numbers = Numbers()
    cached = CacheTransform("host")(OnHost(numbers))
    left, right = cereal.split(cached, (0.5, 0.5))
    mixed = np.arange(N).reshape(2, N // 2).T.reshape(-1)
    expected: list[tuple[Any, Any]] = [
        (left, range(N // 2)),
        (right, range(N // 2, N)),
        (SliceSource(cached, range(0, N, 3)), range(0, N, 3)),
        (MixSource([left, right]), mixed),
    ]
    for part, indices in expected:
        found = np.concatenate([b for b, _ in epochs(DataLoader([part, BatchTransform(4)]), 1)])
        np.testing.assert_array_equal(found[: len(indices)], 10 * np.asarray(indices))
    np.testing.assert_array_equal(numbers.visits, np.ones(N))


@pytest.mark.parametrize("where", WHERE)
def test_masks_above_the_cache_are_kept(where: str, tmp_path: Path) -> None:
    third = FilterTransform(lambda x: x % 3 == 0)
    batch = BatchTransform(4, pad_last_batch=True)
    loader = DataLoader([RangeSource(10), third, cache(where, tmp_path), batch])
    plain = DataLoader([RangeSource(10), third, batch])
    assert_same(epochs(loader), epochs(plain), where)
    step = jax.jit(loader.next_batch)
    assert_same(step(loader.init_state(0)), plain.next_batch(plain.init_state(0)), "jit")
    assert float(cereal.evaluate(loader, lambda x: x)) == 4.5


# Many threads, errors and the end


def test_eight_threads_over_a_cold_cache_get_the_right_batches_and_read_once() -> None:
    numbers, gate = Numbers(), threading.Barrier(8)
    source = CacheTransform("host")(MapTransform(square)(OnHost(numbers, "shuffle")))
    loader = DataLoader([source, BatchTransform(4)])
    plain = DataLoader([RangeSource(N, ordering="shuffle"), BatchTransform(4)])
    found: dict[int, list[Any]] = {}

    def run(number: int) -> None:
        gate.wait()
        found[number] = epochs(loader, 1, key=number % 2)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [[(100 * b * b, mask) for b, mask in epochs(plain, 1, key)] for key in (0, 1)]
    for number in range(8):
        assert_same(found[number], expected[number % 2], f"thread {number}")
    np.testing.assert_array_equal(numbers.visits, np.ones(N))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_what_was_read_before_an_error_is_not_read_again(error: type[BaseException]) -> None:
    numbers = Numbers()

    def fail(call: int) -> None:
        if call == 3:
            raise error("the third read")

    numbers.hook = fail
    loader = DataLoader([OnHost(numbers), CacheTransform("host"), BatchTransform(4)])
    with pytest.raises(error, match="the third read"):
        epochs(loader, 1)
    found = np.concatenate([batch for batch, _ in epochs(loader, 1)])
    np.testing.assert_array_equal(found, np.arange(N) * 10)
    again = np.zeros(N)
    if error is RuntimeError:  # those of the third read were tried one by one
        again[8:12] = 1
    np.testing.assert_array_equal(numbers.visits, 1 + again)


def test_an_error_above_reaches_the_caller_of_jit() -> None:
    numbers = Numbers()

    def fail(call: int) -> None:
        if call == 1:
            raise RuntimeError("the first read")

    numbers.hook = fail
    loader = DataLoader([OnHost(numbers), CacheTransform("host"), BatchTransform(4)])
    step = jax.jit(loader.next_batch)
    with pytest.raises(RuntimeError, match="the first read"):
        step(loader.init_state(0))
    np.testing.assert_array_equal(step(loader.init_state(0))[0], [0, 10, 20, 30])


def test_control_c_ends_the_filling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elements, "_MOST_BYTES", 64)  # 16 elements at a time
    numbers, main = Numbers(8192), threading.main_thread().ident
    assert main is not None

    def interrupt(call: int) -> None:
        if call == 1:
            signal.pthread_kill(main, signal.SIGINT)

    numbers.hook = interrupt
    loader = DataLoader([OnHost(numbers), CacheTransform("host"), BatchTransform(4)])
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        jax.jit(loader.next_batch)(loader.init_state(0))
    loader.batch_at(0, 2047)  # waits for whoever reads
    assert not numbers.visits.all()


def test_a_cache_goes_with_its_loaders() -> None:
    numbers = Numbers()
    cached: Any = CacheTransform("host")(OnHost(numbers))
    loader = DataLoader([cached, BatchTransform(4)])
    state = loader.init_state(0)
    epochs(loader)
    jax.jit(loader.next_batch)(state)
    jax.jit(lambda loader, state: loader.next_batch(state))(loader, state)
    cereal.evaluate(loader, lambda x: x)
    store, upstream = weakref.ref(cached.store), weakref.ref(numbers)
    del loader, cached, numbers
    gc.collect()
    assert until(lambda: store() is None and upstream() is None)  # after the last program
