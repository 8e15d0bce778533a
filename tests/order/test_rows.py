from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.slowly import quickly

import cereal
from cereal.order.ordering import Order, as_order
from cereal.order.position import Remainder
from cereal.order.rows import Plan, Rows
from cereal.pipeline.state import make_words

pytestmark = pytest.mark.optimized

RULES: tuple[Remainder, ...] = ("wrap", "pad", "drop")
KEY = (3, 5)
LAST_EPOCH = 2**32 - 1
ORDERINGS = ("sequential", "shuffle", "indices")

Lane = tuple[int, int, bool]  # epoch, position in it, whether it is real


def order_of(ordering: str, n: int) -> Order:
    indices = (np.arange(n) * 7 + 3) % (n + 4)
    return as_order(indices if ordering == "indices" else ordering, n + 4, "test")


def indices_of(order: Order, epoch: int, n: int) -> np.ndarray:
    """The whole order of one epoch."""
    epochs, column = np.array([epoch & LAST_EPOCH], np.uint32), np.zeros(n, np.int64)
    key = (np.uint32(KEY[0]), np.uint32(KEY[1]))
    return np.asarray(order.index(key, epochs, column, np.arange(n), n))


def walk(
    epoch: int, offset: int, steps: int, n: int, batch: int, rule: Remainder
) -> tuple[list[list[Lane]], tuple[int, int]]:
    """Steps by hand, and the position after them."""
    walked: list[list[Lane]] = []
    start = (epoch, offset)
    for _ in range(steps + 1):
        if offset >= n or (rule == "drop" and n - offset < batch):
            epoch, offset = epoch + 1, 0
        start, lanes = (epoch, offset), []
        for _ in range(batch):
            if offset >= n and rule == "wrap":
                epoch, offset = epoch + 1, 0
            lanes.append((epoch & LAST_EPOCH, offset % n, offset < n))
            offset += 1
        walked.append(lanes)
    return walked[:-1], start


def assert_rows(rows: Rows, lanes: list[list[Lane]], plan: Plan) -> None:
    orders = {
        epoch: indices_of(plan.order, epoch, plan.length) for lane in lanes for epoch, *_ in lane
    }
    shape = (len(lanes), *plan.lanes)
    expected = [[orders[epoch][position] for epoch, position, _ in lane] for lane in lanes]
    np.testing.assert_array_equal(rows.index, np.reshape(expected, shape))
    np.testing.assert_array_equal(
        rows.epoch, np.reshape([[epoch for epoch, *_ in lane] for lane in lanes], shape)
    )
    if plan.remainder == "pad":
        real = np.reshape([[real for *_, real in lane] for lane in lanes], shape)
        np.testing.assert_array_equal(rows.valid, real)
    else:
        assert rows.valid is None


def assert_as_by_hand(rows_for: Any, plan: Plan, epoch: int, offset: int, steps: int) -> None:
    rows, words = rows_for(plan, make_words(KEY, epoch, offset), steps)
    lanes, end = walk(epoch, offset, steps, plan.length, plan.batch, plan.remainder)
    assert_rows(rows, lanes, plan)
    np.testing.assert_array_equal(words, make_words(KEY, *end))


def in_numpy(plan: Plan, words: Any, steps: int) -> Any:
    return plan.rows_for(words, steps)


@given(st.data())
def test_rows_in_numpy_are_those_of_a_walk_by_hand(data: st.DataObject) -> None:
    rule = data.draw(st.sampled_from(RULES))
    n = data.draw(st.integers(1, 30))
    lanes = data.draw(st.sampled_from([(1,), (3,), (8,), (40,), (2, 3), (3, 1, 4)]))
    if rule == "drop" and n < np.prod(lanes):
        n += int(np.prod(lanes))
    plan = Plan(order_of(data.draw(st.sampled_from(ORDERINGS)), n), n, lanes, rule)
    epoch = data.draw(st.integers(0, 4) | st.integers(LAST_EPOCH - 2, LAST_EPOCH))
    steps = data.draw(st.integers(1, 7))
    assert_as_by_hand(in_numpy, plan, epoch, data.draw(st.integers(0, n - 1)), steps)


