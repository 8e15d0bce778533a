"""Items lie side by side, and come back bit by bit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cereal.base.spec import Spec
from cereal.rl.replay.storage.ring import empty_ring, write_ring
from cereal.rl.replay.storage.table import Table

RNG = np.random.default_rng(0)
ITEMS = {
    "action": np.arange(5, dtype=np.int32) - 2,
    "done": np.array([True, False, True, True, False]),
    "image": RNG.integers(0, 256, (5, 6, 7), np.uint8),
    "nothing": np.zeros((5, 0), np.float32),
    "pair": (np.arange(5, dtype=np.uint32) << 29, RNG.normal(size=(5, 2, 3)).astype(np.float32)),
    "reward": np.array([np.nan, -0.0, np.inf, 1e-42, 3.0], np.float32),
    "short": RNG.normal(size=(5, 2)).astype(np.float16),
    "wide": RNG.normal(size=(5, 65)).astype(np.float32),
}


def filled(items: Any, capacity: int = 7) -> Any:
    items = jax.tree.map(jnp.asarray, items)
    one = Spec(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), items))
    return jax.jit(write_ring)(empty_ring(one, capacity), items, jnp.ones(5, jnp.bool_))[0]


def same_bits(found: Any, wanted: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert np.asarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


@pytest.mark.parametrize(
    "items",
    [ITEMS, ITEMS["action"], {"a": ITEMS["action"], "b": ITEMS["reward"]}, (ITEMS["done"],)],
)
def test_items_come_back_bit_by_bit(items: Any) -> None:
    ring = filled(items)
    same_bits(jax.tree.map(lambda x: x[:5], ring.data), items)
    slots = np.array([[4, 0], [2, 2]])
    same_bits(jax.jit(ring.take)(jnp.asarray(slots)), jax.tree.map(lambda x: x[slots], items))


def test_small_arrays_of_four_bytes_share_one_array() -> None:
    table: Table = filled(ITEMS).table
    assert table.words.shape == (7, 1 + 1 + 6 + 1)  # action, pair, reward
    assert [x.dtype.name for x in table.apart] == ["bool", "uint8", "float32", "float16", "float32"]


def test_a_table_takes_no_more_memory_than_its_items() -> None:
    table = filled(ITEMS).table
    assert sum(x.nbytes for x in jax.tree.leaves(table)) == 7 * table.item.nbytes


def test_one_small_array_is_kept_as_it_is() -> None:
    assert filled({"a": ITEMS["action"], "b": ITEMS["done"]}).table.words is None
