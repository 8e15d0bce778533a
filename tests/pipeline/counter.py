"""A stream of a user's own, which is known beforehand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import cereal


@cereal.pytree_dataclass
class Counter(cereal.Source[Any]):
    """0, 1, 2, ...; every third is not real."""

    steps_per_epoch: int = cereal.static_field(default=10)

    def element_spec(self) -> Any:
        return jax.ShapeDtypeStruct((), jnp.int32)

    def init_state(self, key: Any) -> Any:
        return jnp.int32(0)

    def next(self, state: Any) -> Any:
        return state, (state + 1) % 3 != 0, state + 1
