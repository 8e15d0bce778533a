"""JAX's settings belong to a thread; workers have those of who asked for the batch."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cereal import BatchTransform, DataLoader, DatasetSource, HostMapTransform, MapTransform
from cereal.core.settings import current_settings

N = 12


def loader_of(fn: Any, workers: int, **options: Any) -> DataLoader[Any]:
    stages = [DatasetSource(list(range(N))), HostMapTransform(fn), BatchTransform(4)]
    return DataLoader(stages, workers=workers, **options)


def in_a_thread(run: Any) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(run()))
    thread.start()
    thread.join()
    return found[0]


def test_settings_are_those_of_the_thread() -> None:
    device = jax.devices()[2]
    with jax.enable_x64(True), jax.default_device(device):
        mine = current_settings()
        assert mine[:2] == (True, device)
        assert in_a_thread(current_settings)[:2] == (False, None)

        def within() -> Any:
            with mine():
                inside = current_settings(), jnp.arange(3).dtype, jnp.zeros(1).devices()
            return inside, current_settings()

        (settings, dtype, devices), after = in_a_thread(within)
        assert (settings, dtype, devices) == (mine, np.dtype(np.int64), {device})
        assert after[:2] == (False, None)


def test_settings_may_forbid_to_run_anything() -> None:
    with current_settings()(executes=False), pytest.raises(RuntimeError):
        jnp.zeros(3).block_until_ready()
    assert jnp.zeros(3).tolist() == [0, 0, 0]


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_wide_types_reach_the_workers(workers: int) -> None:
    with jax.enable_x64(True):
        loader = loader_of(lambda x: np.float64(x) + 1e-12, workers, prefetch=2)
        found = [batch for batch, _ in loader.iterate(loader.init_state(0))]
        assert all(batch.dtype == np.float64 for batch in found)
        expected = [[i + 1e-12 for i in range(at, at + 4)] for at in range(0, N, 4)]
        assert [np.asarray(batch).tolist() for batch in found] == expected


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_default_device_reaches_functions_that_run_jax(workers: int) -> None:
    seen: set[Any] = set()

    def double(x: int) -> Any:
        made = jnp.asarray(x) * 2
        seen.update(made.devices())
        return np.asarray(made)

    device = jax.devices()[3]
    with jax.default_device(device):
        loader = loader_of(double, workers, prefetch=2)
        found = [batch.tolist() for batch, _ in loader.iterate(loader.init_state(0))]
    assert found == [[2 * i for i in range(at, at + 4)] for at in range(0, N, 4)]
    assert seen == {device}


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_functions_may_run_compiled_jax(workers: int) -> None:
    square = jax.jit(lambda x: x * x)
    stages = [DatasetSource(list(range(N))), HostMapTransform(lambda x: square(x))]
    loader = DataLoader(
        [*stages, BatchTransform(4), MapTransform(lambda x: x + 1)], workers=workers
    )
    expected = [[i * i + 1 for i in range(at, at + 4)] for at in range(0, N, 4)]
    assert [b.tolist() for b, _ in loader.iterate(loader.init_state(0))] == expected
    found = loader.scan_epoch(loader.init_state(0), 0, lambda c, b, m: (c, b))[2]
    assert found.tolist() == expected
    state, found = loader.init_state(0), []
    for _ in range(3):
        batch, state, _ = loader.next_batch(state)
        found.append(batch.tolist())
    assert found == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_keeps_the_settings_of_its_first_batch(workers: int) -> None:
    loader = loader_of(lambda x: np.int32(x), workers, prefetch=1)
    iterator = loader.iterate(loader.init_state(0))
    found = [next(iterator)[0].tolist()]
    with jax.default_device(jax.devices()[1]):
        found.append(next(iterator)[0].tolist())
    found.append(next(iterator)[0].tolist())
    assert found == [list(range(at, at + 4)) for at in range(0, N, 4)]


@pytest.mark.parametrize("workers", [0, 2])
def test_precision_reaches_functions_that_run_jax(workers: int) -> None:
    seen: set[Any] = set()

    def note(x: int) -> int:
        config: Any = jax.config
        seen.add((config.jax_default_matmul_precision, config.jax_default_prng_impl))
        return x

    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.default_matmul_precision("highest"))
        stack.enter_context(jax.default_prng_impl("rbg"))
        loader = loader_of(note, workers, prefetch=2)
        seen.clear()
        assert len(list(loader.iterate(loader.init_state(0)))) == 3
    assert seen == {("highest", "rbg")}
