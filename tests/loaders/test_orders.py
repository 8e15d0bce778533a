"""Loaders over every order: the conformance kit, states, jit, pickles."""

from __future__ import annotations

import itertools
import pickle
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal import BlockShuffle, Bootstrap, ClassBalanced, DataLoader, WeightedSampling
from cereal.core.ordering import Order
from cereal.core.rows import Plan
from cereal.core.state import make_words
from cereal.testing import assert_same, check_loader, check_resume, check_source

N = 9
LABELS = [4, 4, 4, 4, 4, 4, 1, 1, 7]

ORDERS: dict[str, Callable[[], Order]] = {
    "blocks": lambda: BlockShuffle(2, together=2),
    "bootstrap": Bootstrap,
    "with replacement": lambda: WeightedSampling(np.arange(N), length=11),
    "without replacement": lambda: WeightedSampling(np.arange(N), replacement=False),
    "class balanced": lambda: ClassBalanced(LABELS),
}
RULES: dict[str, dict[str, Any]] = {
    "blocks": {"pad_last_batch": True},
    "bootstrap": {},
    "with replacement": {"drop_last": True},
    "without replacement": {},
    "class balanced": {"pad_last_batch": True},
}
every_order = pytest.mark.parametrize("name", ORDERS)


def add_noise(element: Any, key: Any) -> Any:
    return {**element, "x": element["x"] * 1000 + jax.random.bits(key, (), jnp.uint8)}


def make_loader(order: Any, **rule: Any) -> DataLoader[Any]:
    data = {"x": np.arange(N, dtype=np.int32), "label": np.array(LABELS, np.int32)}
    source = cereal.ArraySampleSource(data, ordering=order)
    noise = cereal.RandomMapTransform(add_noise)
    return DataLoader([source, noise, cereal.BatchTransform(4, **rule)])


@pytest.fixture(scope="module")
def loaders() -> dict[str, DataLoader[Any]]:
    return {name: make_loader(make(), **RULES[name]) for name, make in ORDERS.items()}


@pytest.mark.slow
@every_order
def test_it_passes_the_conformance_kit(loaders: dict[str, DataLoader[Any]], name: str) -> None:
    check_loader(loaders[name], key=jax.random.key(3))
    check_resume(loaders[name], key=jax.random.key(3))


@every_order
def test_a_source_with_it_passes_the_conformance_kit(name: str) -> None:
    check_source(cereal.RangeSource(N, ordering=ORDERS[name]()))


@every_order
def test_indices_at_names_the_elements_of_the_batch(
    loaders: dict[str, DataLoader[Any]], name: str
) -> None:
    loader = loaders[name]
    for step in range(5):
        batch, mask = loader.batch_at(0, step)
        index = np.asarray(batch["x"])[np.asarray(mask)] // 1000
        np.testing.assert_array_equal(index, loader.indices_at(0, step))


@every_order
def test_it_is_passed_to_jit(loaders: dict[str, DataLoader[Any]], name: str) -> None:
    traces = []

    @jax.jit
    def step(loader: DataLoader[Any], state: Any) -> Any:
        traces.append(name)
        return loader.next_batch(state)

    state = loaders[name].init_state(1)
    assert_same(step(loaders[name], state), loaders[name].next_batch(state), name)
    again = make_loader(ORDERS[name](), **RULES[name])
    assert_same(step(again, state), loaders[name].next_batch(state), f"{name}, built again")
    assert len(traces) == 1, "an equal loader is traced again"


@every_order
def test_equal_loaders_have_one_structure(loaders: dict[str, DataLoader[Any]], name: str) -> None:
    again = make_loader(ORDERS[name](), **RULES[name])
    assert jax.tree.structure(again) == jax.tree.structure(loaders[name])
    assert_same(again, loaders[name], name)


def test_loaders_of_other_orders_have_other_structures(
    loaders: dict[str, DataLoader[Any]],
) -> None:
    orders: list[Any] = [BlockShuffle(3), BlockShuffle(2, together=3), "shuffle"]
    orders += [WeightedSampling(np.arange(N) + 1, length=11), ClassBalanced(LABELS[::-1])]
    others = [make_loader(order) for order in orders]
    structures = {jax.tree.structure(loader) for loader in (*loaders.values(), *others)}
    assert len(structures) == len(ORDERS) + 5


