"""What is guessed about an environment from the program of its reset."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from cereal.rl.shape_checks import has_long_reset


class Resetting:
    """An environment whose reset is so many operations."""

    def __init__(self, operations: int, around: Any) -> None:
        self.operations, self.around = operations, around

    def reset(self, key: Any) -> tuple[Any, Any]:
        def work(x: Any) -> Any:
            for _ in range(self.operations):
                x = jnp.sin(x)
            return x

        made = self.around(work)(jax.random.normal(key, ()))
        return made, made


AROUND = {
    "itself": lambda work: work,
    "jit": jax.jit,
    "cond": lambda work: lambda x: jax.lax.cond(x > 0, work, jnp.cos, x),
    "scan": lambda work: lambda x: jax.lax.scan(lambda x, _: (work(x), None), x, length=2)[0],
    "jit in a scan": lambda work: AROUND["scan"](jax.jit(work)),
}


@pytest.mark.parametrize("around", AROUND)
def test_a_reset_of_many_operations_is_long_wherever_they_are(around: str) -> None:
    assert has_long_reset(Resetting(1_000, AROUND[around]))
    assert not has_long_reset(Resetting(100, AROUND[around]))
