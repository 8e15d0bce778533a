"""JAX's settings belong to a thread; workers have those of who asked for the batch."""

from __future__ import annotations

import contextlib
import contextvars
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.core.programs import spread

from cereal import BatchTransform, DataLoader, DatasetSource, HostMapTransform, MapTransform
from cereal.core.jax_internals import thread_holders, trace_context
from cereal.core.settings import current_settings

N = 12
OPTIONS: Any = jax.config


def loader_of(fn: Any, workers: int, **options: Any) -> DataLoader[Any]:
    stages = [DatasetSource(list(range(N))), HostMapTransform(fn), BatchTransform(4)]
    return DataLoader(stages, workers=workers, **options)


def in_a_thread(run: Any) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(run()))
    thread.start()
    thread.join()
    return found[0]


def seen() -> dict[str, Any]:
    """All options of JAX as this thread has them, and more."""
    mesh = jax.sharding.get_abstract_mesh()
    return {**OPTIONS.values, "mesh": mesh, "errors": np.geterr(), "mine": MINE.get()}


MINE: contextvars.ContextVar[str] = contextvars.ContextVar("mine", default="nothing")
MESH = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))


@contextlib.contextmanager
def mine() -> Iterator[None]:
    token = MINE.set("something")
    yield
    MINE.reset(token)


# Each is a `with`, and a function of an element in which it shows, as a number.
CONTEXTS: dict[str, tuple[Any, Callable[[], Any]]] = {
    "x64": (lambda: jax.enable_x64(True), lambda: jnp.arange(3).dtype.itemsize),
    "device": (
        lambda: jax.default_device(jax.devices()[2]),
        lambda: next(iter(jnp.zeros(1).devices())).id,
    ),
    "precision": (
        lambda: jax.default_matmul_precision("highest"),
        lambda: len(str(OPTIONS.jax_default_matmul_precision)),
    ),
    "keys": (
        lambda: jax.default_prng_impl("rbg"),
        lambda: jax.random.key_data(jax.random.key(0)).size,
    ),
    "promotion": (
        lambda: jax.numpy_dtype_promotion("strict"),
        lambda: raises(lambda: jnp.int8(1) + jnp.ones(1)),
    ),
    "ranks": (
        lambda: jax.numpy_rank_promotion("raise"),
        lambda: raises(lambda: jnp.ones(2) + jnp.ones((2, 2))),
    ),
    "threefry": (
        lambda: jax.threefry_partitionable(False),
        lambda: float(jax.random.uniform(jax.random.key(1), (3,))[0]),
    ),
    "nans": (lambda: jax.debug_nans(True), lambda: raises(lambda: jnp.zeros(1) / jnp.zeros(1))),
    "no jit": (lambda: jax.disable_jit(), lambda: raises(lambda: jax.jit(lambda x: int(x))(1))),
    "transfers": (
        lambda: jax.transfer_guard_device_to_device("disallow"),
        lambda: len(str(OPTIONS.jax_transfer_guard_device_to_device)),
    ),
    "checks": (lambda: jax.checking_leaks(), lambda: int(OPTIONS.jax_check_tracer_leaks)),
    "a mesh": (lambda: jax.set_mesh(MESH), lambda: jax.sharding.get_abstract_mesh().size),
    "errstate": (
        lambda: np.errstate(divide="raise"),
        lambda: raises(lambda: np.ones(1) / np.zeros(1)),
    ),
    "a variable": (mine, lambda: len(MINE.get())),
}


def raises(run: Callable[[], Any]) -> int:
    """Whether it does, as a number."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run()
    except Exception:
        return 1
    return 0


@pytest.mark.parametrize("name", CONTEXTS)
def test_whatever_is_set_for_a_caller_reaches_the_thread_that_reads(name: str) -> None:
    context, look = CONTEXTS[name]
    loader = loader_of(lambda x: np.float32(look()), 2, prefetch=2)
    with context():
        expected = [[np.float32(look())] * 4] * 3
        found = [np.asarray(b).tolist() for b, _ in loader.iterate(loader.init_state(0))]
    assert found == expected
    after = [np.asarray(b).tolist() for b, _ in loader.iterate(loader.init_state(0))]
    assert after == [[np.float32(look())] * 4] * 3
    assert after != expected  # or it shows nothing


@pytest.mark.parametrize("name", CONTEXTS)
def test_settings_are_taken_to_another_thread_and_back(name: str) -> None:
    with CONTEXTS[name][0]():
        here, settings = seen(), current_settings()

    def within() -> Any:
        before = seen()
        with settings():
            inside = seen()
        return before, inside, seen()

    before, inside, after = in_a_thread(within)
    assert inside == here
    assert before == after != inside


def test_every_option_of_jax_that_a_thread_can_have_is_taken_along() -> None:
    """The bet on where JAX keeps them: if this fails, `core.jax_internals` must look elsewhere."""
    known = {holder.name for holder in thread_holders()}
    assert len(known) > 80
    assert {"jax_enable_x64", "jax_transfer_guard", "abstract_mesh_context_manager"} <= known
    assert {"jax_debug_nans", "jax_threefry_partitionable", "device_context"} <= known
    assert trace_context() is not None


def test_the_thread_of_the_settings_gets_them_back_when_it_has_others() -> None:
    plain = current_settings()
    with jax.enable_x64(True), jax.default_prng_impl("rbg"), jax.debug_nans(True):
        assert not plain.are_here()
        with plain():
            assert plain.are_here()
            assert jnp.arange(3).dtype == np.int32
            assert np.isnan(jnp.zeros(1) / jnp.zeros(1))
        assert jnp.arange(3).dtype == np.int64
    assert plain.are_here()


@pytest.mark.parametrize("workers", [0, 2])
def test_each_caller_of_next_batch_is_read_for_with_its_own_settings(workers: int) -> None:
    """Also where the next batch was read ahead for another."""
    loader = loader_of(lambda x: np.float32(CONTEXTS["keys"][1]()), workers, prefetch=2)
    state, found = loader.init_state(0), []
    for number in range(6):
        with jax.default_prng_impl("rbg") if number % 3 == 2 else contextlib.nullcontext():
            batch, state, _ = loader.next_batch(state)
            found.append(float(batch[0]))
    assert found == [2, 2, 4, 2, 2, 4]


@pytest.mark.parametrize("several", [False, True])
def test_a_program_reads_with_the_settings_that_it_was_traced_with(several: bool) -> None:
    """On several devices, in a thread of JAX's that has none."""
    big = [2**40 + i for i in range(8)]
    place = spread if several else (lambda x: x)
    with jax.enable_x64(True):
        loader = DataLoader([DatasetSource(big), BatchTransform(4)], workers=1)
        state, found = place(loader.init_state(0)), []
        step = jax.jit(lambda loader, state: loader.next_batch(state))
        for _ in range(2):
            batch, state, _ = step(loader, state)
            found += batch.tolist()
    assert found == big


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