PLANS = [
    (10, (4,), "wrap", "shuffle"),
    (10, (4,), "pad", "shuffle"),
    (10, (4,), "drop", "shuffle"),
    (5, (2, 3), "wrap", "indices"),
    (3, (7,), "pad", "sequential"),
    (7, (), "wrap", "shuffle"),
    (1, (2,), "wrap", "shuffle"),
]


@pytest.mark.parametrize(("n", "lanes", "rule", "ordering"), PLANS)
def test_rows_in_jax_are_those_of_a_walk_by_hand(
    n: int, lanes: tuple[int, ...], rule: Remainder, ordering: str
) -> None:
    plan = Plan(order_of(ordering, n), n, lanes, rule)
    compiled = jax.jit(partial(plan.rows_for, steps=4))

    @settings(max_examples=20)
    @given(st.integers(0, 9) | st.integers(LAST_EPOCH - 1, LAST_EPOCH), st.integers(0, n - 1))
    def holds(epoch: int, offset: int) -> None:
        assert_as_by_hand(lambda _, words, steps: compiled(words), plan, epoch, offset, 4)

    holds()


@pytest.mark.parametrize("rule", RULES)
def test_no_steps_have_no_rows_and_change_nothing(rule: Remainder) -> None:
    plan = Plan(order_of("shuffle", 5), 5, (5,), rule)
    for words in (make_words(KEY, 2, 0), jnp.asarray(make_words(KEY, 2, 0))):
        rows, after = plan.rows_for(words, 0)
        assert rows.index.shape == (0, 5)
        np.testing.assert_array_equal(after, words)


# Element keys


def test_an_element_has_one_key_whatever_the_shape_of_the_lanes() -> None:
    plan = Plan(order_of("shuffle", 12), 12, (12,), "wrap")
    rows, _ = plan.rows_for(jnp.asarray(make_words(KEY, 1, 0)), 1)
    flat = rows[0].element_keys(0)
    np.testing.assert_array_equal(
        jax.random.key_data(rows.reshape(3, 4).element_keys(0)).reshape(12, 2),
        jax.random.key_data(flat),
    )


def test_elements_epochs_stages_and_pipelines_have_keys_of_their_own() -> None:
    lanes = 50
    index = jnp.arange(lanes, dtype=jnp.int32)
    keys = [
        jax.random.key_data(
            Rows(
                jnp.array(key, jnp.uint32), jnp.full(lanes, epoch, jnp.uint32), index, None
            ).element_keys(stage)
        )
        for key in ((0, 0), (0, 1), (1, 0))
        for epoch in (0, 1, LAST_EPOCH)
        for stage in (0, 1)
    ]
    assert len(np.unique(np.concatenate(keys), axis=0)) == len(keys) * lanes


# The batch size may change under a state


def loader_of(n: int, batch: int, ordering: str, rule: Remainder) -> cereal.DataLoader[Any]:
    source = cereal.RangeSource(n, ordering=ordering)
    return cereal.DataLoader([source, cereal.BatchTransform(batch, pad_last_batch=rule == "pad")])


