"""A program that was called keeps what it reads alive until it is done, and no longer.

On the CPU, programs on one device with a callback are done when the call returns; those on several
are not, so these are what is tested.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec
from tests.functions.programs import gone, spread
from tests.slowly import quickly

from cereal import BatchTransform, DataLoader, DiskSampleSource, MemmapSource
from cereal.host import lingering
from cereal.host.host_data import HostData, living

N, B = 32, 4
TOTAL = sum(range(N))
GUARD = 60.0


class Gate:
    """Reads element `i`, once the gate is open."""

    def __init__(self) -> None:
        self.open = threading.Event()

    def __call__(self, i: int) -> np.float32:
        assert self.open.wait(GUARD)
        return np.float32(i)


def add(total: Any, batch: Any, mask: Any) -> tuple[Any, None]:
    return total + batch.sum(), None


def by_scan_epoch(loader: Any, state: Any) -> Any:
    return loader.scan_epoch(state, jnp.float32(0), add)[1]


def by_next_batch(loader: Any, state: Any) -> Any:
    def one(loop: Any, _: None) -> Any:
        batch, state, _ = loader.next_batch(loop[1])
        return (loop[0] + batch.sum(), state), None

    return jax.lax.scan(one, (jnp.float32(0), state), length=N // B)[0][0]


def by_vmap(loader: Any, state: Any) -> Any:
    states = jax.tree.map(lambda x: jnp.stack([x, x]), state)
    return jax.vmap(lambda state: by_scan_epoch(loader, state))(states)


def by_checkpoint(loader: Any, state: Any) -> Any:
    loss = jax.checkpoint(lambda w: w * by_next_batch(loader, state))
    return jax.grad(loss)(jnp.float32(2))


def by_shard_map(loader: Any, state: Any) -> Any:
    mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(AxisType.Auto,))
    each = lambda state: by_scan_epoch(loader, state)[None]  # noqa: E731
    whole, parts = PartitionSpec(), PartitionSpec("d")
    return jax.shard_map(each, mesh=mesh, in_specs=whole, out_specs=parts, check_vma=False)(state)


ROADS: list[Any] = [by_scan_epoch, by_next_batch, by_vmap, by_checkpoint, by_shard_map]


def called(road: Callable[..., Any], how: str, gate: Gate, workers: int) -> tuple[Any, Any]:
    """What a program gives that was called with a loader which is gone, and the loader's data."""
    spec = jax.ShapeDtypeStruct((), np.float32)
    source = DiskSampleSource(N, gate, sample_spec=spec)
    loader = DataLoader([source, BatchTransform(B)], workers=workers)
    state = spread(loader.init_state(0))
    data = weakref.ref(loader.running.service)  # type: ignore[attr-defined]
    if how == "passed":
        return jax.jit(road)(loader, state), data
    if how == "captured":
        return jax.jit(lambda state: road(loader, state))(state), data
    assert how == "in a cycle"
    trainer: dict[str, Any] = {"loader": loader}
    trainer["step"] = jax.jit(lambda state: road(trainer["loader"], state))
    return trainer["step"](state), data


CASES = [(road, "passed") for road in ROADS]
CASES += [(by_scan_epoch, "captured"), (by_scan_epoch, "in a cycle"), (by_next_batch, "captured")]


@pytest.mark.parametrize(
    ("road", "how"),
    quickly(
        CASES,
        (by_scan_epoch, "passed"),
        (by_next_batch, "captured"),
        (by_shard_map, "passed"),
        (by_scan_epoch, "in a cycle"),
    ),
)
@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_loader_that_dies_under_a_running_program_is_read_to_the_end(
    road: Callable[..., Any], how: str, workers: int
) -> None:
    gate = Gate()
    found, data = called(road, how, gate, workers)
    gc.collect()
    alive = data() is not None
    gate.open.set()  # in any case: a program that waits for ever would end the process
    assert alive or how == "in a cycle"  # the collector of cycles clears weak references first
    assert set(np.asarray(found).ravel().tolist()) == {TOTAL}
    assert gone(data)


def test_the_thread_that_waits_ends_when_nothing_lingers() -> None:
    data = Watched()
    data.enter_program()
    del data
    thread = lingering._thread
    if thread is not None:
        thread.join(GUARD)
        assert not thread.is_alive()
    assert lingering._thread is None


def test_a_loader_that_is_rebound_in_every_round_is_read_to_the_end() -> None:
    program = jax.jit(by_scan_epoch)
    found, data = [], []
    for offset in range(4):
        source = DiskSampleSource(N, lambda i, offset=offset: np.float32(i + offset))
        loader = DataLoader([source, BatchTransform(B)], workers=1)
        found.append(program(loader, spread(loader.init_state(0))))
        data.append(weakref.ref(loader.running.service))  # type: ignore[attr-defined]
    loader = source = None
    assert [float(total) for total in found] == [TOTAL + N * offset for offset in range(4)]
    assert all(gone(each) for each in data)


def test_a_source_without_a_loader_is_read_to_the_end_too() -> None:
    gate = Gate()
    spec = jax.ShapeDtypeStruct((), np.float32)
    source = BatchTransform(B)(DiskSampleSource(N, gate, sample_spec=spec, ordering="sequential"))
    found = jax.jit(lambda source, state: source.next(state)[0])(
        source, spread(source.init_state(0))
    )
    del source
    gc.collect()
    gate.open.set()
    assert found.tolist() == [0, 1, 2, 3]


def test_data_that_no_program_reads_goes_at_once() -> None:
    loader = DataLoader([DiskSampleSource(N, np.float32), BatchTransform(B)], workers=1)
    list(loader.iterate(loader.init_state(0)))
    data = weakref.ref(loader.running.service)  # type: ignore[attr-defined]
    del loader
    gc.collect()
    assert data() is None


class Watched(HostData):
    pass


def test_data_stays_while_it_is_being_read_and_goes_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a program whose results nobody has kept."""
    monkeypatch.setattr(lingering, "_GRACE", 0.5)
    data = Watched()
    data.enter_program()
    number, watched = data.number, weakref.ref(data)
    living(number)
    del data
    for _ in range(20):
        assert living(number) is watched()
        threading.Event().wait(0.05)
    assert gone(watched)


def test_arrays_that_were_donated_or_failed_are_not_waited_for() -> None:
    double = jax.jit(lambda x: x * 2, donate_argnums=0)
    given = jnp.ones(3)
    double(given)
    assert given.is_deleted()
    assert lingering._is_done(given)


def test_files_are_closed_when_what_lingers_is_let_go(tmp_path: Path) -> None:
    """They stay open until then, so the watcher of open files (conftest.py) waits for it."""
    np.save(tmp_path / "data.npy", np.arange(8, dtype=np.int32))
    step = jax.jit(lambda loader, state: loader.next_batch(state)[0])
    for _ in range(8):
        loader = DataLoader(
            [MemmapSource(tmp_path / "data.npy", ordering="sequential"), BatchTransform(4)]
        )
        assert step(loader, loader.init_state(0)).tolist() == [0, 1, 2, 3]
