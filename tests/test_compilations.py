"""What tests count is the same with programs that other tests have compiled as without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.monitoring
import jax.numpy as jnp
import pytest

COMPILED = "/jax/core/compile/backend_compile_duration"
LOADED = "/jax/compilation_cache/cache_hits"


@pytest.fixture
def events() -> Iterator[list[str]]:
    """The names of what JAX reports while a test runs."""
    found: list[str] = []

    def lasted(event: str, *_: Any, **__: Any) -> None:
        found.append(event)

    def happened(event: str, **_: Any) -> None:
        found.append(event)

    jax.monitoring.register_event_duration_secs_listener(lasted)
    jax.monitoring.register_event_listener(happened)
    yield found
    jax.monitoring.unregister_event_duration_listener(lasted)
    jax.monitoring.unregister_event_listener(happened)


def fresh(number: int) -> Callable[[Any], Any]:
    """A new function of the same code: JAX in memory knows none of them."""
    return jax.jit(lambda x: jnp.sin(x) * number + jnp.cos(x) * 719)


def test_a_program_that_is_loaded_counts_as_a_compilation(events: list[str]) -> None:
    x = jnp.arange(7.0)
    fresh(3)(x)
    events.clear()
    again = fresh(3)
    assert again(x).shape == (7,)
    assert again(x).shape == (7,)
    assert events.count(COMPILED) == 1
    assert again._cache_size() == 1  # type: ignore[attr-defined]
    assert events.count(LOADED) == 1  # and it was not XLA that made it
