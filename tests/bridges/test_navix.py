"""Navix alone, which is not in `.venv-bridges`: it brings dozens of packages along."""

from __future__ import annotations

import warnings
from importlib import import_module

import jax
import jax.numpy as jnp
import pytest

from cereal.rl import NavixEnvironment

pytestmark = [pytest.mark.bridges, pytest.mark.filterwarnings("ignore")]
with warnings.catch_warnings(action="ignore"):
    navix = import_module("navix")


def test_two_rooms_are_in_one_program() -> None:
    rooms = [NavixEnvironment(navix.make("Navix-Empty-5x5-v0")) for _ in range(2)]
    shape = jax.jit(lambda env: env.reset(jax.random.key(0))[0].shape[0] + jnp.zeros(()))
    assert float(jax.jit(lambda: shape(rooms[0]) + shape(rooms[1]))()) == 10
