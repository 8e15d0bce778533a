"""Steps that were written down, played as a stream: what a rollout gives is known beforehand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import cereal


@cereal.pytree_dataclass
class Played(cereal.Source[Any]):
    """Gives the rows of a tree of arrays one after another, again and again."""

    data: Any
    steps_per_epoch: int = cereal.static_field()

    def element_spec(self) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), self.data)

    def init_state(self, key: Any) -> Any:
        del key
        return jnp.int32(0)

    def next(self, state: Any) -> tuple[Any, Any, Any]:
        size = jax.tree.leaves(self.data)[0].shape[0]
        return jax.tree.map(lambda x: x[state % size], self.data), jnp.bool_(True), state + 1


def written_steps(seed: int, *shape: int, stop: float = 0.2) -> dict[str, Any]:
    """Random transitions of shape `[T, ...]`, with terminations and truncations."""
    rng = np.random.default_rng(seed)
    terminated, truncated = rng.random(shape) < stop, rng.random(shape) < stop / 2
    return {
        "state": rng.normal(size=(*shape, 2)).astype(np.float32),
        "reward": rng.normal(size=shape).astype(np.float32),
        "next_state": rng.normal(size=(*shape, 2)).astype(np.float32),
        "done": terminated | truncated,
        "info": {"terminated": terminated, "truncated": truncated & ~terminated},
    }


def played(steps: Any, steps_per_epoch: int | None = None) -> Played:
    """The stream of these steps."""
    size = jax.tree.leaves(steps)[0].shape[0]
    return Played(jax.tree.map(jnp.asarray, steps), steps_per_epoch or size)
