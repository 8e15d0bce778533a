"""ClassBalanced: every class in every turn, every element of a class before any comes again."""

from __future__ import annotations

import hashlib
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.slowly import slowly

import cereal
from cereal import ClassBalanced
from cereal.order.ordering import Visit
from cereal.order.position import Remainder
from cereal.order.rows import Plan
from cereal.pipeline.state import make_words

pytestmark = pytest.mark.optimized

KEY = (0x01234567, 0x89ABCDEF)
LAST_EPOCH = 2**32 - 1
LIMIT = 4.9  # two-sided p = 1e-6
LABELS = np.array([5, -3, 5, 5, 900, -3, 5, 5, 5, 900, 5, -3, 5])  # 8, 3 and 2 of them

labels_of_all_kinds = st.lists(st.sampled_from([-7, 0, 1, 2, 1000]), min_size=1, max_size=25)


def visits(
    labels: Any,
    epochs: Any,
    *,
    length: int | None = None,
    key: tuple[int, int] = KEY,
) -> Visit:
    """[epochs, draws]: what these epochs visit, in NumPy."""
    order = ClassBalanced(labels, length=length)
    column, position = np.indices((len(epochs), order.length(len(labels))))
    pair = (np.uint32(key[0]), np.uint32(key[1]))
    return order.visit(pair, np.asarray(epochs, np.uint32), column, position, len(labels))