@every_order
def test_it_comes_back_from_a_pickle(loaders: dict[str, DataLoader[Any]], name: str) -> None:
    copy = pickle.loads(pickle.dumps(loaders[name]))
    assert jax.tree.structure(copy) == jax.tree.structure(loaders[name])
    for step in (0, 3):
        assert_same(copy.batch_at(5, step), loaders[name].batch_at(5, step), name)
    state = loaders[name].init_state(5)  # a state goes on under the copy
    assert_same(copy.next_batch(state), loaders[name].next_batch(state), f"{name}, state")


@every_order
def test_the_loop_without_a_state_is_refused(
    loaders: dict[str, DataLoader[Any]], name: str
) -> None:
    with pytest.raises(cereal.UsageError, match=r"this pipeline is random.*loader\.iterate"):
        iter(loaders[name])


# States of other orders

OTHERS: list[Any] = [
    "shuffle",
    BlockShuffle(3),
    BlockShuffle(3, together=2),
    BlockShuffle(4),
    Bootstrap(),
    WeightedSampling(np.arange(N)),
    WeightedSampling(np.arange(N)[::-1]),
    WeightedSampling(np.arange(N) + 1, replacement=False),
    ClassBalanced(LABELS),
    ClassBalanced(LABELS[::-1]),
]


def test_a_state_of_another_order_is_refused_by_name() -> None:
    sources = [cereal.RangeSource(N, ordering=order) for order in OTHERS]
    for one, other in itertools.permutations(sources, 2):
        state = DataLoader(one).init_state(0)
        message = f"it has ordering={one._order.name}, this one has ordering={other._order.name}. "
        with pytest.raises(cereal.StateError, match=re.escape(message)):
            DataLoader(other).next_batch(state)


def test_a_state_of_another_number_of_draws_is_refused() -> None:
    lengths = [WeightedSampling(np.arange(N), length=length) for length in (None, 20)]
    one, other = (DataLoader(cereal.RangeSource(N, ordering=order)) for order in lengths)
    with pytest.raises(cereal.StateError, match="it has length=9, this one has length=20"):
        other.iterate(one.init_state(0))


@every_order
@pytest.mark.filterwarnings("ignore:.*is larger than the data")
def test_another_batch_size_at_every_step_loses_and_repeats_nothing(name: str) -> None:
    source = cereal.RangeSource(N, ordering=ORDERS[name]())

    def plan(size: int) -> Plan:
        return DataLoader([source, cereal.BatchTransform(size)]).source._plan  # type: ignore[attr-defined]

    words, taken = make_words((0, 2), 0, 0), []
    for size in (4, 9, 1, 1, 30, 2, 7):
        rows, words = plan(size).rows_for(words, 1)
        taken.append(rows.index.ravel())
    whole, after = plan(54).rows_for(make_words((0, 2), 0, 0), 1)
    np.testing.assert_array_equal(np.concatenate(taken), whole.index.ravel())
    np.testing.assert_array_equal(words, after)


@every_order
def test_it_is_the_same_with_64_bit_types_on(name: str) -> None:
    order = ORDERS[name]()
    plan, words = Plan(order, order.length(N), (4,), "wrap"), make_words((1, 2), 2**32 - 1, 5)
    exact, _ = plan.rows_for(words, 4)
    with jax.enable_x64(True):
        rows, _ = jax.jit(partial(plan.rows_for, steps=4))(jnp.asarray(words))
    assert rows.index.dtype == jnp.int32
    np.testing.assert_array_equal(rows.index, exact.index)
    np.testing.assert_array_equal(rows.epoch, exact.epoch)


@every_order
def test_the_drawing_names_it(loaders: dict[str, DataLoader[Any]], name: str) -> None:
    order = ORDERS[name]()
    assert f"ordering={order.name}" in repr(loaders[name])
    assert type(order).__name__ in order.name


def test_writing_into_given_weights_and_labels_afterwards_changes_nothing() -> None:
    weights, labels = np.ones(64), np.arange(64, dtype=np.int32) % 3
    orders = [
        WeightedSampling(weights),
        WeightedSampling(weights, replacement=False),
        ClassBalanced(labels),
    ]
    loaders = [DataLoader(cereal.RangeSource(64, ordering=order)) for order in orders]
    before = [[loader.indices_at(0, step)[0] for step in range(64)] for loader in loaders]
    weights[1:], labels[:] = 0, 0
    for loader, indices in zip(loaders, before, strict=True):
        assert [loader.indices_at(0, step)[0] for step in range(64)] == indices
