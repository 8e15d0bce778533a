"""Values and states that are not what was said are refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.rl.replay.streams import KEY

import cereal
from cereal import BatchTransform, DataLoader, PipelineError, ReplayTransform, StateError, rl


@cereal.pytree_dataclass
class Said(cereal.Source[Any]):
    """Gives `values`, and says that they are like `spec`; the state holds a random key."""

    values: Any = cereal.static_field()
    spec: Any = cereal.static_field()
    steps_per_epoch: int = cereal.static_field(default=20)

    def element_spec(self) -> Any:
        return self.spec

    def init_state(self, key: Any) -> Any:
        return key, jnp.int32(0)

    def next(self, state: Any) -> Any:
        key, number = state
        value = jax.tree.map(lambda x: jnp.full(x.shape, number, x.dtype), self.values)
        return value, jnp.bool_(True), (key, number + 1)


FLOAT, INT = (jax.ShapeDtypeStruct((), dtype) for dtype in (np.float32, np.int32))
WIDE, HIGH = (jax.ShapeDtypeStruct(shape, np.float32) for shape in ((2, 3), (3, 2)))


@pytest.mark.parametrize(("given", "said"), [((INT, FLOAT), (FLOAT, FLOAT)), (HIGH, WIDE)])
@pytest.mark.parametrize(
    "stage",
    [
        ReplayTransform(8, batch_size=4, collect=4),
        ReplayTransform(8, batch_size=4),
        cereal.BufferTransform(8, prefill=4),
    ],
)
def test_values_that_are_not_as_their_source_said_are_refused(
    given: Any, said: Any, stage: Any
) -> None:
    loader = DataLoader([Said(given, said), stage])
    with pytest.raises(PipelineError, match="but its `element_spec` says"):
        loader.next_batch(loader.init_state(KEY))


def numbers(n: int, ordering: str) -> Any:
    return cereal.ArraySampleSource({"x": np.arange(n, dtype=np.float32)}, ordering=ordering)


STAGES = {
    "replay": lambda source: [source, ReplayTransform(20, batch_size=2, collect=2)],
    "one step": lambda source: [source, ReplayTransform(20, batch_size=2)],
    "buffer": lambda source: [source, cereal.BufferTransform(20, prefill=2)],
    "mixture": lambda source: [rl.MixedBatchesSource([[source, BatchTransform(2)]])],
}


@pytest.mark.parametrize("name", STAGES)
def test_a_state_over_other_data_is_refused(name: str) -> None:
    one = DataLoader(STAGES[name](numbers(100, "sequential")))
    other = DataLoader(STAGES[name](numbers(50, "shuffle")))
    state = one.next_batch(one.init_state(0))[1]
    with pytest.raises(StateError, match="belongs to another pipeline: it has length=100"):
        other.next_batch(state)
    with pytest.raises(StateError, match="belongs to another pipeline"):
        next(other.iterate(state))
    with pytest.raises(StateError, match="belongs to another pipeline"):
        other.scan_epoch(state, 0, lambda carry, batch, mask: (carry, None))


@pytest.mark.parametrize("sizes", [(3, 1), (4,)])
def test_the_state_of_a_mixture_of_other_sizes_is_refused(sizes: Any) -> None:
    def mixed(sizes: Any) -> Any:
        parts = [[numbers(100, "sequential"), BatchTransform(size)] for size in sizes]
        return DataLoader([rl.MixedBatchesSource(parts)])

    loader = mixed((1, 3))
    with pytest.raises(StateError, match=r"the state is of another mixture, .*joins \(1, 3\)"):
        loader.next_batch(mixed(sizes).init_state(0))
    with pytest.raises(StateError, match="the state is of another mixture"):
        loader.scan_epoch(mixed(sizes).init_state(0), 0, lambda carry, *each: (carry, None))


def failing(state: Any) -> Any:
    def fail(x: Any) -> Any:
        raise ValueError("on purpose")

    made = jax.pure_callback(fail, jax.ShapeDtypeStruct((), jnp.uint32), state.numbers[0])
    return state.but(written=jnp.stack([made, made]))


def test_after_a_failed_step_an_iterator_with_random_keys_goes_on_from_what_was_saved() -> None:
    loader = DataLoader([Said(FLOAT, FLOAT), ReplayTransform(40, batch_size=4, collect=2)])
    batches = loader.iterate(loader.init_state(KEY))
    next(batches)
    saved = batches.get_state()
    wanted = next(batches)[0].tolist()
    with pytest.raises(Exception, match="on purpose"):
        batches.feed_back(failing)
    batches.set_state(saved)
    assert next(batches)[0].tolist() == wanted
