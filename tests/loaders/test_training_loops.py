"""What ordinary training loops cost: traces, compilations, arrays that stay alive.

A function that is proved unchanged is traced once. Any other is traced in every epoch, compiled
once, and never stale.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.compilations import TRACED, compilations, traces

from cereal import (
    ArraySampleSource,
    BatchTransform,
    CacheTransform,
    DataLoader,
    MapTransform,
    evaluate,
)

EPOCHS = 20
DATA = {
    "x": np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32),
    "y": np.arange(24, dtype=np.int32) % 3,
}
OPTIMIZER = optax.adam(1e-2)


def make_loader(*stages: Any) -> DataLoader[Any]:
    return DataLoader([ArraySampleSource(DATA), *stages, BatchTransform(8)])


def loss_of(params: Any, batch: Any) -> Any:
    scores = jax.nn.log_softmax(jax.nn.relu(batch["x"] @ params))
    return -jnp.mean(jnp.take_along_axis(scores, batch["y"][:, None], axis=1))


def body(carry: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
    """At the level of a module, with a module's optimizer."""
    sys.audit(TRACED)
    params, moments = carry
    loss, grads = jax.value_and_grad(loss_of)(params, batch)
    updates, moments = OPTIMIZER.update(grads, moments)
    return (optax.apply_updates(params, updates), moments), loss


def correct(batch: Any, params: Any) -> Any:
    sys.audit(TRACED)
    return jnp.argmax(batch["x"] @ params, axis=1) == batch["y"]


def start() -> tuple[Any, Any]:
    params = jnp.ones((4, 3))
    return params, OPTIMIZER.init(params)


ways = pytest.mark.parametrize("stages", [[], [CacheTransform("host")]], ids=["compiled", "host"])


@ways
def test_a_body_at_module_level_is_traced_in_the_first_epoch_alone(stages: list[Any]) -> None:
    loader, carry = make_loader(*stages), start()
    state, carry, _ = loader.scan_epoch(loader.init_state(0), carry, body)
    with traces() as traced, compilations() as compiled:
        for _ in range(EPOCHS):
            state, carry, _ = loader.scan_epoch(state, carry, body)
    assert (traced(), compiled()) == (0, 0)


@ways
def test_new_but_equal_loaders_share_a_program(stages: list[Any]) -> None:
    first = make_loader(*stages)
    first.scan_epoch(first.init_state(0), start(), body)
    loaders = [make_loader(*stages) for _ in range(3)]
    begin = start()
    with traces() as traced:
        for loader in loaders:
            loader.scan_epoch(loader.init_state(0), begin, body)
    assert traced() == 0


@ways
def test_metrics_with_parameters_as_arguments_are_traced_once(stages: list[Any]) -> None:
    loader = make_loader(*stages)
    params = [jnp.full((4, 3), float(number)) for number in range(EPOCHS)]
    evaluate(loader, correct, params[0])
    with traces() as traced, compilations() as compiled:
        for each in params:
            evaluate(loader, correct, each)
    assert (traced(), compiled()) == (0, 0)


# One compilation each


