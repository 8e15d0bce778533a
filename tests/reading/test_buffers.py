"""Memory for batches is used again only when nobody has it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cereal import BatchTransform, DataLoader, DiskSampleSource, HostMapTransform
from cereal.reading import buffers
from cereal.reading.buffers import ALIGNMENT, LEAST_BYTES, NO_BUFFERS, Buffers

pytestmark = pytest.mark.optimized

ROWS, WIDTH = 8, 1 << 15
SHAPE = (ROWS, WIDTH)  # of float32: 1 MB


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def full(value: float) -> np.ndarray:
    return np.full(SHAPE, value, np.float32)


# Reuse


def test_memory_that_nobody_has_is_used_again() -> None:
    pool = Buffers(4)
    first = address(pool.empty(SHAPE, np.float32))
    for _ in range(5):
        assert address(pool.empty(SHAPE, np.float32)) == first


def test_one_memory_serves_every_shape_and_dtype_of_its_size() -> None:
    pool = Buffers(4)
    first = address(pool.empty(SHAPE, np.float32))
    for shape, dtype in (((ROWS * WIDTH,), np.int32), ((WIDTH, ROWS, 4), np.uint8)):
        array = pool.empty(shape, dtype)
        assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
        assert address(array) == first
        del array
    assert address(pool.empty((ROWS + 1, WIDTH), np.float32)) != first


KEPT: dict[str, Callable[[np.ndarray], Any]] = {
    "itself": lambda x: x,
    "a slice": lambda x: x[3:4, ::2],
    "a transposed view": lambda x: x.T,
    "a view of other dtype": lambda x: x.view(np.uint8),
    "a row": lambda x: x[-1],
    "a memoryview": lambda x: x.data,
    "an iterator": lambda x: iter(x),
    "an array on the device": lambda x: jax.device_put(x),
    "an array in a container": lambda x: {"deep": [jnp.asarray(x)]},
    "NumPy's view of an array": lambda x: np.asarray(jax.device_put(x)),
    "a slice of NumPy's view": lambda x: np.asarray(jax.device_put(x))[2:3],
    "DLPack": lambda x: np.from_dlpack(jax.device_put(x)),
    "what jit hands through": lambda x: jax.jit(lambda y: y)(jax.device_put(x)),
    "one shard": lambda x: jax.device_put(x).addressable_shards[0].data,
    "the same device again": lambda x: jax.device_put(jax.device_put(x), jax.devices()[0]),
}


@pytest.mark.parametrize("name", KEPT)
def test_memory_that_somebody_has_is_left_alone(name: str) -> None:
    pool = Buffers(4)
    array = pool.empty(SHAPE, np.float32)
    array[...] = 7
    kept = KEPT[name](array)
    del array
    gc.collect()
    for _ in range(4):
        other = pool.empty(SHAPE, np.float32)
        other[...] = -1
    seen = jax.tree.leaves(kept)[0] if isinstance(kept, dict) else kept
    if name == "an iterator":
        seen = next(seen)
    values = np.asarray(seen)
    values = values.view(np.float32) if values.dtype == np.uint8 else values
    assert (values == 7).all()


def test_results_of_a_program_in_flight_are_of_the_values_at_its_call() -> None:
    pool = Buffers(2)

    @jax.jit
    def slow(x: Any) -> Any:
        return jax.lax.fori_loop(0, 20, lambda _, y: jnp.sin(y) + x, x).sum(axis=1)

    truth = [np.asarray(slow(jnp.asarray(full(k)))) for k in range(6)]
    found = []
    for value in range(6):
        array = pool.empty(SHAPE, np.float32)
        array[...] = value
        found.append(slow(array))
        del array
    for value in range(6):
        np.testing.assert_array_equal(found[value], truth[value])


def test_copies_to_other_devices_are_of_the_values_at_their_call() -> None:
    pool, found = Buffers(2), []
    for value in range(12):
        array = pool.empty(SHAPE, np.float32)
        array[...] = value
        found.append(jax.device_put(jax.device_put(array), jax.devices()[1 + value % 3]))
        del array
    for value in range(12):
        assert (np.asarray(found[value]) == value).all()


# Sizes


@pytest.mark.parametrize("shape", [SHAPE, (LEAST_BYTES,), (3, 7, LEAST_BYTES + 13)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.complex64])
def test_memory_begins_where_jax_takes_it_without_a_copy(shape: Any, dtype: Any) -> None:
    pool = Buffers(3)
    held = [pool.empty(shape, dtype) for _ in range(5)]
    for array in held:
        assert address(array) % ALIGNMENT == 0
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert array.shape == shape
    for value, array in enumerate(held):
        array[...] = value
    assert [array.flat[-1] for array in held] == list(range(5))


def test_jax_on_the_cpu_takes_it_without_a_copy() -> None:
    array = Buffers(1).empty(SHAPE, np.float32)
    array[...] = 0
    assert jax.device_put(array).unsafe_buffer_pointer() == address(array)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (LEAST_BYTES - 1,), (0, 1 << 20)])
def test_small_arrays_are_fresh(shape: tuple[int, ...]) -> None:
    pool = Buffers(2)
    array = pool.empty(shape, np.uint8)
    assert array.shape == shape
    assert not pool.owns(array)


def test_no_more_are_kept_than_was_said() -> None:
    pool = Buffers(2)
    held = [pool.empty(SHAPE, np.float32) for _ in range(5)]
    assert [pool.owns(array) for array in held] == [True, True, False, False, False]
    assert len({address(array) for array in held}) == 5
    places = {address(array) for array in held[:2]}
    del held
    again = [pool.empty(SHAPE, np.float32) for _ in range(2)]
    assert {address(array) for array in again} == places


def test_a_pool_of_none_keeps_nothing() -> None:
    array = NO_BUFFERS.empty(SHAPE, np.float32)
    assert not NO_BUFFERS.owns(array)


def test_a_pool_owns_views_of_its_own_memory_and_nothing_else() -> None:
    pool, other = Buffers(2), Buffers(2)
    array = pool.empty(SHAPE, np.float32)
    for view in (array, array[2:], array.T[::3], array.view(np.int32).reshape(-1)):
        assert pool.owns(view)
        assert not other.owns(view)
    assert not pool.owns(np.zeros(SHAPE, np.float32))
    assert not pool.owns(array.copy())


def test_threads_never_share_memory() -> None:
    pool, clashes = Buffers(6), []
    together = threading.Barrier(8, timeout=60)

    def work(number: int) -> None:
        together.wait()
        for turn in range(60):
            array = pool.empty((LEAST_BYTES,), np.uint8)
            array[...] = number
            if turn % 3 == 0:
                threading.Event().wait(0.0005)
            if not (array == number).all():
                clashes.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not clashes


# In a loader


def big(i: int) -> np.ndarray:
    return np.full(WIDTH, i, np.float32)


def batches(kept: list[Any], **options: Any) -> list[int]:
    """Keeps 30 batches, and says which of them are not what they should be."""
    source = DiskSampleSource(ROWS * 10, big, ordering="sequential")
    with DataLoader([source, BatchTransform(ROWS)], **options) as loader:
        kept += [batch for batch, _ in loader.iterate(steps=30)]
    wrong = []
    for step, batch in enumerate(kept):
        truth = np.arange(step * ROWS, (step + 1) * ROWS) % (ROWS * 10)
        if not (np.asarray(batch) == truth[:, None]).all():
            wrong.append(step)
    return wrong


@pytest.mark.parametrize("options", [{"workers": 0}, {"workers": 1, "prefetch": 1}, {"workers": 3}])
def test_batches_that_are_kept_stay_as_they_were(options: dict[str, Any]) -> None:
    assert batches([], **options) == []


def test_batches_change_if_memory_is_used_again_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the tests here would see it."""
    monkeypatch.setattr(buffers, "_NOBODY", 1 << 30)
    assert len(batches([], workers=1)) > 10


