"""New priorities are written into the sum tree in place, however a batch was used before."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from tests.rl.corridor import ONE, walk

import cereal

CAPACITY = 100_000


def weighted(carry: Any, batch: Any, mask: Any) -> Any:
    """As Q-learning: weights are in the loss, and not in the priorities."""
    error = jnp.abs(batch["reward"] * carry) + 0.1
    return carry + jnp.mean(batch["weight"] * error), (batch["index"], error)


def everything(carry: Any, batch: Any, mask: Any) -> Any:
    mean = jnp.mean(batch["probability"] * batch["weight"]) + jnp.mean(mask)
    return carry + mean, (batch["index"], batch["weight"] + 0.1)


def unused(carry: Any, batch: Any, mask: Any) -> Any:
    return carry, (batch["index"], jnp.abs(batch["reward"]) + 0.1)


_more = pytest.mark.slow  # each compiles for seconds


@pytest.mark.optimized
@pytest.mark.parametrize(
    ("update", "seeds"),
    [
        (weighted, None),
        pytest.param(weighted, 2, marks=_more),
        pytest.param(everything, None, marks=_more),
        pytest.param(unused, None, marks=_more),
    ],
)
def test_no_step_copies_the_tree(update: Any, seeds: int | None) -> None:
    replay = cereal.ReplayTransform(CAPACITY, batch_size=4, sample="prioritized", n_step=3)
    loader = cereal.DataLoader([walk(), replay])

    def feedback(state: Any, carry: Any, output: Any) -> Any:
        return cereal.rl.set_priorities(state, *output)

    def run(state: Any) -> Any:
        return loader.scan_epoch(state, jnp.float32(1), update, steps=5, feedback=feedback)

    state = jax.eval_shape(lambda: loader.init_state(0, ONE))
    tree = state.nodes.size * 4 * (seeds or 1)
    if seeds:
        state = jax.tree.map(lambda x: jax.ShapeDtypeStruct((seeds, *x.shape), x.dtype), state)
        run = jax.vmap(run)
    memory: Any = jax.jit(run, donate_argnums=0).lower(state).compile().memory_analysis()
    assert memory.temp_size_in_bytes < tree / 10
