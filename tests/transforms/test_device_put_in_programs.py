"""A DevicePutTransform inside of compiled programs: kept, or refused; never ignored."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    DevicePutTransform,
    DiskSampleSource,
    HostCallbackTransform,
)

CPU = jax.devices("cpu")
ROWS = np.arange(32 * 4, dtype=np.float32).reshape(32, 4)
BOTH, LANES, WHOLE = PartitionSpec("data", "model"), PartitionSpec("data"), PartitionSpec()
KINDS = [AxisType.Auto, AxisType.Explicit]
Loader = DataLoader[Any]


def mesh_of(kind: Any) -> Any:
    names, kinds = ("data", "model"), (kind, kind)
    return jax.make_mesh((2, 2), names, axis_types=kinds, devices=CPU[:4])


def in_memory() -> Any:
    return ArraySampleSource({"x": ROWS}, ordering="sequential")


def on_host() -> Any:
    return DiskSampleSource(32, lambda i: {"x": ROWS[i]}, ordering="sequential")


SOURCES = {"in memory": in_memory, "on the host": on_host}


def loader_of(source: Any, device: Any, *more: Any) -> Loader:
    return DataLoader([source, BatchTransform(8), *more, DevicePutTransform(device)])


def keep(carry: Any, batch: Any, mask: Any) -> Any:
    return carry + batch["x"].sum(), (batch["x"], mask)


def check_epoch(outputs: Any) -> None:
    """An epoch of batches and masks, laid out over the mesh."""
    rows, masks = outputs
    np.testing.assert_array_equal(np.asarray(rows).reshape(32, 4), ROWS)
    assert rows.sharding.spec == PartitionSpec(None, "data", "model")
    assert masks.sharding.spec[:2] == (None, "data")
    assert np.asarray(masks).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_scan_epoch_lays_batches_out(make: Callable[[], Any], kind: Any) -> None:
    with loader_of(make(), NamedSharding(mesh_of(kind), BOTH)) as loader:
        state, total, outputs = loader.scan_epoch(loader.init_state(0), jnp.float32(0), keep)
        check_epoch(outputs)
        assert float(total) == ROWS.sum()
        state, _, outputs = loader.scan_epoch(state, total, keep)
        check_epoch(outputs)
        assert int(state.epoch) == 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_a_users_own_program_lays_batches_out(make: Callable[[], Any], kind: Any) -> None:
    with loader_of(make(), NamedSharding(mesh_of(kind), BOTH)) as loader:
        state = loader.init_state(0)
        for compiled in (jax.jit(loader.next_batch), cereal.jit(loader.next_batch)):
            batch, _, mask = compiled(state)
            layout: Any = batch["x"].sharding
            np.testing.assert_array_equal(batch["x"], ROWS[:8])
            assert layout.spec == BOTH
            assert mask.sharding == NamedSharding(layout.mesh, LANES)
        whole = jax.jit(lambda state: loader.scan_epoch(state, jnp.float32(0), keep)[2])
        check_epoch(whole(state))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_evaluate_lays_batches_out(make: Callable[[], Any], kind: Any) -> None:
    seen: list[Any] = []

    def row_sums(batch: Any) -> Any:
        look = partial(jax.debug.inspect_array_sharding, callback=seen.append)
        look(batch["x"])
        return batch["x"].sum(axis=1)

    with loader_of(make(), NamedSharding(mesh_of(kind), BOTH)) as loader:
        assert float(cereal.evaluate(loader, row_sums)) == ROWS.sum(axis=1).mean()
    assert seen
    assert all(sharding.spec == BOTH for sharding in seen)


@pytest.mark.parametrize("kind", KINDS)
def test_states_that_are_mapped_keep_the_layout_of_their_batches(kind: Any) -> None:
    sharding = NamedSharding(mesh_of(kind), BOTH)
    plain = DataLoader([ArraySampleSource({"x": ROWS}), BatchTransform(8)])
    committed = jax.device_put({"x": ROWS}, CPU[0])
    loader = loader_of(ArraySampleSource(committed), sharding)
    states = jax.vmap(plain.init_state)(jax.random.split(jax.random.key(0), 3))
    expected = jax.vmap(plain.next_batch)(states)[0]["x"]
    eager = jax.vmap(loader.next_batch)(states)[0]["x"]
    uncommitted = loader_of(ArraySampleSource({"x": ROWS}), sharding)
    compiled = jax.jit(jax.vmap(uncommitted.next_batch))(states)[0]["x"]
    for found in (eager, compiled):
        np.testing.assert_array_equal(found, expected)
        assert found.sharding.spec == PartitionSpec(None, "data", "model")


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_over_a_mesh_is_compiled_once(kind: Any, caplog: Any) -> None:
    mesh = mesh_of(kind)
    everywhere = NamedSharding(mesh, WHOLE)
    loader = jax.device_put(loader_of(in_memory(), NamedSharding(mesh, BOTH)), everywhere)
    state, total = loader.init_state(0), jax.device_put(jnp.float32(0), everywhere)
    state, total, _ = loader.scan_epoch(state, total, keep)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        for _ in range(2):
            state, total, _ = loader.scan_epoch(state, total, keep)
    assert "Compiling" not in caplog.text
    assert float(total) == 3 * ROWS.sum()


def test_a_gradient_goes_through_a_batch_that_is_laid_out() -> None:
    loader = loader_of(in_memory(), NamedSharding(mesh_of(AxisType.Auto), BOTH))

    @jax.jit
    @jax.grad
    def slope(weight: Any, state: Any) -> Any:
        return (weight * loader.next_batch(state)[0]["x"]).sum()

    assert float(slope(jnp.float32(2), loader.init_state(0))) == ROWS[:8].sum()


# One device


def test_a_program_runs_on_the_device_that_batches_go_to() -> None:
    loader = loader_of(in_memory(), "cpu:1")
    state = loader.init_state(0)
    _, total, _ = loader.scan_epoch(state, jnp.float32(0), keep)
    batch, _, mask = jax.jit(loader.next_batch)(state)
    assert total.devices() == batch["x"].devices() == mask.devices() == {CPU[1]}


def test_the_default_device_asks_nothing_of_a_program() -> None:
    loader = loader_of(in_memory(), None)
    _, total, _ = loader.scan_epoch(loader.init_state(0), jnp.float32(0), keep)
    assert total.devices() == {CPU[0]}
    assert not total.committed
    there = jax.device_put((loader, loader.init_state(0)), CPU[2])
    batch, _, _ = jax.jit(lambda loader, state: loader.next_batch(state))(*there)
    assert batch["x"].devices() == {CPU[2]}


# What cannot be had


@pytest.mark.parametrize("device", [None, "cpu:1"])
def test_data_that_was_put_elsewhere_is_refused_with_the_line_to_write(device: Any) -> None:
    elsewhere = jax.device_put(loader_of(in_memory(), device), CPU[3])
    message = r"one set of devices: .* `loader\..*` was put on cpu:3; write `loader = jax\.device"
    with pytest.raises(cereal.UsageError, match=message):
        elsewhere.scan_epoch(elsewhere.init_state(0), jnp.float32(0), keep)
    with pytest.raises(cereal.UsageError, match=message):
        cereal.evaluate(elsewhere, lambda batch: batch["x"][:, 0])


def test_parameters_that_were_put_elsewhere_are_refused_with_the_line_to_write() -> None:
    loader = loader_of(in_memory(), NamedSharding(mesh_of(AxisType.Auto), BOTH))
    carry = {"w": jax.device_put(jnp.float32(0), CPU[0])}
    message = (
        r"batches on cpu:0, cpu:1, cpu:2, cpu:3, but `carry\['w'\]` was put on cpu:0; write "
        r"`carry = jax.device_put\(carry, NamedSharding\(mesh, PartitionSpec\(\)\)\)`"
    )
    with pytest.raises(cereal.UsageError, match=message):
        loader.scan_epoch(loader.init_state(0), carry, lambda carry, batch, mask: (carry, None))


def test_a_layout_inside_of_shard_map_is_refused() -> None:
    mesh = mesh_of(AxisType.Auto)
    loader = loader_of(in_memory(), NamedSharding(mesh, BOTH))

    def own(state: Any) -> Any:
        return lax.psum(loader.next_batch(state)[0]["x"], "data")

    mapped = jax.shard_map(own, mesh=mesh, in_specs=WHOLE, out_specs=WHOLE, check_vma=False)
    with pytest.raises(cereal.UsageError, match="cannot place batches inside of `shard_map`"):
        jax.jit(mapped)(loader.init_state(0))


def test_ordered_callbacks_over_several_devices_are_refused() -> None:
    log = HostCallbackTransform(lambda batch, mask: None)
    loader = loader_of(in_memory(), NamedSharding(mesh_of(AxisType.Auto), BOTH), log)
    message = "runs in order, which JAX does on one device only, and .* over 4; take batches from"
    with pytest.raises(cereal.UsageError, match=message):
        loader.scan_epoch(loader.init_state(0), jnp.float32(0), keep)
    with pytest.raises(cereal.UsageError, match=message):
        jax.jit(loader.next_batch)(loader.init_state(0))
    assert len(list(loader.iterate(loader.init_state(0)))) == 4


def test_memory_that_programs_do_not_compute_in_is_refused() -> None:
    mesh = mesh_of(AxisType.Auto)
    pinned = NamedSharding(mesh, BOTH, memory_kind="pinned_host")
    loader = loader_of(in_memory(), pinned)
    with pytest.raises(cereal.UsageError, match="in 'pinned_host' memory inside of a program"):
        jax.jit(loader.next_batch)(loader.init_state(0))


def test_axes_of_two_kinds_in_one_layout_are_refused_in_programs() -> None:
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=tuple(KINDS), devices=CPU[:4])
    loader = loader_of(in_memory(), NamedSharding(mesh, BOTH))
    with pytest.raises(cereal.UsageError, match="names axes of both kinds, Auto and Explicit"):
        loader.scan_epoch(loader.init_state(0), jnp.float32(0), keep)


def test_a_cache_on_the_host_keeps_where_batches_go() -> None:
    put, cache = DevicePutTransform("cpu:1"), cereal.CacheTransform("host")
    with DataLoader([on_host(), put, cache, BatchTransform(8)]) as loader:
        _, total, _ = loader.scan_epoch(loader.init_state(0), jnp.float32(0), keep)
        assert total.devices() == {CPU[1]}
        assert float(total) == ROWS.sum()
