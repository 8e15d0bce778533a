"""`next_many(state, n)`: what n times `next` gives, at once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.pipeline.counter import Counter

import cereal

pytestmark = pytest.mark.optimized


@cereal.pytree_dataclass
class AtOnce(Counter):
    """The same, with all of a batch at once; shifted, so that it shows."""

    def next_many(self, state: Any, n: int) -> tuple[Any, Any, Any]:
        values = state + jnp.arange(n, dtype=jnp.int32)
        return values + 1000, values % 3 != 2, state + n


def noisy(element: Any, key: Any) -> Any:
    return element + jax.random.randint(key, (), 0, 1000)


def by_hand(source: Any, state: Any, n: int) -> tuple[Any, Any, Any]:
    found = []
    for _ in range(n):
        value, mask, state = source.next(state)
        found.append((value, mask))
    values, masks = jax.tree.map(lambda *each: np.stack(each), *found)
    return values, masks, state


DATA = {"x": np.arange(24, dtype=np.int32).reshape(12, 2)}
SOURCES = {
    "arrays": cereal.ArraySampleSource(DATA, ordering="shuffle"),
    "arrays, a random stage": cereal.RandomMapTransform(lambda e, k: {"x": noisy(e["x"], k)})(
        cereal.ArraySampleSource(DATA)
    ),
    "batches": cereal.BatchTransform(5, pad_last_batch=True)(cereal.RangeSource(12)),
    "a mixture": cereal.MixSource([cereal.RangeSource(4), cereal.RangeSource(6)], weights=(2, 1)),
    "files": cereal.DiskSampleSource(12, lambda i: np.int32(i * i), ordering="shuffle"),
    "files, batched": cereal.BatchTransform(3)(
        cereal.DiskSampleSource(12, lambda i: np.int32(i * i))
    ),
    "a stream": Counter(),
    "a stream, a random stage": cereal.RandomMapTransform(noisy)(Counter()),
    "a stream, batched": cereal.BatchTransform(4)(Counter()),
    "a stream, padded": cereal.BatchTransform(4, pad_last_batch=True)(Counter()),
    "a stream, batched, a random stage": cereal.RandomMapTransform(noisy)(
        cereal.BatchTransform(4)(Counter())
    ),
    "a stream, taken apart": cereal.UnbatchTransform()(
        cereal.MapTransform(lambda b: b * 2)(cereal.BatchTransform(4)(Counter()))
    ),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_many_at_once_are_as_many_one_by_one(source: Any) -> None:
    state = source.init_state(jax.random.key(3))
    values, masks, after = source.next_many(state, 7)
    expected = by_hand(source, state, 7)
    jitted = jax.jit(lambda source, state: source.next_many(state, 7))(source, state)
    for found in ((values, masks, after), jitted):
        assert jax.tree.all(jax.tree.map(np.array_equal, found, expected))


def test_batches_are_made_by_it() -> None:
    loader = cereal.DataLoader(
        [AtOnce(), cereal.MapTransform(lambda x: 2 * x), cereal.BatchTransform(4)]
    )
    batch, state, mask = loader.next_batch(loader.init_state(0))
    assert batch.tolist() == [2000, 2002, 2004, 2006]
    assert mask.tolist() == [True, True, False, True]
    assert int(state) == 4


def test_a_stage_sees_one_element_whatever_is_made_at_once() -> None:
    shapes = []

    def look(x: Any) -> Any:
        shapes.append(x.shape)
        return x

    loader = cereal.DataLoader([AtOnce(), cereal.MapTransform(look), cereal.BatchTransform(4)])
    loader.next_batch(loader.init_state(0))
    assert set(shapes) == {()}


def test_callbacks_of_a_stream_run_once_a_step_and_in_order() -> None:
    seen = []

    def note(batch: Any, mask: Any) -> None:
        seen.append(batch.tolist())

    source = cereal.HostCallbackTransform(note)(cereal.BatchTransform(2)(Counter()))
    values, _, _ = source.next_many(source.init_state(0), 3)
    jax.block_until_ready(values)
    assert seen == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("n", [0, -1, 1.5, None])
@pytest.mark.parametrize("name", ["arrays", "a stream, batched"])
def test_a_number_of_steps_is_a_positive_integer(name: str, n: Any) -> None:
    source = SOURCES[name]
    with pytest.raises(cereal.UsageError, match="next_many: `n` must be an integer of at least 1"):
        source.next_many(source.init_state(0), n)
