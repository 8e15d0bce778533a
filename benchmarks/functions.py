"""What it costs that functions are never stale: a body that is traced again in every epoch.

    python benchmarks/functions.py

The body is a training step of a network of two layers, 784-512-10, with its gradient: at the level
of a module (proved unchanged, nothing is traced), as a method of a trainer that changes in every
epoch, and as a function that is defined anew in every epoch. Compilations are counted after the
first epoch. The epoch has one step, so that what is measured is the call.
"""

from __future__ import annotations

import statistics
import timeit
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from measure import machine, report, seconds

from cereal import ArraySampleSource, BatchTransform, DataLoader, MapTransform

EPOCHS = 20
_compiled = [0]
DATA = {"x": np.ones((256, 784), np.float32), "y": np.zeros(256, np.int32)}


def _count(event: str, *_: Any, **__: Any) -> None:
    _compiled[0] += event == "/jax/core/compile/jaxpr_to_mlir_module_duration"


jax.monitoring.register_event_duration_secs_listener(_count)


def loss_of(params: Any, batch: Any) -> Any:
    hidden = jax.nn.relu(batch["x"] @ params["a"])
    scores = jax.nn.log_softmax(hidden @ params["b"])
    return -jnp.mean(jnp.take_along_axis(scores, batch["y"][:, None], axis=1))


def body(params: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
    loss, grads = jax.value_and_grad(loss_of)(params, batch)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


class Trainer:
    """Changes in every epoch."""

    def __init__(self) -> None:
        self.rate, self.history = 0.1, [0.0]

    def body(self, params: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
        loss, grads = jax.value_and_grad(loss_of)(params, batch)
        return jax.tree.map(lambda p, g: p - self.rate * g, params, grads), loss


def bodies() -> dict[str, Any]:
    trainer = Trainer()

    def of_trainer() -> Any:
        trainer.history.append(0.0)
        return trainer.body

    def anew() -> Any:
        rate = {"value": 0.1}

        def step(params: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
            loss, grads = jax.value_and_grad(loss_of)(params, batch)
            return jax.tree.map(lambda p, g: p - rate["value"] * g, params, grads), loss

        return step

    return {"at module level": lambda: body, "a method": of_trainer, "defined anew": anew}


def scans() -> None:
    loader = DataLoader([ArraySampleSource(DATA), BatchTransform(8)])
    state = loader.init_state(0)
    params = {"a": jnp.zeros((784, 512)), "b": jnp.zeros((512, 10))}
    took: dict[str, float] = {}
    for name, make in bodies().items():
        jax.block_until_ready(loader.scan_epoch(state, params, make(), steps=1))
        before = _compiled[0]
        run = lambda make=make: loader.scan_epoch(state, params, make(), steps=1)  # noqa: E731
        took[name] = statistics.median(seconds(run) for _ in range(EPOCHS))
        compiled = _compiled[0] - before
        beyond = took[name] - took["at module level"]
        report(
            f"a body {name}: an epoch of one step, beyond the body at module level",
            f"{1e3 * beyond:.1f} ms of {1e3 * took[name]:.1f}, {compiled} compilations in {EPOCHS}",
            "60 ms, no compilation",
            beyond <= 0.06 and compiled == 0,
        )


class Settings:
    """An object that a stage refers to."""

    scale = 2.0


def stages() -> None:
    settings = Settings()
    made = {
        "none": [],
        "proved unchanged": [MapTransform(lambda e: {**e, "x": e["x"] * 2.0})],
        "traced at every call": [MapTransform(lambda e: {**e, "x": e["x"] * settings.scale})],
    }
    for name, extra in made.items():
        loader = DataLoader([ArraySampleSource(DATA), *extra, BatchTransform(8)])
        state = loader.init_state(0)
        run = lambda loader=loader, state=state: jax.block_until_ready(loader.next_batch(state))  # noqa: E731
        run()
        took = min(timeit.repeat(run, number=20, repeat=20)) / 20
        report(f"next_batch with a function in a stage: {name}", f"{1e6 * took:.0f} µs", "-", True)


if __name__ == "__main__":
    print(machine())
    scans()
    stages()
