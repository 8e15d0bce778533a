from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from cereal.base.errors import PipelineError
from cereal.order import permutation
from cereal.order.permutation import MAX_TRACED, ROUNDS, ROUNDS_64, permute, round_constants

pytestmark = pytest.mark.optimized

Key = tuple[int, int]

words = st.integers(0, 2**32 - 1)
keys = st.tuples(words, words)

LARGE = [2**16, 2**20 + 7, 10**9, 2**30, 2**30 + 1, 2**31 - 2, 2**31 - 1]
LARGER = [2**31, 2**32, 2**40 + 7, 2**53 + 1, 2**63 - 1]


def constants_of(key: Key, epochs: list[int], n: int) -> tuple[Any, Any]:
    return round_constants((np.uint32(key[0]), np.uint32(key[1])), np.array(epochs, np.uint32), n)


def order_of(key: Key, epoch: int, n: int, position: np.ndarray | None = None) -> np.ndarray:
    position = np.arange(n) if position is None else position
    column = np.zeros(position.shape, np.int64)
    return permute(position, column, constants_of(key, [epoch], n), n)


def some_positions(n: int, count: int = 20_000) -> np.ndarray:
    """Distinct positions from all of [0, n), its ends and its middle among them."""
    drawn = np.random.default_rng(0).integers(0, n, count, dtype=np.int64)
    edges = np.concatenate([np.arange(100), np.arange(n - 100, n), n // 2 + np.arange(-50, 50)])
    return np.unique(np.concatenate([drawn, edges]))


def traced(n: int, rounds: int = ROUNDS) -> Any:
    def indices(key: Any, epochs: Any, column: Any, position: Any) -> Any:
        constants = round_constants((key[0], key[1]), epochs, n, rounds)
        return permute(position, column, constants, n)

    return indices


def on_device(key: Key, epochs: list[int], column: np.ndarray, position: np.ndarray, n: int) -> Any:
    return jax.jit(traced(n))(
        jnp.asarray(key, jnp.uint32),
        jnp.asarray(epochs, jnp.uint32),
        jnp.asarray(column, jnp.uint32),
        jnp.asarray(position, jnp.uint32),
    )


# Bijection.


def test_every_small_order_visits_each_index_once() -> None:
    for n in range(1, 301):
        for epoch in range(3):
            assert sorted(order_of((n, 1), epoch, n).tolist()) == list(range(n)), (n, epoch)


@settings(deadline=None, max_examples=200)
@given(n=st.integers(1, 3000), key=keys, epoch=words)
def test_any_key_and_epoch_visit_each_index_once(n: int, key: Key, epoch: int) -> None:
    np.testing.assert_array_equal(np.sort(order_of(key, epoch, n)), np.arange(n))


@pytest.mark.parametrize("n", [2**16 - 1, 2**16, 2**16 + 1, 1_281_167])
def test_long_orders_visit_each_index_once(n: int) -> None:
    seen = np.zeros(n, bool)
    seen[order_of((1, 2), 3, n)] = True
    assert seen.all()


@pytest.mark.parametrize("n", [*LARGE, *LARGER])
@pytest.mark.parametrize("epoch", [0, 2**32 - 1])
def test_orders_too_long_to_write_out_repeat_nothing_and_stay_in_range(n: int, epoch: int) -> None:
    index = order_of((3, 4), epoch, n, some_positions(n))
    assert index.dtype == np.int64
    assert index.min() >= 0
    assert index.max() < n
    assert np.unique(index).size == index.size


@settings(deadline=None, max_examples=100)
@given(n=st.integers(2, 2**31 - 1), key=keys, epoch=words, seed=words)
def test_orders_of_any_length_stay_in_range(n: int, key: Key, epoch: int, seed: int) -> None:
    position = np.unique(np.random.default_rng(seed).integers(0, n, 500))
    index = order_of(key, epoch, n, position)
    assert index.min() >= 0
    assert index.max() < n
    assert np.unique(index).size == position.size


@pytest.mark.parametrize("n", [2, 3, 10, 1000, *LARGE, *LARGER])
def test_the_rounds_backwards_lead_back(n: int) -> None:
    # Each round is its own inverse; this checks the bijection where no table can.
    position = some_positions(n) if n > 1000 else np.arange(n)
    column = np.zeros(position.shape, np.int64)
    constant, salt = constants_of((5, 6), [7], n)
    index = permute(position, column, (constant, salt), n)
    np.testing.assert_array_equal(permute(index, column, (constant[::-1], salt[::-1]), n), position)


def test_every_small_order_of_the_64_bit_form_visits_each_index_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(permutation, "MAX_TRACED", 0)
    for n in range(1, 201):
        constant, salt = constants_of((n, 1), [0], n)
        assert constant.dtype == salt.dtype == np.uint64
        for epoch in range(2):
            assert sorted(order_of((n, 1), epoch, n).tolist()) == list(range(n)), (n, epoch)


# NumPy and JAX.


@pytest.mark.parametrize("n", [1, 2, 3, 7, 1000, 2**16, 2**20 + 7, 2**30, 2**31 - 1])
@pytest.mark.parametrize("epochs", [[0], [5, 6], [0, 1, 7, 2**32 - 1]])
def test_jax_and_numpy_agree_in_every_bit(n: int, epochs: list[int]) -> None:
    key = (0x89ABCDEF, 0xFFFFFFFF)
    position = some_positions(n, 2000) if n > 1000 else np.arange(n)
    position = np.tile(position, len(epochs))
    column = np.random.default_rng(1).integers(0, len(epochs), position.size)
    on_host = permute(position, column, constants_of(key, epochs, n), n)
    np.testing.assert_array_equal(
        on_host, np.asarray(on_device(key, epochs, column, position, n)).astype(np.int64)
    )


@settings(deadline=None, max_examples=8)
@given(n=st.integers(2, 2**31 - 1), key=keys, epoch=words)
def test_jax_and_numpy_agree_for_any_length(n: int, key: Key, epoch: int) -> None:
    position = np.unique(np.linspace(0, n - 1, 200).astype(np.int64))
    index = on_device(key, [epoch], np.zeros_like(position), position, n)
    np.testing.assert_array_equal(order_of(key, epoch, n, position), np.asarray(index))


@pytest.mark.parametrize("epochs", [[0], [5, 6], [0, 1, 7, 2**32 - 1]])
@pytest.mark.parametrize("n", [1000, 2**31 - 1])
def test_the_form_for_accelerators_agrees_with_numpy(
    n: int, epochs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = []

    def by_platform(*args: Any, default: Any, **others: Any) -> Any:
        chosen.append(default)
        return default(*args)

    monkeypatch.setattr("cereal.order.permutation.by_platform", by_platform)
    position = some_positions(n, 2000)
    column = np.arange(position.size) % len(epochs)
    index = on_device((1, 2), epochs, column, position, n)
    on_host = permute(position, column, constants_of((1, 2), epochs, n), n)
    np.testing.assert_array_equal(on_host, np.asarray(index))
    assert len(chosen) == 1


def test_jax_agrees_with_numpy_outside_jit() -> None:
    index = traced(1000)(
        jnp.asarray([1, 2], jnp.uint32),
        jnp.asarray([3], jnp.uint32),
        jnp.zeros(1000, jnp.uint32),
        jnp.arange(1000, dtype=jnp.uint32),
    )
    np.testing.assert_array_equal(order_of((1, 2), 3, 1000), np.asarray(index))


def test_jax_agrees_with_numpy_when_64_bits_are_enabled() -> None:
    with jax.enable_x64(True):
        index = on_device((1, 2), [3], np.zeros(1000), np.arange(1000), 1000)
    np.testing.assert_array_equal(order_of((1, 2), 3, 1000), np.asarray(index))


def test_jax_agrees_with_numpy_on_lanes_of_several_axes() -> None:
    position = np.arange(1000).reshape(10, 5, 20)
    column = position % 3
    on_host = permute(position, column, constants_of((1, 2), [3, 4, 5], 1000), 1000)
    index = on_device((1, 2), [3, 4, 5], column, position, 1000)
    assert on_host.shape == index.shape == position.shape
    np.testing.assert_array_equal(on_host, np.asarray(index))


@pytest.mark.parametrize("n", [2, 1000, 2**31 - 1])
def test_indices_are_int32_in_jax_and_int64_in_numpy(n: int) -> None:
    position = np.arange(2)
    assert order_of((1, 2), 3, n, position).dtype == np.int64
    assert on_device((1, 2), [3], np.zeros(2), position, n).dtype == jnp.int32


# Positions and columns are independent of what stands beside them.


@pytest.mark.parametrize("n", [1000, 2**31 - 1, 2**40 + 7])
def test_an_index_depends_on_its_own_position_and_epoch_alone(n: int) -> None:
    epochs = [4, 9, 2]
    position = np.tile(some_positions(n, 100)[:300], 3)
    column = np.repeat(np.arange(3), position.size // 3)
    together = permute(position, column, constants_of((1, 2), epochs, n), n)
    for lane, epoch in enumerate(epochs):
        mine = column == lane
        np.testing.assert_array_equal(together[mine], order_of((1, 2), epoch, n, position[mine]))


def test_orders_differ_between_keys_between_epochs_and_between_lengths() -> None:
    orders = [
        order_of(key, epoch, n)[:500].tobytes()
        for key in [(0, 0), (0, 1), (1, 0)]
        for epoch in [0, 1, 2**32 - 1]
        for n in [1000, 1001]
    ]
    assert len(set(orders)) == len(orders)


# What users' saved states rely on.

# SHA-256 over the order as little-endian int64, of the first `count` positions. To change one is
# a breaking change: a run that resumes from a saved state would read other data than it left.
GOLDEN = [
    ((0, 0), 0, 10, 10, "8a8767b54c25b7ce1f3c9e5486e8f165219fb4ced4afe2d55fdc2ba3697dfe6b"),
    ((0, 0), 0, 1000, 1000, "e0464bfb6827d34c326880a6b03a69bc2e4f82732696a2bce7b15dddb94f6963"),
    ((0, 0), 1, 1000, 1000, "e897863e528f2ecced1960d4feb1a546c27fc80e78bbca6e9b892c813dd39c0b"),
    ((0, 1), 0, 1000, 1000, "665afacf7ab1ee5b0a286ddbff13336418ef8d5ce0612602a0a387dd9fa58f01"),
    ((1, 0), 0, 1000, 1000, "83c718a26c8aaa5943e921374963a5f08de34e8c75d2f23443aeb2675427f3a8"),
    (
        (0x89ABCDEF, 0x01234567),
        2**32 - 1,
        60_000,
        60_000,
        "1968876848ea116aab73bccd4ba45ff6c85d991e44ffbac56c2f5f5a4c2f76c5",
    ),
    (
        (1, 2),
        3,
        1_281_167,
        100_000,
        "bcd898878cf67d70612a8d0ed673b36b4ea45e0db6067cde46f57db127399639",
    ),
    (
        (1, 2),
        3,
        2**31 - 1,
        10_000,
        "04644ed0eee90fad125be54bfd7654e5ecdde28ea136d5d823f174b0b25d86c7",
    ),
    ((1, 2), 3, 2**31, 10_000, "73d192eeb58f16a8ae788e559ea7a407b206d8612c3f867e02ec7fe6ddb68b0d"),
    (
        (1, 2),
        3,
        2**63 - 1,
        10_000,
        "1bc185fcb43383a3e16135119ddf367dba72d877153929446444a9802a11bb98",
    ),
]


@pytest.mark.parametrize(("key", "epoch", "n", "count", "digest"), GOLDEN)
def test_the_order_is_the_one_of_earlier_releases(
    key: Key, epoch: int, n: int, count: int, digest: str
) -> None:
    order = order_of(key, epoch, n, np.arange(count))
    assert hashlib.sha256(order.astype("<i8").tobytes()).hexdigest() == digest


def test_the_first_indices_are_the_ones_of_earlier_releases() -> None:
    # The same promise as above, in numbers to look at.
    assert order_of((0, 0), 0, 10).tolist() == [6, 4, 5, 1, 9, 3, 2, 0, 8, 7]


# Form.


def primitives(jaxpr: Any) -> Iterator[str]:
    """The names of all primitives of a jaxpr and of the jaxprs inside it."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        yield from _primitives_inside(list(equation.params.values()))


def _primitives_inside(parameters: list[Any] | tuple[Any, ...]) -> Iterator[str]:
    for parameter in parameters:
        if isinstance(parameter, list | tuple):
            yield from _primitives_inside(parameter)
        elif hasattr(parameter, "eqns"):
            yield from primitives(parameter)
        elif hasattr(parameter, "jaxpr"):
            yield from primitives(parameter.jaxpr)


@pytest.mark.parametrize("epochs", [1, 2, 5])
@pytest.mark.parametrize("n", [2, 1000, 2**31 - 1])
def test_compiled_code_has_no_loop_of_unknown_length(n: int, epochs: int) -> None:
    word = jnp.zeros(8, jnp.uint32)
    jaxpr = jax.make_jaxpr(jax.jit(traced(n)))(word[:2], word[:epochs], word, word)
    found = set(primitives(jaxpr.jaxpr))
    assert "scan" in found
    assert "while" not in found


def test_a_loop_of_unknown_length_would_be_found() -> None:
    @jax.jit
    def looping(x: Any) -> Any:
        return lax.cond(
            x > 3, lambda: lax.while_loop(lambda y: y < 9, lambda y: y + 1, x), lambda: x
        )

    assert "while" in set(primitives(jax.make_jaxpr(looping)(1).jaxpr))


@pytest.mark.parametrize("n", [2, 10, 2**31 - 1])
def test_round_constants_have_one_column_per_epoch(n: int) -> None:
    constant, salt = constants_of((1, 2), [0, 1, 2], n)
    assert constant.shape == salt.shape == (ROUNDS, 3)
    assert constant.dtype == salt.dtype == np.uint32
    assert constant.max() < n


@pytest.mark.parametrize("n", LARGER)
def test_round_constants_of_the_64_bit_form_have_one_column_per_epoch(n: int) -> None:
    constant, salt = constants_of((1, 2), [0, 1, 2], n)
    assert constant.shape == salt.shape == (ROUNDS_64, 3)
    assert constant.dtype == salt.dtype == np.uint64
    assert int(constant.max()) < n


def test_the_limit_of_compiled_code_is_that_of_int32() -> None:
    assert np.iinfo(np.int32).max == MAX_TRACED


def test_compiled_code_refuses_lengths_that_need_64_bits() -> None:
    key = (jnp.uint32(1), jnp.uint32(2))
    with pytest.raises(PipelineError, match="2147483648 elements needs 64-bit positions"):
        round_constants(key, jnp.zeros(1, jnp.uint32), 2**31)
