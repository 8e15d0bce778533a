"""Two forms of one computation, by platform."""

from __future__ import annotations

from typing import Any

import jax
import jax.extend.backend
import jax.numpy as jnp
import pytest

from cereal.device.platforms import by_platform


def forms(x: Any) -> Any:
    return by_platform(x, cpu=lambda x: x + 1, default=lambda x: x + 2)


def test_the_form_for_the_cpu_runs_there() -> None:
    assert int(forms(jnp.int32(0))) == int(jax.jit(forms)(jnp.int32(0))) == 1


def test_with_nothing_but_the_cpu_only_its_form_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(jax.make_jaxpr(forms)(jnp.int32(0)).eqns) == 1
    more = {**jax.extend.backend.backends(), "another": None}
    monkeypatch.setattr(jax.extend.backend, "backends", lambda: more)
    assert len(jax.make_jaxpr(lambda x: forms(x))(jnp.int32(0)).eqns) > 1