def assert_each_once(taken: np.ndarray, epochs: list[np.ndarray], n: int) -> None:
    for number in range(len(taken) // n):
        part = taken[number * n : (number + 1) * n]
        np.testing.assert_array_equal(np.sort(part), np.arange(n))
        np.testing.assert_array_equal(part, epochs[number])
    rest = taken[len(taken) // n * n :]
    np.testing.assert_array_equal(rest, epochs[len(taken) // n][: len(rest)])


@pytest.mark.filterwarnings("ignore:.*is larger than the data")
@pytest.mark.parametrize(
    ("n", "ordering", "rule"),
    quickly(
        itertools.product([1, 7], ["sequential", "shuffle"], ["wrap", "pad"]),
        (7, "shuffle", "wrap"),
        (7, "sequential", "pad"),
    ),
)
@settings(max_examples=10)
@given(sizes=st.lists(st.sampled_from([1, 2, 3, 9]), min_size=1, max_size=12))
def test_another_batch_size_at_every_step_loses_and_repeats_nothing(
    sizes: list[int], n: int, ordering: str, rule: Remainder
) -> None:
    state, taken = loader_of(n, 1, ordering, rule).init_state(KEY[1]), []
    whole = loader_of(n, n, ordering, rule)
    for size in sizes:
        batch, state, mask = loader_of(n, size, ordering, rule).next_batch(state)
        taken.append(np.asarray(batch)[np.asarray(mask)])
    elements = np.concatenate(taken)
    epochs = [np.asarray(whole.batch_at(KEY[1], e)[0]) for e in range(len(elements) // n + 1)]
    assert_each_once(elements, epochs, n)


@given(
    n=st.integers(1, 60),
    sizes=st.lists(st.integers(1, 100), min_size=1, max_size=20),
    ordering=st.sampled_from(["sequential", "shuffle"]),
    rule=st.sampled_from(["wrap", "pad"]),
)
def test_another_batch_size_at_every_step_of_the_plan_loses_and_repeats_nothing(
    n: int, sizes: list[int], ordering: str, rule: Remainder
) -> None:
    order, words, taken = as_order(ordering, n, "test"), make_words(KEY, 0, 0), []
    for size in sizes:
        rows, words = Plan(order, n, (size,), rule).rows_for(words, 1)
        taken.append(rows.index[0] if rows.valid is None else rows.index[0][rows.valid[0]])
    elements = np.concatenate(taken)
    epochs = [indices_of(order, epoch, n) for epoch in range(len(elements) // n + 1)]
    assert_each_once(elements, epochs, n)


# Far away


@pytest.mark.parametrize("batch", [1, 1_000, 4_096])
@pytest.mark.parametrize("n", [2**31 - 1, 10**9])
def test_the_last_positions_of_the_longest_epochs_and_the_wrap_after_them(
    n: int, batch: int
) -> None:
    for ordering in ("sequential", "shuffle"):
        plan = Plan(as_order(ordering, n, "test"), n, (batch,), "wrap")
        words = make_words(KEY, LAST_EPOCH, n - batch - batch // 2)
        exact, end = plan.rows_for(words, 3)
        rows, after = jax.jit(plan.rows_for, static_argnums=1)(jnp.asarray(words), 3)
        np.testing.assert_array_equal(rows.index, exact.index)
        np.testing.assert_array_equal(rows.epoch, exact.epoch)
        np.testing.assert_array_equal(after, end)
        total = n - batch - batch // 2 + 3 * batch
        np.testing.assert_array_equal(after, make_words(KEY, LAST_EPOCH + total // n, total % n))
        assert exact.index.min() >= 0
        assert exact.index.max() < n


@pytest.mark.parametrize("rule", ["wrap", "pad"])
def test_ten_epochs_of_a_thousand_million_are_exact_with_64_bit_types_off(rule: Remainder) -> None:
    assert not jax.config.read("jax_enable_x64")
    n, batch = 10**9, 3_000
    loader = loader_of(n, batch, "sequential", rule)
    per_epoch = -(-n // batch)
    for step in (0, per_epoch - 1, 5 * per_epoch - 1, 5 * per_epoch, 10 * per_epoch - 1):
        elements = step * batch if rule == "wrap" else step % per_epoch * batch
        epoch = elements // n if rule == "wrap" else step // per_epoch
        state = loader.state_at(0, step)
        assert (int(state.epoch), int(state.offset)) == (epoch, elements % n)
        values, after, mask = loader.next_batch(state)
        expected = (elements + np.arange(batch)) % n
        np.testing.assert_array_equal(values, expected)
        assert int(mask.sum()) == (batch if rule == "wrap" else min(batch, n - elements % n))
        np.testing.assert_array_equal(after.words, loader.state_at(0, step + 1).words)


def test_the_epoch_after_the_last_that_fits_its_word_is_epoch_zero() -> None:
    loader = loader_of(5, 4, "shuffle", "wrap")
    state = loader.init_state(1)
    last = cereal.PipelineState(state.words.at[2].set(jnp.uint32(LAST_EPOCH)), state.fingerprint)
    _, after, _ = loader.next_batch(last)
    batch, after, _ = loader.next_batch(after)
    assert (int(after.epoch), int(after.offset)) == (0, 3)
    np.testing.assert_array_equal(batch[1:], loader.batch_at(1, 0)[0][:3])