def test_a_loop_that_drops_its_batches_uses_few_buffers() -> None:
    source = DiskSampleSource(ROWS * 40, big, ordering="sequential")
    places = set()
    with DataLoader([source, BatchTransform(ROWS)], workers=1, prefetch=2) as loader:
        for batch, _ in loader.iterate():
            places.add(jax.block_until_ready(batch).unsafe_buffer_pointer())
            del batch
    assert len(places) <= 8


def test_what_a_host_function_keeps_of_its_batch_stays_as_it_was() -> None:
    seen: list[np.ndarray] = []

    def look(batch: np.ndarray) -> np.ndarray:
        seen.append(batch[:, :2])
        return batch

    source = DiskSampleSource(ROWS * 10, big, ordering="sequential")
    stages = [BatchTransform(ROWS), HostMapTransform(look)]
    with DataLoader([source, *stages], workers=1) as loader:
        seen.clear()
        for batch, _ in loader.iterate(steps=10):
            jax.block_until_ready(batch)
    firsts = sorted(int(rows[0, 0]) for rows in seen)
    assert firsts == [step * ROWS for step in range(10)]


def test_two_loaders_and_two_iterators_never_share_memory() -> None:
    source = DiskSampleSource(ROWS * 10, big, ordering="sequential")
    stages = [source, BatchTransform(ROWS)]
    with DataLoader(stages, workers=1) as one, DataLoader(stages, workers=1) as two:
        walks = [one.iterate(), one.iterate(), two.iterate()]
        kept = [[next(walk)[0] for walk in walks] for _ in range(10)]
    for step, three in enumerate(kept):
        truth = np.arange(step * ROWS, (step + 1) * ROWS)[:, None]
        assert all((np.asarray(batch) == truth).all() for batch in three)
