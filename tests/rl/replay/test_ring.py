"""The ring against a deque, the reservoir against its probabilities."""

from __future__ import annotations

from collections import deque
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.core import Literal
from scipy import stats

from cereal.base.spec import Spec
from cereal.rl.replay.storage.ring import below, empty_ring, write_reservoir, write_ring

ITEM = Spec({"x": jax.ShapeDtypeStruct((), jnp.int32), "y": jax.ShapeDtypeStruct((2,), jnp.uint8)})
write = jax.jit(write_ring)
keep = jax.jit(write_reservoir)
read = jax.jit(lambda ring, ages: ring.take(ring.slot_of_age(ages)))


def items(first: int, k: int) -> Any:
    x = np.arange(first, first + k, dtype=np.int32)
    return {"x": jnp.asarray(x), "y": jnp.asarray(np.stack([x, x + 1], 1).astype(np.uint8))}


@settings(max_examples=40)
@given(
    st.integers(5, 9),
    st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=9),
)
def test_it_holds_what_a_deque_holds(capacity: int, writes: list[list[bool]]) -> None:
    ring, held, written = empty_ring(ITEM, capacity), deque(maxlen=capacity), 0
    for number, real in enumerate(writes):
        ring, added = write(ring, items(5 * number, 5), jnp.asarray(real))
        held.extend(5 * number + at for at in range(5) if real[at])
        written += sum(real)
        assert int(added) == sum(real)
        assert (int(ring.count), int(ring.written[1])) == (len(held), written)
        ages = np.zeros(9, np.int32)  # of one length, so that one program reads all
        ages[: len(held)] = np.arange(len(held), 0, -1)  # oldest first
        taken = jax.tree.map(lambda x: np.asarray(x)[: len(held)], read(ring, ages))
        assert taken["x"].tolist() == list(held)
        np.testing.assert_array_equal(taken["y"][:, 1], (np.array(held) + 1).astype(np.uint8))


def test_a_reservoir_keeps_every_item_with_the_same_probability() -> None:
    capacity, k, steps, runs = 8, 5, 12, 2000

    def run(key: Any) -> Any:
        ring = empty_ring(ITEM, capacity)
        for step in range(steps):
            words = jax.random.bits(jax.random.fold_in(key, step), (4, k), jnp.uint32)
            ring, _ = write_reservoir(ring, items(k * step, k), jnp.ones(k, jnp.bool_), words)
        return ring.data["x"]

    kept = np.asarray(jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), runs)))
    assert all(len(set(each)) == capacity for each in kept.tolist())
    counts = np.bincount(kept.reshape(-1), minlength=k * steps)
    assert stats.chisquare(counts).pvalue > 1e-4
    assert stats.chisquare(counts[:: k * steps - 1]).pvalue > 1e-4  # the first and the last


def test_of_two_items_for_one_slot_the_later_one_stays() -> None:
    ring = empty_ring(ITEM, 1)
    ring, _ = keep(ring, items(0, 1), jnp.ones(1, jnp.bool_), jnp.zeros((4, 1), jnp.uint32))
    ring, _ = keep(ring, items(10, 4), jnp.ones(4, jnp.bool_), jnp.zeros((4, 4), jnp.uint32))
    assert ring.data["x"].tolist() == [13]


def test_masked_items_are_not_seen_by_a_reservoir() -> None:
    ring, real = empty_ring(ITEM, 4), jnp.asarray([False, True, False])
    ring, added = keep(ring, items(0, 3), real, jnp.zeros((4, 3), jnp.uint32))
    assert (int(added), int(ring.count), ring.data["x"].tolist()) == (1, 1, [1, 0, 0, 0])


def test_numbers_below_n_are_drawn_evenly() -> None:
    words = jax.random.bits(jax.random.key(0), (2, 100_000), jnp.uint32)
    for n in (1, 3, 1000):
        drawn = np.asarray(below(words, jnp.uint32(n)))
        assert drawn.max() < n
        assert n == 1 or stats.chisquare(np.bincount(drawn, minlength=n)).pvalue > 1e-4
    top = jnp.full((2, 1), 2**32 - 1, jnp.uint32)
    assert int(below(top, jnp.uint32(10**7))[0]) == 10**7 - 1


def sums_of_constants(jaxpr: Any, known: Any = ()) -> int:
    """How many running sums of a program depend on none of its arguments."""
    known, found = set(known), 0
    for eqn in jaxpr.eqns:
        constant = [isinstance(x, Literal) or x in known for x in eqn.invars]
        inside = eqn.params.get("jaxpr")
        if inside is not None:
            inner = zip(inside.jaxpr.invars, constant, strict=True)
            found += sums_of_constants(inside.jaxpr, (x for x, is_known in inner if is_known))
        found += eqn.primitive.name == "cumsum" and all(constant)
        known.update(eqn.outvars if all(constant) else ())
    return found


@pytest.mark.parametrize("write_all", [write_ring, write_reservoir])
def test_running_sums_of_a_long_mask_are_not_computed_while_compiling(write_all: Any) -> None:
    """For a constant mask of 10^6, the compiler for GPUs would take 20 seconds."""
    k = 5000
    words = () if write_all is write_ring else (jnp.zeros((4, k), jnp.uint32),)

    def fill(ring: Any, values: Any) -> Any:
        return write_all(ring, values, jnp.ones(k, jnp.bool_), *words)[0]

    assert sums_of_constants(jax.make_jaxpr(lambda: jnp.cumsum(jnp.ones(k)))().jaxpr) == 1
    program = jax.make_jaxpr(fill)(empty_ring(ITEM, 2 * k), items(0, k))
    assert "cumsum" in str(program)
    assert not sums_of_constants(program.jaxpr)
