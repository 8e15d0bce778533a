"""A stage whose function's arrays are replaced: by equal ones, other ones, keys; after deletion."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cereal import ArraySampleSource, BatchTransform, DataLoader, MapTransform


def loader_of(fn: Any) -> DataLoader[Any]:
    source = ArraySampleSource(np.ones(4, np.float32), ordering="sequential")
    return DataLoader([source, BatchTransform(4), MapTransform(fn)])


def first(loader: DataLoader[Any]) -> list[float]:
    return loader.next_batch(loader.init_state(0))[0].tolist()


def test_a_key_that_is_replaced_is_the_new_one() -> None:
    held = SimpleNamespace(key=jax.random.key(0))
    loader = loader_of(lambda batch: batch + jax.random.uniform(held.key))
    before = first(loader)
    assert first(loader) == before
    held.key = jax.random.key(1)
    assert first(loader) == first(loader_of(lambda b: b + jax.random.uniform(jax.random.key(1))))


def test_the_array_that_was_replaced_may_be_deleted() -> None:
    held = SimpleNamespace(weights=jnp.ones(4))
    loader = loader_of(lambda batch: batch * held.weights)
    assert first(loader) == [1] * 4
    new = held.weights * 2
    held.weights.delete()  # as donation does
    held.weights = new
    assert first(loader) == [2] * 4


def test_zeros_of_another_sign_are_other_values() -> None:
    held = SimpleNamespace(weights=np.zeros(4, np.float32))
    loader = loader_of(lambda batch: batch / held.weights)
    assert first(loader) == [np.inf] * 4
    held.weights = -held.weights
    assert first(loader) == [-np.inf] * 4
