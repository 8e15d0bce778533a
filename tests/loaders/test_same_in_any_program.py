"""A scan gives the same whether the user's program runs it or ours, whatever types and rules."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal import ArraySampleSource, BatchTransform, DataLoader, MapTransform

pytestmark = pytest.mark.optimized


def numbers(*stages: Any) -> DataLoader[Any]:
    source = ArraySampleSource(np.arange(8, dtype=np.float32), ordering="sequential")
    return DataLoader([source, BatchTransform(4), *stages])


BODIES: dict[str, Any] = {
    "//": lambda c, b, m: (c // 2 + b.mean(), c),
    "%": lambda c, b, m: (c + b.mean(), c % 3),
    "where": lambda c, b, m: (c + b.mean(), jnp.where(m, c, 7)),
    "narrow": lambda c, b, m: (c + b.astype(jnp.bfloat16).mean(), c),
}


@pytest.mark.parametrize("progress", [False, True])
@pytest.mark.parametrize("name", BODIES)
def test_a_carry_that_begins_as_a_python_number_may_become_a_float(
    name: str, progress: bool
) -> None:
    loader, body = numbers(), BODIES[name]
    state = loader.init_state(0)
    ours: Any = loader.scan_epoch(state, 3, body, progress=progress)[1:]
    theirs: Any = jax.jit(lambda state: loader.scan_epoch(state, 3, body)[1:])(state)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(mine, float), np.asarray(other, float))


@cereal.pytree_dataclass
class Weak(cereal.IndexedSource[Any]):
    ordering: str = cereal.static_field(default="sequential")

    def __len__(self) -> int:
        return 8

    def element_spec(self) -> Any:
        return jax.ShapeDtypeStruct((), np.float32)

    def take(self, indices: Any) -> Any:
        return jnp.broadcast_to(1.0, indices.shape)


@pytest.mark.parametrize(
    "loader",
    [
        numbers(MapTransform(lambda batch: jnp.broadcast_to(1.0, batch.shape))),
        DataLoader([Weak(), BatchTransform(4)]),
    ],
    ids=["stage", "source"],
)
def test_no_batch_has_a_weak_type(loader: DataLoader[Any]) -> None:
    state = loader.init_state(0)

    def body(carry: Any, batch: Any, mask: Any) -> Any:
        return carry, batch * jnp.bfloat16(1.001)

    ours = loader.scan_epoch(state, 0, body)[2]
    theirs = jax.jit(lambda state: loader.scan_epoch(state, 0, body)[2])(state)
    assert ours.dtype == theirs.dtype == np.float32
    assert not loader.next_batch(state)[0].weak_type


def by_equinox(scale: float) -> Any:
    @eqx.filter_custom_vjp
    def square(x: Any) -> Any:
        return x * x

    square.def_fwd(lambda perturbed, x: (x * x, x))
    square.def_bwd(lambda residual, g, perturbed, x: g * residual * scale)
    return square


def by_jax(scale: float) -> Any:
    return jax.custom_gradient(lambda x: (x * x, lambda g: g * x * scale))


@pytest.mark.parametrize("squaring", [by_equinox, by_jax])
def test_a_rule_that_a_library_made_of_the_users_functions_counts(squaring: Any) -> None:
    loader = numbers()

    def gradient(scale: float) -> float:
        square = squaring(scale)

        def end(carry: Any) -> Any:
            body = lambda c, b, m: (c + square(b.mean()) * 0 + square(c), None)  # noqa: E731
            return loader.scan_epoch(loader.init_state(0), carry, body, steps=1)[1]

        return float(jax.grad(end)(jnp.float32(2)))

    assert [gradient(scale) for scale in (1.0, 10.0)] == [3.0, 21.0]