def deviate_of_cells(codes: np.ndarray, cells: int) -> float:
    """Of a chi-square over equally likely cells, by Wilson and Hilferty."""
    _, counts = np.unique(codes, return_counts=True)
    assert len(counts) <= cells
    freedom, spread = cells - 1, 2 / (9 * (cells - 1))
    value = float((counts.astype(float) ** 2).sum()) * cells / codes.size - codes.size
    return ((value / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


def assert_balanced(labels: np.ndarray, epochs: list[int], found: Visit) -> None:
    """Each turn has each class; each class is walked through in whole shuffled epochs."""
    classes = np.unique(labels)
    turns = labels[found.index].reshape(-1, len(classes))
    np.testing.assert_array_equal(np.sort(turns), np.tile(classes, (len(turns), 1)))
    per_epoch = found.index.shape[1] // len(classes)
    for each in classes:
        here = labels[found.index] == each
        index, own = found.index[here], np.asarray(found.epoch)[here]
        members = np.flatnonzero(labels == each)
        came_before = [epoch * per_epoch + turn for epoch in epochs for turn in range(per_epoch)]
        passes = np.array([count // len(members) for count in came_before])
        np.testing.assert_array_equal(own, passes & LAST_EPOCH)
        for one in np.unique(passes):
            seen = np.sort(index[passes == one])
            assert len(np.unique(seen)) == len(seen), "an element comes again too early"
            if len(seen) == len(members):
                np.testing.assert_array_equal(seen, members)


# Turns and passes


def test_every_turn_has_every_class_and_every_pass_every_element_for_thousands_of_draws() -> None:
    epochs = list(range(400))
    found = visits(LABELS, epochs)
    assert found.index.size == 6_000
    assert_balanced(LABELS, epochs, found)


@settings(max_examples=80)
@given(
    labels=labels_of_all_kinds,
    length=st.none() | st.integers(1, 60),
    first=st.sampled_from([0, 1, 1_000_003, 2**31, LAST_EPOCH - 11]),
)
def test_any_labels_are_balanced_in_any_epochs(
    labels: list[int], length: int | None, first: int
) -> None:
    epochs = list(range(first, first + 12))
    assert_balanced(np.array(labels), epochs, visits(labels, epochs, length=length))


def test_a_thousand_classes_are_balanced() -> None:
    labels = np.random.default_rng(0).integers(0, 1000, 3000) * 7
    epochs = [0, 1, 2]
    assert_balanced(labels, epochs, visits(labels, epochs))


def test_an_order_that_repeats_an_element_early_would_be_seen() -> None:
    found = visits(LABELS, [0, 1])
    wrong = np.where(found.index == 2, 0, found.index)
    with pytest.raises(AssertionError, match="an element comes again too early"):
        assert_balanced(LABELS, [0, 1], found._replace(index=wrong))


def test_a_single_class_is_walked_through_in_shuffled_epochs() -> None:
    found = visits([4] * 9, range(5)).index
    np.testing.assert_array_equal(np.sort(found), np.tile(np.arange(9), (5, 1)))
    assert len(np.unique(found, axis=0)) == 5


def test_classes_of_one_element_each_are_shuffled() -> None:
    found = visits([3, 1, 2, 9, 7, 5], range(5)).index
    np.testing.assert_array_equal(np.sort(found), np.tile(np.arange(6), (5, 1)))
    assert len(np.unique(found, axis=0)) == 5


@pytest.mark.parametrize(
    ("length", "draws"), [(None, 15), (1, 3), (3, 3), (4, 6), (13, 15), (100, 102)]
)
def test_an_epoch_has_as_many_draws_as_asked_for_in_whole_turns(
    length: int | None, draws: int
) -> None:
    order = ClassBalanced(LABELS, length=length)
    source = cereal.RangeSource(13, ordering=order)
    assert order.length(13) == source.traits.length == draws
    assert visits(LABELS, [0], length=length).index.shape == (1, draws)
    loader = cereal.DataLoader([source, cereal.BatchTransform(3)])
    assert loader.steps_per_epoch == draws // 3


KINDS = [np.int8, np.uint16, np.int64, list, tuple, jnp.asarray]


@pytest.mark.parametrize("kind", KINDS)
def test_labels_may_be_of_any_integer_type(kind: Any) -> None:
    found = visits(kind(np.array([7, 7, 2])), range(4)).index
    np.testing.assert_array_equal(found, visits([7, 7, 2], range(4)).index)


def test_labels_have_one_name_whatever_their_type() -> None:
    # A state names the labels: read as another type, they are still the same labels.
    names = {ClassBalanced(kind(np.array([7, 7, 2]))).name for kind in KINDS}
    assert len(names) == 1
    assert ClassBalanced([7, 2, 7]).name not in names


# Chance


def test_classes_of_a_turn_come_in_any_sequence() -> None:
    turns = LABELS[visits(LABELS, range(4_000)).index].reshape(-1, 3)
    assert abs(deviate_of_cells(turns @ [1, 10_000, 10_000**2], 6)) < LIMIT
    pairs = turns[: len(turns) // 2 * 2].reshape(-1, 6)  # a turn tells nothing of the next
    assert abs(deviate_of_cells(pairs @ 1009 ** np.arange(6), 36)) < LIMIT


def test_elements_of_a_class_come_in_any_sequence_of_their_own() -> None:
    labels = [0, 0, 0, 1, 1, 1]
    index = visits(labels, range(30_000)).index
    sequences = [index[index // 3 == each].reshape(-1, 3) % 3 for each in (0, 1)]
    codes = [sequence @ [1, 3, 9] for sequence in sequences]
    for code in codes:
        assert abs(deviate_of_cells(code, 6)) < LIMIT
        assert abs(deviate_of_cells(27 * code[:-1:2] + code[1::2], 36)) < LIMIT
    assert abs(deviate_of_cells(27 * codes[0] + codes[1], 36)) < LIMIT


def test_classes_in_a_fixed_sequence_would_be_seen() -> None:
    assert deviate_of_cells(np.tile([0, 1], 5_000), 6) > LIMIT


def test_every_epoch_and_every_key_has_an_order_of_its_own() -> None:
    keys = [(0, 0), (0, 1), (1, 0), KEY]
    found = np.concatenate([visits(LABELS, range(4), key=key).index for key in keys])
    assert len(np.unique(found, axis=0)) == 16
    np.testing.assert_array_equal(visits(LABELS, range(4)).index, found[-4:])


def test_the_orders_of_this_version() -> None:
    # Runs are restored by the order: to change this digest is a breaking change.
    digest = hashlib.sha256()
    for length in (None, 4, 100):
        found = visits(LABELS, [0, 1, 2, LAST_EPOCH], length=length)
        for words in (found.index, found.epoch):
            digest.update(np.asarray(words).astype("<i8").tobytes())
    assert digest.hexdigest()[:16] == "de377bbc8a9b3ced"


# Randomness of the elements


def tag(element: Any, key: Any) -> Any:
    return {"index": element, "tag": jax.random.bits(key)}


def test_every_visit_to_an_element_is_augmented_differently() -> None:
    source = cereal.RangeSource(13, ordering=ClassBalanced(LABELS))
    stages = [cereal.RandomMapTransform(tag), cereal.BatchTransform(200)]
    batch, _ = cereal.DataLoader([source, *stages]).batch_at(0, 0)
    assert np.bincount(batch["index"]).max() > 30
    assert len(np.unique(batch["tag"])) == 200
    after, _ = cereal.DataLoader([source, *stages[::-1]]).batch_at(0, 0)
    np.testing.assert_array_equal(after["tag"], batch["tag"])


# NumPy and JAX

PLANS: list[tuple[Any, int | None, tuple[int, ...], Remainder]] = [
    (LABELS, 5, (4,), "pad"),
    (LABELS, 50, (2, 3), "drop"),
    (LABELS, None, (7,), "wrap"),
    ([4] * 9, None, (), "wrap"),
    ([3, 1, 2, 9, 7], 1, (12,), "wrap"),
    (np.arange(300) % 97, None, (100,), "wrap"),
]


@pytest.mark.parametrize(
    ("labels", "length", "lanes", "rule"),
    [*PLANS[:2], *(slowly(*plan) for plan in PLANS[2:])],
)
@pytest.mark.usefixtures("strict_jax")
def test_jax_and_numpy_agree_across_epochs(
    labels: Any, length: int | None, lanes: tuple[int, ...], rule: Remainder
) -> None:
    order, steps = ClassBalanced(labels, length=length), 5
    plan = Plan(order, order.length(len(labels)), lanes, rule)
    compiled = jax.jit(partial(plan.rows_for, steps=steps))
    for epoch in (0, 7, 2**31 - 1, 2**31 + 12_345, LAST_EPOCH):
        words = make_words(KEY, epoch, plan.length // 2)
        exact, traced = plan.rows_for(words, steps), compiled(jnp.asarray(words))
        assert jax.tree.structure(exact) == jax.tree.structure(traced)
        for x, y in zip(jax.tree.leaves(exact), jax.tree.leaves(traced), strict=True):
            np.testing.assert_array_equal(x, y)


# What is refused


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            [0.0, 1.0],
            r"must be one axis of integers, one per element, got float64\[2\]; write `lab",
        ),
        (
            [0.0, math.nan],
            r"must be one axis of integers, .*, and label 1 is NaN, no class; leave",
        ),
        (
            np.zeros((2, 3), int),
            r"must be one axis of integers, one per element, got int64\[2, 3\]",
        ),
        (np.array([True, False]), r"must be one axis of integers, one per element, got bool\[2\]"),
        (
            ["cat", "dog"],
            r"must be one axis of integers, one per element, got <U3\[2\]; write `np.un",
        ),
        ([], r"must be one axis of integers, one per element, got float64\[0\]"),
        (7, r"must be one axis of integers, one per element, got int64\[\]"),
        (None, "must be one axis of integers, one per element"),
        ([[0], [1, 2]], "must be integers, got"),
    ],
)
def test_bad_labels_are_refused(labels: Any, message: str) -> None:
    with pytest.raises(cereal.PipelineError, match=r"^ClassBalanced: `labels` " + message):
        ClassBalanced(labels)


@pytest.mark.parametrize("length", [0, -3, 2.0, True, "5", 2**31, 2**40])
def test_bad_lengths_are_refused(length: Any) -> None:
    with pytest.raises(cereal.PipelineError, match=r"^ClassBalanced: `length` "):
        ClassBalanced(LABELS, length=length)


def test_labels_for_another_number_of_elements_are_refused() -> None:
    message = "^ArraySampleSource: its `ordering` has 13 labels, but there are 4 elements; give one"
    with pytest.raises(cereal.PipelineError, match=message):
        cereal.ArraySampleSource(np.arange(4), ordering=ClassBalanced(LABELS))


def test_traced_labels_are_refused() -> None:
    with pytest.raises(cereal.PipelineError, match=r"`labels` are traced; build .* outside"):
        jax.jit(lambda labels: ClassBalanced(labels).members)(jnp.array([0, 1]))


def test_the_class_in_place_of_an_order_is_refused() -> None:
    with pytest.raises(cereal.PipelineError, match="class ClassBalanced, not an instance"):
        cereal.RangeSource(4, ordering=ClassBalanced)
