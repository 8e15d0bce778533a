"""Code in a pipeline's nodes, wherever it is, does what it refers to now."""

from __future__ import annotations

import dataclasses
import enum
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.rl.corridor import ONE, Corridor, stride

import cereal
from cereal import ArraySampleSource, BatchTransform, DataLoader, MapTransform
from cereal.functions.node_proof import proof_of_node

SCALE: Any = 1.0


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SCALE", 1.0)


def rebind(value: float) -> None:
    globals()["SCALE"] = value


class Config:
    """A user's object that can be hashed, and changed."""

    scale = 1.0


class Mode(enum.Enum):
    FAST = 1


@dataclasses.dataclass(frozen=True)
class Frozen:
    mode: Mode = Mode.FAST
    sizes: tuple[int, ...] = (1, 2)


@cereal.pytree_dataclass
class _Numbers(cereal.IndexedSource[Any]):
    config: Any = cereal.static_field(default=None)
    inner: Any = None
    ordering: str = cereal.static_field(default="sequential")

    def __len__(self) -> int:
        return 2

    def element_spec(self) -> Any:
        return jax.ShapeDtypeStruct((), np.float32)


@cereal.pytree_dataclass
class Configured(_Numbers):
    def take(self, indices: Any) -> Any:
        return (indices + 1).astype(jnp.float32) * self.config.scale


@cereal.pytree_dataclass
class Called(_Numbers):
    def __call__(self, indices: Any) -> Any:
        return (indices + 1).astype(jnp.float32) * SCALE

    def take(self, indices: Any) -> Any:
        return self(indices)


@cereal.pytree_dataclass
class Outer(_Numbers):
    def take(self, indices: Any) -> Any:
        return self.inner.take(indices)


class Scaled(eqx.Module):
    weight: jax.Array

    def __call__(self, batch: Any) -> Any:
        return batch * self.weight * SCALE


def first(loader: DataLoader[Any]) -> list[float]:
    return loader.next_batch(loader.init_state(0))[0].tolist()


def test_a_source_over_an_object_does_what_the_object_says_now() -> None:
    config = Config()
    loader = DataLoader([Configured(config), BatchTransform(2)])
    assert first(loader) == [1, 2]
    config.scale = 3.0
    assert first(loader) == [3, 6]


@pytest.mark.parametrize("source", [Called(), Outer(inner=Called())], ids=["own", "inside"])
def test_methods_with_names_of_pythons_own_are_looked_at(source: Any) -> None:
    rebind(1.0)
    loader = DataLoader([source, BatchTransform(2)])
    assert first(loader) == [1, 2]
    rebind(3.0)
    assert first(loader) == [3, 6]


def test_a_module_in_a_stage_does_what_its_class_refers_to_now() -> None:
    rebind(1.0)
    data = ArraySampleSource(np.ones(2, np.float32), ordering="sequential")
    loader = DataLoader([data, BatchTransform(2), MapTransform(Scaled(jnp.float32(2)))])
    assert first(loader) == [2, 2]
    rebind(3.0)
    assert first(loader) == [6, 6]


class Paid:
    """A corridor whose steps cost a wage; JAX does not see into it."""

    def __init__(self) -> None:
        self.wage = 1.0

    def reset(self, key: Any) -> Any:
        return Corridor().reset(key)

    def step(self, key: Any, state: Any, action: Any) -> Any:
        return Corridor().step(key, state, action)._replace(reward=self.wage)

    def action_spec(self) -> Any:
        return Corridor().action_spec()


def test_an_environment_that_is_an_object_is_as_it_is_now() -> None:
    env = Paid()
    source = cereal.rl.RolloutSource(env, stride, ONE, steps_per_epoch=4)
    loader = DataLoader([source, BatchTransform(4)])
    for wage in (1.0, 2.0):
        env.wage = wage
        state = loader.init_state(0, ONE)
        rewards = loader.scan_epoch(state, 0, lambda c, b, m: (c, b["reward"]))[2]
        assert np.unique(np.asarray(rewards)).tolist() == [wage]


@pytest.mark.parametrize(
    "node",
    [
        Called(),
        Called(Frozen()),
        Called(np.dtype("int8")),
        Outer(inner=Called()),
        MapTransform(len),
        Scaled(jnp.float32(1)),
    ],
)
def test_what_is_fixed_is_proved(node: Any) -> None:
    proof = proof_of_node(node)
    assert proof is not None
    assert proof.holds()


@pytest.mark.parametrize(
    "node",
    [Called(Config()), Outer(inner=Called(SimpleNamespace())), Called(lambda: [SCALE, Config])],
)
def test_what_may_change_is_not(node: Any) -> None:
    assert proof_of_node(node) is None
