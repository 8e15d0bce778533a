"""The contracts: sources that users write in a dozen lines keep them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal.testing import check_loader, check_resume, check_source


@cereal.pytree_dataclass
class Squares(cereal.IndexedSource[jax.Array]):
    """Computed: needs a length and a batched read, no more."""

    n: int = cereal.static_field()
    ordering: Any = cereal.static_field(default="sequential")

    def __len__(self) -> int:
        return self.n

    def element_spec(self) -> Any:
        return jax.ShapeDtypeStruct((), jnp.int32)

    def take(self, indices: jax.Array) -> jax.Array:
        return indices**2


@cereal.pytree_dataclass
class Stored(cereal.IndexedSource[jax.Array]):
    """Holds arrays: the data, and the order in which to visit it."""

    data: Any
    ordering: Any

    def __len__(self) -> int:
        return self.data.shape[0]

    def element_spec(self) -> Any:
        return jax.ShapeDtypeStruct(self.data.shape[1:], self.data.dtype)

    def take(self, indices: jax.Array) -> jax.Array:
        return self.data[indices]


@cereal.pytree_dataclass
class RandomWalk(cereal.Source[jax.Array]):
    """A stream: where it goes depends on where it was."""

    steps_per_epoch: int = cereal.static_field(default=6)

    def element_spec(self) -> Any:
        return jax.ShapeDtypeStruct((), jnp.int32)

    def init_state(self, key: Any) -> Any:
        return {"place": jnp.int32(0), "key": jax.random.key(key) if isinstance(key, int) else key}

    def next(self, state: Any) -> Any:
        key, step = jax.random.split(state["key"])
        place = state["place"] + jax.random.randint(step, (), -5, 6)
        return place, jnp.bool_(True), {"place": place, "key": key}


class NoPytree(cereal.IndexedSource[Any]):
    def __len__(self) -> int:
        return 3

    def element_spec(self) -> Any:
        return jax.ShapeDtypeStruct((), jnp.int32)

    def take(self, indices: jax.Array) -> Any:
        return indices


@pytest.mark.parametrize("ordering", ["sequential", "shuffle"])
def test_an_indexed_source_of_a_user_keeps_the_contract(ordering: str) -> None:
    source = Squares(6, ordering=ordering)
    check_source(source)
    check_resume(cereal.DataLoader(source), epochs=1)
    loader = cereal.DataLoader(source)
    taken = sorted(int(value) for value, _ in loader.iterate(loader.init_state(0)))
    assert taken == [0, 1, 4, 9, 16, 25]


@pytest.mark.parametrize("ordering", [np.array([3, 1, 1, 0]), jnp.array([3, 1, 1, 0])])
def test_a_source_of_a_user_may_hold_its_order_as_an_array(ordering: Any) -> None:
    source = Stored(jnp.arange(10) * 10, ordering)
    check_source(source)
    loader = cereal.DataLoader([source, cereal.BatchTransform(3)])
    check_loader(loader)
    assert [batch.tolist() for batch, _ in loader] == [[30, 10, 10], [0, 30, 10]]


def test_a_state_made_inside_jit_serves_outside() -> None:
    loader = cereal.DataLoader(Stored(jnp.arange(10), jnp.array([3, 1])))
    state = jax.jit(lambda loader, key: loader.init_state(key))(loader, jax.random.key(0))
    assert int(loader.next_batch(state)[0]) == 3


def test_a_stream_of_a_user_keeps_the_contract() -> None:
    check_source(RandomWalk())
    loader = cereal.DataLoader([RandomWalk(), cereal.BatchTransform(2)])
    check_loader(loader, jax.random.key(0))
    check_resume(loader, jax.random.key(0))


def test_a_source_says_how_long_its_epoch_is_and_prints_its_name() -> None:
    assert Squares(6).steps_per_epoch == 6
    assert Squares(6, ordering=(1, 2)).steps_per_epoch == 2
    assert repr(Squares(6)) == "Squares"
    assert RandomWalk().traits.lanes == ()


def test_next_gives_one_answer_to_one_state_however_often_it_is_asked() -> None:
    source = Squares(6, ordering="shuffle")
    state = source.init_state(3)
    first, mask, after = source.next(state)
    second, _, again = source.next(state)
    assert int(first) == int(second)
    assert bool(mask)
    np.testing.assert_array_equal(after.words, again.words)


def test_an_abstract_source_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="abstract"):
        cereal.IndexedSource()  # type: ignore[abstract]
    with pytest.raises(TypeError, match="abstract"):
        cereal.Source()  # type: ignore[abstract]


def test_a_source_that_is_no_pytree_is_refused_with_the_line_to_write() -> None:
    message = "NoPytree is not a pytree, .* write `@cereal.pytree_dataclass` above its class"
    with pytest.raises(cereal.PipelineError, match="^the pipeline: " + message):
        cereal.DataLoader(NoPytree())
    with pytest.raises(cereal.PipelineError, match="^stage 0: " + message):
        cereal.DataLoader([NoPytree(), cereal.BatchTransform(2)])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Squares(2**31), "Squares: 2147483648 elements are more than compiled code can count"),
        (Squares(0), "Squares: it is empty, its `len` is 0"),
        (Squares(6, ordering="shuffled"), "Squares: `ordering` must be .*'shuffled'"),
        (Squares(6, ordering=(6,)), "Squares: an `ordering` of indices has the index 6, outside"),
    ],
)
def test_lengths_and_orders_of_a_user_are_checked_when_the_loader_is_built(
    source: Any, message: str
) -> None:
    with pytest.raises(cereal.PipelineError, match="^the pipeline: " + message):
        cereal.DataLoader(source)
    with pytest.raises(cereal.PipelineError, match="^stage 0: " + message):
        cereal.DataLoader([source, cereal.BatchTransform(2)])