class Trainer:
    """Parameters, settings and a history in an object, as many programs have them."""

    def __init__(self) -> None:
        self.params = jnp.zeros((4, 3))
        self.history: list[float] = []
        self.average = jnp.zeros((31, 17))
        self.settings = {"rate": 0.1, "names": ("a", "b")}

    def body(self, params: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
        loss, grads = jax.value_and_grad(loss_of)(params, batch)
        return params - self.settings["rate"] * grads, loss + len(self.settings["names"])

    def metric(self, batch: Any) -> Any:
        return jnp.argmax(batch["x"] @ self.params, axis=1) == batch["y"]

    def after_epoch(self, params: Any) -> None:
        self.params = params
        self.history.append(0.0)
        self.average = self.average + 1


class Module(eqx.Module):
    """A model of Equinox that is changed by replacing it."""

    linear: eqx.nn.Linear

    def __call__(self, x: Any) -> Any:
        return jax.nn.relu(self.linear(x))


def by_method(loader: Any, trainer: Trainer, state: Any) -> Any:
    return loader.scan_epoch(state, trainer.params, trainer.body)


def by_lambda(loader: Any, trainer: Trainer, state: Any) -> Any:
    return loader.scan_epoch(state, trainer.params, lambda c, b, m: trainer.body(c, b, m))


def by_closure(loader: Any, trainer: Trainer, state: Any) -> Any:
    rate = SimpleNamespace(value=0.1)

    def step(params: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
        loss, grads = jax.value_and_grad(loss_of)(params, batch)
        return params - rate.value * grads, loss

    return loader.scan_epoch(state, trainer.params, step)


def by_partial(loader: Any, trainer: Trainer, state: Any) -> Any:
    return loader.scan_epoch(state, trainer.params, functools.partial(Trainer.body, trainer))


def by_new_optimizer(loader: Any, trainer: Trainer, state: Any) -> Any:
    optimizer = optax.sgd(0.1)

    def step(params: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
        loss, grads = jax.value_and_grad(loss_of)(params, batch)
        updates, _ = optimizer.update(grads, optimizer.init(params))
        return optax.apply_updates(params, updates), loss

    return loader.scan_epoch(state, trainer.params, step)


def by_growing_history(loader: Any, trainer: Trainer, state: Any) -> Any:
    def step(params: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
        trainer.history.append(1.0)
        return params + 0.1, batch["x"].sum()

    return loader.scan_epoch(state, trainer.params, step)


BODIES = [by_method, by_lambda, by_closure, by_partial, by_new_optimizer, by_growing_history]


@pytest.mark.parametrize("run", BODIES, ids=lambda run: run.__name__)
def test_a_body_that_belongs_to_an_object_compiles_once_in_twenty_epochs(run: Any) -> None:
    loader, trainer = make_loader(), Trainer()
    state, params, _ = run(loader, trainer, loader.init_state(0))
    trainer.after_epoch(params)
    gc.collect()
    living = len(jax.live_arrays())
    with compilations() as compiled:
        for _ in range(EPOCHS):
            state, params, _ = run(loader, trainer, state)
            trainer.after_epoch(params)
    assert compiled() == 0
    gc.collect()
    assert len(jax.live_arrays()) <= living


def test_metrics_of_an_object_compile_once_and_free_its_old_arrays() -> None:
    loader, trainer = make_loader(), Trainer()
    evaluate(loader, trainer.metric)
    evaluate(loader, lambda batch: trainer.metric(batch))
    trainer.after_epoch(trainer.params + 1)
    gc.collect()
    living = len(jax.live_arrays())
    with compilations() as compiled:
        for _ in range(EPOCHS):
            evaluate(loader, trainer.metric)
            evaluate(loader, lambda batch: trainer.metric(batch))
            trainer.after_epoch(trainer.params + 1)
    assert compiled() == 0
    gc.collect()
    assert len(jax.live_arrays()) <= living


def test_a_model_of_equinox_in_a_closure_compiles_once() -> None:
    loader = make_loader()
    models = [
        jax.tree.map(lambda x, n=n: x * n, Module(eqx.nn.Linear(4, 3, key=jax.random.key(0))))
        for n in (0.0, 1.0, 2.0)
    ]

    def score(model: Any) -> float:
        return float(evaluate(loader, lambda batch: jax.vmap(model)(batch["x"]).sum(axis=1)))

    first = score(models[0])
    with compilations() as compiled:
        others = [score(models[1]), score(models[2])]
    assert compiled() == 0
    assert first == 0
    assert others[1] == pytest.approx(2 * others[0])
    assert others[0] > 0


def test_a_model_of_nnx_in_a_closure_compiles_once_and_is_never_stale() -> None:
    from flax import nnx

    loader = make_loader()
    model: Any = nnx.Linear(4, 3, rngs=nnx.Rngs(0))

    def score() -> float:
        return float(evaluate(loader, lambda batch: model(batch["x"]).sum(axis=1)))

    first, bias = score(), jnp.ones(3)
    model.bias[...] = bias
    with compilations() as compiled:
        second = score()
    assert compiled() == 0
    assert second == pytest.approx(first + 3, abs=1e-5)


# Functions in stages


def test_loaders_of_a_factory_with_a_lambda_share_a_program_and_leave_nothing() -> None:
    def make(table: Any) -> DataLoader[Any]:
        return make_loader(MapTransform(lambda e: {**e, "x": e["x"] + table[0]}))

    def first_of(number: float) -> Any:
        loader = make(jnp.full(1000, number))
        return np.array(loader.batch_at(0, 0)[0]["x"])

    zero = first_of(0.0)
    gc.collect()
    living = len(jax.live_arrays())
    numbers = [float(number) for number in range(1, 6)]
    with compilations() as compiled:
        found = [first_of(number) for number in numbers]
    assert compiled() <= 1  # `jnp.full` of the test itself
    for number, each in zip(numbers, found, strict=True):
        np.testing.assert_array_equal(each, zero + np.float32(number))
    gc.collect()
    assert len(jax.live_arrays()) <= living


class Settings:
    """A class whose attribute is the setting."""

    scale = 1.0


SCALE: Any = 1.0


def _namespace() -> tuple[Any, Callable[[float], None]]:
    box = SimpleNamespace(scale=1.0)
    return lambda x: x * box.scale, lambda value: setattr(box, "scale", value)


def _class_attribute() -> tuple[Any, Callable[[float], None]]:
    return lambda x: x * Settings.scale, lambda value: setattr(Settings, "scale", value)


def _global() -> tuple[Any, Callable[[float], None]]:
    return lambda x: x * SCALE, lambda value: globals().__setitem__("SCALE", value)


def _numpy(size: int) -> tuple[Any, Callable[[float], None]]:
    table = np.ones(size, np.float32)
    return lambda x: x * table[-1], lambda value: table.__setitem__(-1, value)


def _dict() -> tuple[Any, Callable[[float], None]]:
    box = {"scale": 1.0}
    return lambda x: x * box["scale"], lambda value: box.__setitem__("scale", value)


def _array() -> tuple[Any, Callable[[float], None]]:
    box = SimpleNamespace(scale=jnp.float32(1))
    return lambda x: x * box.scale, lambda value: setattr(box, "scale", jnp.float32(value))


CHANGES: dict[str, Any] = {
    "a namespace": _namespace,
    "a class attribute": _class_attribute,
    "a global": _global,
    "a small NumPy array": lambda: _numpy(3),
    "a large NumPy array": lambda: _numpy(100_000),
    "a dict": _dict,
    "an array in an object": _array,
}


@pytest.mark.parametrize("kind", CHANGES)
@ways
def test_a_stage_has_what_its_function_refers_to_now(kind: str, stages: list[Any]) -> None:
    scaled, change = CHANGES[kind]()
    change(1.0)
    data = np.arange(8, dtype=np.float32)
    loader = DataLoader(
        [ArraySampleSource(data, "sequential"), *stages, MapTransform(scaled), BatchTransform(8)]
    )
    state = loader.init_state(0)

    def seen() -> list[Any]:
        return [
            np.asarray(loader.next_batch(state)[0]),
            np.asarray(next(loader.iterate(state))[0]),
            np.asarray(loader.scan_epoch(state, 0, lambda c, b, m: (c, b))[2][0]),
        ]

    for value in (1.0, 3.0, 1.0):
        change(value)
        for batch in seen():
            np.testing.assert_array_equal(batch, data * value)
        assert float(evaluate(loader, lambda b: b)) == pytest.approx(value * data.mean())
    change(1.0)


def test_a_function_that_now_returns_other_shapes_is_refused() -> None:
    box = SimpleNamespace(count=1)
    stage = MapTransform(lambda x: jnp.ones(box.count) * x)
    loader = DataLoader([ArraySampleSource(np.arange(4.0)), stage, BatchTransform(2)])
    box.count = 2
    with pytest.raises(ValueError, match=r"now returns float32\[2\], but returned float32\[1\]"):
        loader.next_batch(loader.init_state(0))
