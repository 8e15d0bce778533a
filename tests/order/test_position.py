from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cereal.order.position import Remainder, epochs_touched, starts, steps_in, steps_left

pytestmark = pytest.mark.optimized

RULES: tuple[Remainder, ...] = ("wrap", "pad", "drop")
MOST = 2**31 - 1
LAST_EPOCH = 2**32 - 1

Position = tuple[int, int]


def walk(epoch: int, offset: int, steps: int, n: int, batch: int, rule: Remainder) -> list[Any]:
    """Epochs by hand: the start of each step and the epochs of its real elements."""
    walked: list[tuple[Position, list[int]]] = []
    for _ in range(steps + 1):
        if offset == n or (rule == "drop" and n - offset < batch):
            epoch, offset = epoch + 1, 0
        start, epochs = (epoch, offset), []
        for _ in range(batch):
            if offset == n and rule == "wrap":
                epoch, offset = epoch + 1, 0
            if offset < n:
                epochs.append(epoch)
                offset += 1
        walked.append((start, epochs))
    return walked


@st.composite
def walks(draw: st.DrawFn) -> tuple[int, int, int, dict[str, Any]]:
    rule = draw(st.sampled_from(RULES))
    n = draw(st.integers(1, 40))
    batch = draw(st.integers(1, n if rule == "drop" else 60))
    epoch = draw(st.integers(0, 5) | st.integers(LAST_EPOCH - 3, LAST_EPOCH))
    arithmetic = {"n": n, "batch": batch, "remainder": rule}
    return epoch, draw(st.integers(0, n - 1)), draw(st.integers(0, 9)), arithmetic


@given(walks())
def test_starts_are_those_of_a_walk_by_hand(walked: Any) -> None:
    epoch, offset, steps, arithmetic = walked
    by_hand = walk(epoch, offset, steps, *arithmetic.values())
    for step, (start, _) in enumerate(by_hand):
        assert tuple(map(int, starts(np, epoch, offset, step, **arithmetic))) == start


@given(walks())
def test_starts_of_many_steps_are_the_same_in_numpy_and_in_jax(walked: Any) -> None:
    epoch, offset, _, arithmetic = walked
    by_hand = [start for start, _ in walk(epoch, offset, 9, *arithmetic.values())]
    wide = starts(np, np.int64(epoch), np.int64(offset), np.arange(10), **arithmetic)
    words = (jnp.uint32(epoch), jnp.uint32(offset), jnp.arange(10, dtype=jnp.uint32))
    narrow = starts(jnp, *words, **arithmetic)
    assert all(array.dtype == jnp.uint32 for array in narrow)
    assert list(zip(*(array.tolist() for array in wide), strict=True)) == by_hand
    wrapped = [(epoch & LAST_EPOCH, offset) for epoch, offset in by_hand]
    assert list(zip(*(array.tolist() for array in narrow), strict=True)) == wrapped


@given(walks(), st.integers(1, 3))
def test_steps_left_counts_the_steps_to_the_end_of_an_epoch(walked: Any, epochs: int) -> None:
    _, offset, _, arithmetic = walked
    by_hand = walk(0, offset, epochs * arithmetic["n"], *arithmetic.values())
    left = sum(epoch < epochs for (epoch, _), _ in by_hand)
    assert steps_left(offset, epochs, **arithmetic) == left


@given(walks())
def test_no_run_of_steps_has_elements_of_more_epochs_than_epochs_touched(walked: Any) -> None:
    epoch, offset, steps, arithmetic = walked
    by_hand = walk(epoch, offset, max(steps, 1), *arithmetic.values())[: max(steps, 1)]
    seen = {epoch for _, epochs in by_hand for epoch in epochs}
    assert max(seen) - by_hand[0][0][0] < epochs_touched(max(steps, 1), **arithmetic)


@given(walks())
def test_some_run_of_steps_has_elements_of_as_many_epochs_as_epochs_touched(walked: Any) -> None:
    _, _, steps, arithmetic = walked
    steps = max(steps, 1)
    most = 0
    for offset in range(arithmetic["n"]):
        by_hand = walk(0, offset, steps, *arithmetic.values())[:steps]
        most = max(most, by_hand[-1][1][-1] - by_hand[0][0][0] + 1)
    assert most == epochs_touched(steps, **arithmetic)


@pytest.mark.parametrize("rule", RULES)
def test_an_epoch_has_its_full_batches_and_unless_dropped_the_rest(rule: Remainder) -> None:
    assert steps_in(10, 5, rule) == 2
    assert steps_in(10, 4, rule) == (2 if rule == "drop" else 3)


@settings(max_examples=200)
@given(
    n=st.integers(MOST - 10_000, MOST) | st.integers(10**6, MOST),
    batch=st.integers(1, 5_000),
    back=st.integers(1, 200_000),
    epoch=st.sampled_from([0, 7, LAST_EPOCH - 1, LAST_EPOCH]),
    rule=st.sampled_from(RULES),
)
def test_words_of_32_bits_are_exact_near_the_ends_of_the_longest_epochs(
    n: int, batch: int, back: int, epoch: int, rule: Remainder
) -> None:
    offset = max(n - back, 0)
    step = np.array([0, 1, 2, 3, 31, 63, 64, 100_000])
    exact = starts(np, epoch, offset, step, n=n, batch=batch, remainder=rule)
    words = (jnp.uint32(epoch), jnp.uint32(offset), jnp.asarray(step, jnp.uint32))
    in_words = starts(jnp, *words, n=n, batch=batch, remainder=rule)
    np.testing.assert_array_equal(in_words[0], exact[0].astype(np.uint32))
    np.testing.assert_array_equal(in_words[1], exact[1])


@given(st.integers(10**9, 10**12), st.integers(1, 10**6), st.integers(0, 10**9))
def test_python_integers_are_exact_however_far(n: int, batch: int, step: int) -> None:
    epoch, offset = starts(np, 0, 0, step, n=n, batch=batch, remainder="wrap")
    assert epoch * n + offset == step * batch
    epoch, offset = starts(np, 0, 0, step, n=n, batch=batch, remainder="pad")
    assert int(epoch) * -(-n // batch) + int(offset) // batch == step
