"""Loaders inside JAX's transformations: jit, grad, vmap, scan, cond, while_loop, checkpoint."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    DevicePutTransform,
    DigitsDataset,
    HostCallbackTransform,
    MapTransform,
    NormalizeImageTransform,
    RandomMapTransform,
    UsageError,
    masked_mean,
)
from cereal.testing import assert_same


@pytest.fixture(scope="module")
def loader() -> DataLoader[Any]:
    data = {"x": np.arange(10, dtype=np.float32), "y": np.arange(10, dtype=np.int32)}
    source = ArraySampleSource(data, ordering="shuffle")
    return DataLoader([source, BatchTransform(4, pad_last_batch=True)])


def loss(loader: DataLoader[Any], weight: Any, state: Any) -> tuple[Any, Any]:
    batch, state, mask = loader.next_batch(state)
    return masked_mean((weight * batch["x"] - 1) ** 2, mask), state


def gradient(loader: DataLoader[Any], weight: float, step: int) -> float:
    batch, mask = loader.batch_at(0, step)
    x = np.asarray(batch["x"])[np.asarray(mask)]
    return float(np.mean(2 * (weight * x - 1) * x))


# One at a time


def test_a_step_under_jit_is_the_step_outside(loader: DataLoader[Any]) -> None:
    compiled = jax.jit(lambda loader, state: loader.next_batch(state))
    for step in range(5):
        state = loader.state_at(0, step)
        assert_same(compiled(loader, state), loader.next_batch(state), f"step {step}")


def test_next_batch_jitted_in_a_loop_is_traced_once() -> None:
    traces = []

    def count(batch: Any) -> Any:
        traces.append(1)
        return batch

    source = ArraySampleSource(np.arange(10.0), ordering="sequential")
    loader = DataLoader([source, BatchTransform(4), MapTransform(count)])
    state = loader.init_state(0)
    _, state, _ = jax.jit(loader.next_batch)(state)
    once = len(traces)
    for _ in range(5):
        _, state, _ = jax.jit(loader.next_batch)(state)
    assert len(traces) == once
    assert_same(state, loader.state_at(0, 6), "the state")


def test_jits_nest(loader: DataLoader[Any]) -> None:
    inner = jax.jit(loss)
    outer = jax.jit(lambda loader, weight, state: inner(loader, weight, state))
    captured = jax.jit(lambda weight, state: inner(loader, weight, state))
    expected = loss(loader, 0.5, loader.init_state(0))
    assert_same(outer(loader, 0.5, loader.init_state(0)), expected, "passed")
    assert_same(captured(0.5, loader.init_state(0)), expected, "captured")


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_gradients_of_a_loss_that_reads_a_batch(loader: DataLoader[Any], wrap: Any) -> None:
    differentiate = wrap(jax.value_and_grad(loss, argnums=1, has_aux=True))
    state = loader.init_state(0)
    for step in range(4):
        (_, state), grad = differentiate(loader, 0.5, state)
        assert grad == pytest.approx(gradient(loader, 0.5, step), rel=1e-5)


def test_gradients_with_rematerialisation(loader: DataLoader[Any]) -> None:
    def checkpointed(weight: Any, state: Any) -> Any:
        return jax.checkpoint(lambda w, s: loss(loader, w, s)[0])(weight, state)

    for differentiate in (jax.grad(checkpointed), jax.jit(jax.grad(checkpointed))):
        found = differentiate(0.5, loader.init_state(0))
        assert found == pytest.approx(gradient(loader, 0.5, 0), rel=1e-5)


def test_forward_mode_and_linearisation_see_a_constant_batch(loader: DataLoader[Any]) -> None:
    state = loader.init_state(0)
    _, tangent = jax.jvp(lambda w: loss(loader, w, state)[0], (0.5,), (1.0,))
    assert tangent == pytest.approx(gradient(loader, 0.5, 0), rel=1e-5)
    second = jax.hessian(lambda w: loss(loader, w, state)[0])(0.5)
    batch, mask = loader.batch_at(0, 0)
    assert second == pytest.approx(float(2 * masked_mean(batch["x"] ** 2, mask)), rel=1e-5)


def test_vmap_over_keys_gives_each_its_own_order(loader: DataLoader[Any]) -> None:
    keys = jax.random.split(jax.random.key(0), 5)
    states = jax.vmap(loader.init_state)(keys)
    for wrap in (lambda f: f, jax.jit):
        batches, after, masks = wrap(jax.vmap(loader.next_batch))(states)
        for lane in range(5):
            alone = loader.next_batch(loader.init_state(keys[lane]))
            one = jax.tree.map(lambda x, lane=lane: x[lane], (batches, after, masks))
            assert_same(one, alone, f"lane {lane}")
    assert len({tuple(row.tolist()) for row in batches["y"]}) == 5


def test_vmap_over_data_reads_each_its_own(loader: DataLoader[Any]) -> None:
    doubled = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), loader)
    batches = jax.vmap(lambda loader, state: loader.next_batch(state)[0], (0, None))(
        doubled, loader.init_state(0)
    )
    assert_same(batches["x"][1], 2 * batches["x"][0], "the second lane")


def test_scan_carries_the_state(loader: DataLoader[Any]) -> None:
    def step(state: Any, _: None) -> tuple[Any, Any]:
        batch, state, mask = loader.next_batch(state)
        return state, (batch, mask)

    expected = list(loader.iterate(loader.init_state(0), steps=7))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *expected)
    state, outputs = lax.scan(step, loader.init_state(0), length=7)
    assert_same(outputs, stacked, "scan")
    assert_same(state, loader.state_at(0, 7), "the state")


def test_cond_reads_a_batch_in_one_branch(loader: DataLoader[Any]) -> None:
    @jax.jit
    def maybe(loader: DataLoader[Any], wanted: Any, state: Any) -> Any:
        def read(state: Any) -> Any:
            batch, state, _ = loader.next_batch(state)
            return batch["y"], state

        return lax.cond(wanted, read, lambda state: (jnp.zeros(4, jnp.int32), state), state)

    state = loader.init_state(0)
    batch, after, _ = loader.next_batch(state)
    assert_same(maybe(loader, True, state), (batch["y"], after), "read")
    assert_same(maybe(loader, False, state), (jnp.zeros(4, jnp.int32), state), "not read")


def test_while_loop_reads_until_it_has_seen_enough(loader: DataLoader[Any]) -> None:
    @jax.jit
    def until(loader: DataLoader[Any], state: Any) -> Any:
        def read(carry: Any) -> Any:
            state, total, steps = carry
            batch, state, mask = loader.next_batch(state)
            return state, total + jnp.where(mask, batch["y"], 0).sum(), steps + 1

        return lax.while_loop(lambda carry: carry[1] < 45, read, (state, 0, 0))

    state, total, steps = until(loader, loader.init_state(0))
    assert (int(total), int(steps)) == (45, 3)
    assert_same(state, loader.state_at(0, 3), "the state")


def test_eval_shape_runs_nothing() -> None:
    ran = []
    source = ArraySampleSource(np.arange(10.0))
    watch = HostCallbackTransform(lambda batch, mask: ran.append(1))
    loader = DataLoader([source, BatchTransform(4), watch])
    batch, _, mask = jax.eval_shape(loader.next_batch, loader.init_state(0))
    assert batch == loader.element_spec()
    assert mask == jax.ShapeDtypeStruct((4,), jnp.bool_)
    assert not ran


def test_an_ordered_callback_is_refused_under_vmap() -> None:
    watch = HostCallbackTransform(lambda batch, mask: None)
    source = ArraySampleSource(np.arange(10.0), "sequential")
    loader = DataLoader([source, BatchTransform(4), watch])
    states = jax.vmap(loader.init_state)(jax.random.split(jax.random.key(0), 2))
    with pytest.raises(UsageError, match="no meaning under `vmap`"):
        jax.vmap(loader.next_batch)(states)


# 64 models with 64 shuffles


def speckle(element: Any, key: Any) -> Any:
    noise = jax.random.bernoulli(key, 0.05, (8, 8, 1))
    return {**element, "image": jnp.where(noise, 0.0, element["image"])}


@pytest.mark.slow
def test_64_models_with_64_shuffles_train_in_one_program() -> None:
    data = DigitsDataset("train").as_array_dict()
    loader = DataLoader(
        [
            ArraySampleSource(data, ordering="shuffle", index_key="index"),
            BatchTransform(100, pad_last_batch=True),
            NormalizeImageTransform(),
            RandomMapTransform(speckle),
        ]
    )

    def one_loss(weight: Any, batch: Any, mask: Any) -> Any:
        logits = batch["image"].reshape(100, 64) @ weight
        chosen = jnp.take_along_axis(logits, batch["label"][:, None], axis=1)[:, 0]
        return masked_mean(jax.nn.logsumexp(logits, axis=1) - chosen, mask)

    def step(weight: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
        value, grad = jax.value_and_grad(one_loss)(weight, batch, mask)
        return weight - 0.5 * grad, (value, batch["index"])

    @jax.jit
    def train(loader: DataLoader[Any], key: Any) -> Any:
        weight = 0.01 * jax.random.normal(key, (64, 10))
        _, weight, (losses, indices) = loader.scan_epoch(loader.init_state(key), weight, step)
        return weight, losses, indices.reshape(-1)

    keys = jax.random.split(jax.random.key(0), 64)
    weights, losses, indices = jax.jit(jax.vmap(train, (None, 0)))(loader, keys)
    assert (np.sort(indices) == np.arange(1_500)).all()
    assert len({row.tobytes() for row in np.asarray(indices)}) == 64
    assert (losses[:, -3:].mean(axis=1) < 0.8 * losses[:, 0]).all()
    for lane in (0, 63):
        weight, loss, order = train(loader, keys[lane])
        np.testing.assert_array_equal(indices[lane], order)
        np.testing.assert_allclose(losses[lane], loss, rtol=1e-4)
        np.testing.assert_allclose(weights[lane], weight, rtol=1e-3, atol=1e-4)


# Several devices


@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])
def test_batches_spread_over_four_devices_train_as_on_one(kind: Any) -> None:
    mesh = jax.make_mesh((4,), ("data",), axis_types=(kind,), devices=jax.devices()[:4])
    spread = NamedSharding(mesh, PartitionSpec("data"))
    stages = [ArraySampleSource(np.arange(40, dtype=np.float32)), BatchTransform(8)]
    plain, loader = DataLoader(stages), DataLoader([*stages, DevicePutTransform(spread)])

    @jax.jit
    def gradient(weight: Any, x: Any) -> Any:
        return jax.grad(lambda w: jnp.mean((w * x - 1) ** 2))(weight)

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=PartitionSpec("data"), out_specs=PartitionSpec())
    def total(x: Any) -> Any:
        return lax.psum(x.sum(), "data")

    weight = jax.device_put(jnp.float32(0.5), NamedSharding(mesh, PartitionSpec()))
    batches = loader.iterate(loader.init_state(0))
    for expected, _ in plain.iterate(plain.init_state(0)):
        batch, mask = next(batches)
        assert batch.sharding.is_equivalent_to(spread, 1)
        assert mask.sharding.is_equivalent_to(spread, 1)
        np.testing.assert_array_equal(batch, expected)
        assert float(total(batch)) == float(expected.sum())
        alone = gradient(jnp.float32(0.5), expected)
        np.testing.assert_allclose(gradient(weight, batch), alone, rtol=1e-5)
    batch, _, mask = loader.next_batch(loader.init_state(0))
    assert batch.sharding.is_equivalent_to(spread, 1)
    assert mask.sharding.is_equivalent_to(spread, 1)


@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])
def test_data_on_four_devices_is_read_in_a_program_over_them(kind: Any) -> None:
    mesh = jax.make_mesh((4,), ("data",), axis_types=(kind,), devices=jax.devices()[:4])
    everywhere = NamedSharding(mesh, PartitionSpec())
    stages = [ArraySampleSource(np.arange(40, dtype=np.float32)), BatchTransform(8)]
    plain = DataLoader(stages)
    loader = jax.device_put(plain, everywhere)
    batch, state, mask = jax.jit(lambda loader, s: loader.next_batch(s))(
        loader, loader.init_state(0)
    )
    assert batch.sharding.is_equivalent_to(everywhere, 1)
    assert_same((batch, state, mask), plain.next_batch(plain.init_state(0)), "a step")
    pairs = list(loader.iterate(loader.init_state(0)))
    assert_same(pairs, list(plain.iterate(plain.init_state(0))), "an epoch")


def test_each_device_of_a_shard_map_may_read_its_own_batch(loader: DataLoader[Any]) -> None:
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((4,), ("data",), axis_types=auto, devices=jax.devices()[:4])
    states = jax.vmap(loader.init_state)(jax.random.split(jax.random.key(0), 4))
    both = (PartitionSpec(), PartitionSpec("data"))

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=both, out_specs=both[1], check_vma=False)
    def read(loader: DataLoader[Any], states: Any) -> Any:
        return jax.vmap(lambda state: loader.next_batch(state)[0]["y"])(states)

    expected = jax.vmap(lambda state: loader.next_batch(state)[0]["y"])(states)
    np.testing.assert_array_equal(read(loader, states), expected)
