"""Bootstrap and WeightedSampling: how often elements are drawn, in NumPy and JAX alike."""

from __future__ import annotations

import hashlib
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import cereal
from cereal import Bootstrap, WeightedSampling
from cereal.core.ordering import Order
from cereal.core.position import Remainder
from cereal.core.rows import Plan
from cereal.core.search import count_up_to
from cereal.core.state import make_words

pytestmark = pytest.mark.optimized

KEY = (0x01234567, 0x89ABCDEF)
LAST_EPOCH = 2**32 - 1
LIMIT = 4.9  # two-sided p = 1e-6

without = partial(WeightedSampling, replacement=False)


def draws(order: Order, n: int, epochs: int = 1, key: tuple[int, int] = KEY) -> np.ndarray:
    """[epochs, draws]: the elements that the first epochs draw, in NumPy."""
    column, position = np.indices((epochs, order.length(n)))
    pair = (np.uint32(key[0]), np.uint32(key[1]))
    return np.asarray(order.index(pair, np.arange(epochs, dtype=np.uint32), column, position, n))


def deviate_of_chi_square(counts: np.ndarray, chances: Any) -> float:
    """By Wilson and Hilferty; cells that cannot be are empty, and not counted."""
    chances = np.asarray(chances, np.float64)
    assert not counts[chances == 0].any()
    counts, chances = counts[chances > 0], chances[chances > 0] / chances.sum()
    expected, freedom = counts.sum() * chances, len(counts) - 1
    value = float(((counts - expected) ** 2 / expected).sum())
    spread = 2 / (9 * freedom)
    return ((value / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


def assert_numpy_is_jax(order: Order, n: int, lanes: tuple[int, ...], rule: Remainder) -> None:
    length, steps = order.length(n), 5
    plan = Plan(order, length, lanes, rule)
    compiled = jax.jit(partial(plan.rows_for, steps=steps))
    for epoch, offset in [(0, 0), (7, length - 1), (LAST_EPOCH, length // 2)]:
        words = make_words(KEY, epoch, offset)
        exact, traced = plan.rows_for(words, steps), compiled(jnp.asarray(words))
        assert jax.tree.structure(exact) == jax.tree.structure(traced)
        for x, y in zip(jax.tree.leaves(exact), jax.tree.leaves(traced), strict=True):
            np.testing.assert_array_equal(x, y)


# Bootstrap


def test_a_bootstrap_draws_all_elements_equally_often() -> None:
    counts = np.bincount(draws(Bootstrap(), 37, 3_000).ravel(), minlength=37)
    assert abs(deviate_of_chi_square(counts, np.ones(37))) < LIMIT


def test_draws_of_a_bootstrap_are_independent() -> None:
    found = draws(Bootstrap(), 6, 20_001)
    for one, other in [
        (found[:, 0], found[:, 1]),  # two positions
        (found[:-1, 3], found[1:, 3]),  # an epoch and the next
        (found[:, 5], draws(Bootstrap(), 6, 20_001, (KEY[0], KEY[1] + 1))[:, 5]),  # two keys
    ]:
        counts = np.bincount(6 * one + other, minlength=36)
        assert abs(deviate_of_chi_square(counts, np.ones(36))) < LIMIT


def test_a_shuffle_would_be_seen_not_to_be_a_bootstrap() -> None:
    rng = np.random.default_rng(0)
    found = np.stack([rng.permutation(6) for _ in range(20_000)])
    counts = np.bincount(6 * found[:, 0] + found[:, 1], minlength=36)
    assert deviate_of_chi_square(counts, np.ones(36)) > LIMIT


def test_a_bootstrap_has_63_percent_of_the_elements() -> None:
    n = 1000
    distinct = np.array([len(np.unique(epoch)) / n for epoch in draws(Bootstrap(), n, 200)])
    exact = 1 - (1 - 1 / n) ** n  # 0.6323
    assert abs(distinct.mean() - exact) < LIMIT * distinct.std() / math.sqrt(200)
    assert abs(distinct.mean() - 0.632) < 0.003


def test_a_bootstrap_of_one_element_is_that_element() -> None:
    np.testing.assert_array_equal(draws(Bootstrap(), 1, 5), np.zeros((5, 1)))


@pytest.mark.parametrize("n", [2**16 + 1, 2**31 - 1])
def test_a_bootstrap_of_long_data_reaches_all_of_it(n: int) -> None:
    position = np.arange(100_000)
    epochs, column = np.zeros(1, np.uint32), np.zeros(position.shape, np.int64)
    pair = (np.uint32(KEY[0]), np.uint32(KEY[1]))
    found = np.asarray(Bootstrap().index(pair, epochs, column, position, n)).astype(np.int64)
    assert found.max() < n
    counts = np.bincount(found * 50 // n, minlength=50)
    assert abs(deviate_of_chi_square(counts, np.ones(50))) < LIMIT


# With replacement

WEIGHTS = {
    "several": [1, 2, 3, 4],
    "equal": np.ones(30),
    "zeros at both ends and between": [0, 0, 3, 0, 1.5, 0.5, 0, 0],
    "over six orders of magnitude": np.geomspace(1e-6, 1, 80),
    "small": [1e-300, 3e-300],
    "large integers": [2**62, 2**60],
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_elements_are_drawn_in_proportion_to_their_weights(name: str) -> None:
    weights = np.asarray(WEIGHTS[name], np.float64)
    order = WeightedSampling(WEIGHTS[name], length=40_000)
    counts = np.bincount(draws(order, len(weights), 3).ravel(), minlength=len(weights))
    seen = weights / weights.sum() > 1e-4  # chi-square wants counts that are not small
    assert abs(deviate_of_chi_square(counts[seen], weights[seen])) < LIMIT
    assert abs(counts[~seen].sum() - 120_000 * weights[~seen].sum() / weights.sum()) < 40


def test_other_weights_would_be_seen() -> None:
    counts = np.bincount(draws(WeightedSampling([1, 2, 3, 4], length=40_000), 4, 3).ravel())
    assert deviate_of_chi_square(counts, [1, 2, 3, 4.4]) > LIMIT


@settings(max_examples=100)
@given(st.lists(st.sampled_from([0, 0, 1e-12, 0.1, 1, 7, 1e9]), min_size=1, max_size=9))
def test_of_all_words_each_element_has_its_share_and_zero_weights_none(
    weights: list[float],
) -> None:
    assume(any(weights))
    table = np.asarray(WeightedSampling(weights).table).astype(np.int64)
    ends = np.r_[table, 2**32]
    assert (np.diff(np.r_[0, ends]) >= 0).all()
    shares = np.zeros(len(weights))
    shares[: len(ends)] = np.diff(np.r_[0, ends])
    exact = np.array(weights) / sum(weights) * 2**32
    assert np.abs(shares - exact).max() < 1.01
    edges = np.r_[0, table, np.maximum(table - 1, 0), 2**32 - 1].astype(np.uint32)
    assert (np.array(weights)[count_up_to(table.astype(np.uint32), edges)] > 0).all()


@pytest.mark.parametrize("weights", [[5], [0.1, 0], [0, 3], [0, 0, 1e-9, 0], np.eye(100)[99]])
@pytest.mark.parametrize("replacement", [True, False])
def test_a_single_weight_is_always_drawn(weights: Any, replacement: bool) -> None:
    order = WeightedSampling(weights, replacement=replacement)
    only = int(np.flatnonzero(weights)[0])
    assert (draws(order, len(weights), 20) == only).all()


@pytest.mark.parametrize("weights", [[5], [0, 3]])
def test_a_single_weight_is_always_drawn_in_jax(weights: list[float]) -> None:
    assert_numpy_is_jax(WeightedSampling(weights), len(weights), (3,), "wrap")
    assert_numpy_is_jax(without(weights), len(weights), (3,), "wrap")


@pytest.mark.parametrize("make", [WeightedSampling, without])
def test_weights_may_be_of_any_kind_of_number(make: Any) -> None:
    kinds = [[1, 0, 3], (1.0, 0.0, 3.0), np.array([1, 0, 3], np.uint8), jnp.array([1, 0, 3])]
    kinds += [jnp.array([1, 0, 3], jnp.bfloat16), np.array([1, 0, 3], np.float16), range(1, 4)]
    orders = [make(kind) for kind in kinds]
    assert len({order.name for order in orders[:-1]}) == 1
    assert orders[-1].name != orders[0].name
    for order in orders[1:-1]:
        np.testing.assert_array_equal(draws(order, 3, 9), draws(orders[0], 3, 9))


@pytest.mark.parametrize("make", [WeightedSampling, without])
def test_weights_near_the_largest_number_are_weights(make: Any) -> None:
    large, same = make([1e308, 1e308, 5e307]), make([2, 2, 1])
    np.testing.assert_array_equal(draws(large, 3, 50), draws(same, 3, 50))


@pytest.mark.parametrize("length", [1, 3, 500])
def test_an_epoch_has_as_many_draws_as_asked_for(length: int) -> None:
    order = WeightedSampling([1, 0, 2], length=np.int64(length))  # type: ignore[arg-type]
    source = cereal.RangeSource(3, ordering=order)
    assert order.length(3) == source.traits.length == length
    assert cereal.DataLoader([source, cereal.BatchTransform(2)]).steps_per_epoch == -(-length // 2)
    assert draws(order, 3, 2).shape == (2, length)


# Without replacement


def test_each_element_that_has_a_weight_is_drawn_once() -> None:
    order = without([0, 3, 1, 0, 1e-5, 2, 0])
    assert order.length(7) == 4
    np.testing.assert_array_equal(np.sort(draws(order, 7, 300)), np.tile([1, 2, 4, 5], (300, 1)))


def test_a_shorter_epoch_is_the_beginning_of_a_longer_one() -> None:
    weights = np.arange(12)
    whole = draws(without(weights), 12, 30)
    assert whole.shape == (30, 11)
    np.testing.assert_array_equal(draws(without(weights, length=4), 12, 30), whole[:, :4])
    np.testing.assert_array_equal(draws(without(weights, length=11), 12, 30), whole)


def test_first_and_second_draws_have_their_exact_chances() -> None:
    weights = np.array([0, 1, 2, 3, 4, 0])
    share = weights / weights.sum()
    found = draws(without(weights), 6, 40_000)
    first, second = (np.bincount(found[:, k], minlength=6) for k in (0, 1))
    assert abs(deviate_of_chi_square(first, share)) < LIMIT
    odds = [sum(share[i] * share[j] / (1 - share[i]) for i in range(6) if i != j) for j in range(6)]
    odds = np.where(weights > 0, odds, 0)
    assert abs(deviate_of_chi_square(second, odds)) < LIMIT
    assert deviate_of_chi_square(second, share) > LIMIT


@pytest.mark.parametrize(
    "weights",
    [
        [1, 0, 2, 0, 0, 3],
        [1, -0.0, 2],  # -log(1.0) is such a zero
        [0, 1e-31, 1],
        [0, 1e-45, 1],
        [0, 5e-324, 1e308],
    ],
)
def test_elements_of_weight_zero_are_never_drawn(weights: list[float]) -> None:
    found = draws(without(weights), len(weights), 50)
    assert set(found.ravel().tolist()) == set(np.flatnonzero(weights).tolist())


def test_small_weights_keep_their_odds() -> None:
    found = draws(without([1e-30, 4e-30, 1]), 3, 5_000)
    assert (found[:, 0] == 2).all()
    counts = np.bincount(found[:, 1], minlength=2)
    assert abs(deviate_of_chi_square(counts, [1, 4])) < LIMIT


def test_weights_below_the_range_of_float32_count_as_its_least() -> None:
    found = draws(without([1e-45, 0, 4e-45, 1]), 4, 5_000)
    assert (found[:, 0] == 3).all()
    counts = np.bincount(found[:, 1], minlength=3)
    assert counts[1] == 0
    assert abs(deviate_of_chi_square(counts[[0, 2]], [1, 1])) < LIMIT


# Epochs, keys, NumPy and JAX

ORDERS: dict[str, Order] = {
    "bootstrap": Bootstrap(),
    "with": WeightedSampling(np.arange(13)),
    "with, long": WeightedSampling(np.arange(13)[::-1], length=40),
    "without": without(np.arange(13)),
    "without, short": without(np.arange(13), length=5),
}


@pytest.mark.parametrize("name", ORDERS)
def test_every_epoch_and_every_key_has_draws_of_its_own(name: str) -> None:
    keys = [(0, 0), (0, 1), (1, 0), KEY]
    found = np.concatenate([draws(ORDERS[name], 13, 4, key) for key in keys])
    assert len(np.unique(found, axis=0)) == 16
    np.testing.assert_array_equal(draws(ORDERS[name], 13, 4), found[-4:])


@pytest.mark.parametrize(
    ("name", "rule"),
    [*zip(ORDERS, ["wrap", "pad", "drop", "wrap", "pad"], strict=True), ("without", "drop")],
)
@pytest.mark.usefixtures("strict_jax")
def test_jax_and_numpy_agree_across_epochs(name: str, rule: Remainder) -> None:
    assert_numpy_is_jax(ORDERS[name], 13, {"wrap": (7,), "pad": (2, 2), "drop": ()}[rule], rule)


@pytest.mark.parametrize("make", [WeightedSampling, without])
def test_jax_and_numpy_agree_on_a_thousand_weights_over_six_orders(make: Any) -> None:
    weights = np.random.default_rng(0).permutation(np.geomspace(1e-6, 1, 1000))
    assert_numpy_is_jax(make(weights), 1000, (700,), "wrap")


def test_the_draws_of_this_version() -> None:
    # Runs are restored by the order: to change this digest is a breaking change.
    digest = hashlib.sha256()
    for order in ORDERS.values():
        digest.update(draws(order, 13, 20).astype("<i8").tobytes())
    assert digest.hexdigest()[:16] == "d3876a1114338a50"


# Randomness of the elements


def tag(element: Any, key: Any) -> Any:
    return {"index": element, "tag": jax.random.bits(key)}


def tagged(order: Order, after: bool = False) -> cereal.DataLoader[Any]:
    stages = [cereal.RandomMapTransform(tag), cereal.BatchTransform(40)]
    source = cereal.RangeSource(8, ordering=order)
    return cereal.DataLoader([source, *(stages[::-1] if after else stages)])


@pytest.mark.parametrize("order", [Bootstrap(), WeightedSampling(np.arange(8), length=30)])
def test_two_draws_of_an_element_are_augmented_differently(order: Order) -> None:
    batch, _ = tagged(order).batch_at(0, 0)  # an epoch and more
    assert len(np.unique(batch["index"][: order.length(8)])) < order.length(8)
    assert len(np.unique(batch["tag"])) == 40
    after, _ = tagged(order, after=True).batch_at(0, 0)
    np.testing.assert_array_equal(after["tag"], batch["tag"])


def test_one_key_per_member_gives_each_member_a_bootstrap() -> None:
    loader = cereal.DataLoader(
        [cereal.RangeSource(20, ordering=Bootstrap()), cereal.BatchTransform(20)]
    )
    keys = jax.random.split(jax.random.key(0), 6)
    batches, _, _ = jax.vmap(loader.next_batch)(jax.vmap(loader.init_state)(keys))
    assert len(np.unique(batches, axis=0)) == 6
    for member in range(6):
        alone = loader.batch_at(keys[member], 0)[0]
        np.testing.assert_array_equal(batches[member], alone)


# What is refused


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, -2, 3], "the weight of element 1 is -2.0; weights are finite and not negative"),
        ([1, 2, np.nan], r"the weight of element 2 is nan; .*\(0 leaves an element out\)"),
        ([np.inf, 1], "the weight of element 0 is inf; weights are finite"),
        ([0, 0.0], "all `weights` are zero; raise at least one of them"),
        ([], r"must have one axis, one weight per element, got shape \(0,\)"),
        (3.0, r"must have one axis, one weight per element, got shape \(\)"),
        (np.ones((2, 3)), r"must have one axis, one weight per element, got shape \(2, 3\)"),
        (None, "`weights` must"),
        (["a", "b"], r"`weights` must be numbers, got \['a', 'b'\]"),
        (["1", "2"], r"`weights` must be numbers, got \['1', '2'\]"),
        ([[1, 2], [3]], "`weights` must be numbers, got"),
        (np.array([1, 2 + 1j]), "`weights` must be numbers, got"),
        ({"a": 1}, "`weights` must be numbers, got {'a': 1}"),
    ],
)
@pytest.mark.parametrize("make", [WeightedSampling, without])
def test_bad_weights_are_refused(make: Any, weights: Any, message: str) -> None:
    with pytest.raises(cereal.PipelineError, match=r"^WeightedSampling: .*" + message):
        make(weights)


@pytest.mark.parametrize("length", [0, -3, 2.0, True, "5", np.float32(1)])
@pytest.mark.parametrize("make", [WeightedSampling, without])
def test_bad_lengths_are_refused(make: Any, length: Any) -> None:
    message = r"^WeightedSampling: `length` must be an integer from 1 to .*, got "
    with pytest.raises(cereal.PipelineError, match=message):
        make([1, 2, 3], length=length)


def test_more_draws_than_elements_that_have_a_weight_are_refused_without_replacement() -> None:
    message = "`length` must be .* from 1 to 2, got 3; no more can be drawn without"
    with pytest.raises(cereal.PipelineError, match=message):
        without([1, 0, 3], length=3)


@pytest.mark.parametrize("length", [2**31, 2**40])
def test_more_draws_than_compiled_code_can_count_are_refused(length: int) -> None:
    with pytest.raises(cereal.PipelineError, match="`length`"):
        cereal.RangeSource(2, ordering=WeightedSampling([1, 2], length=length)).init_state(0)


def test_weights_for_another_number_of_elements_are_refused() -> None:
    message = "^RangeSource: its `ordering` has 3 weights, but there are 4 elements; give one for"
    for order in (WeightedSampling([1, 2, 3]), without([1, 2, 3])):
        with pytest.raises(cereal.PipelineError, match=message):
            cereal.RangeSource(4, ordering=order)


def test_traced_weights_are_refused() -> None:
    with pytest.raises(cereal.PipelineError, match=r"`weights` are traced; build .* outside"):
        jax.jit(lambda weights: WeightedSampling(weights).table)(jnp.ones(3))


@pytest.mark.parametrize("order", [Bootstrap, WeightedSampling])
def test_the_class_in_place_of_an_order_is_refused(order: Any) -> None:
    with pytest.raises(cereal.PipelineError, match=rf"class {order.__name__}, not an instance"):
        cereal.RangeSource(4, ordering=order)
