from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal import masked_mean

pytestmark = pytest.mark.optimized

MASK = jnp.array([True, True, False, True])


def test_the_mean_is_over_the_elements_whose_mask_is_true() -> None:
    assert float(masked_mean(jnp.array([1.0, 2.0, 100.0, 6.0]), MASK)) == 3.0


def test_the_mean_of_nothing_is_zero_and_so_is_its_gradient() -> None:
    none = jnp.zeros(3, jnp.bool_)
    value, grad = jax.value_and_grad(masked_mean)(jnp.ones(3), none)
    assert float(value) == 0.0
    np.testing.assert_array_equal(grad, np.zeros(3))


def test_values_of_more_axes_than_the_mask_are_averaged_over_all_of_them() -> None:
    values = jnp.arange(24, dtype=jnp.float32).reshape(4, 3, 2)
    expected = np.asarray(values)[np.asarray(MASK)].mean()
    assert float(masked_mean(values, MASK)) == pytest.approx(expected)


def test_a_mask_of_two_axes_serves_microbatches() -> None:
    mask = jnp.array([[True, False], [True, True]])
    assert float(masked_mean(jnp.array([[1.0, 50.0], [3.0, 5.0]]), mask)) == 3.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_stands_in_the_padding_does_not_matter(bad: float) -> None:
    values = jnp.array([1.0, 2.0, bad, 6.0])
    value, grad = jax.value_and_grad(masked_mean)(values, MASK)
    assert float(value) == 3.0
    np.testing.assert_allclose(grad, [1 / 3, 1 / 3, 0, 1 / 3], rtol=1e-6)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (jnp.array([1, 2, 9, 4]), jnp.float32),
        (jnp.array([1, 2, 9, 4], jnp.uint8), jnp.float32),
        (jnp.array([True, False, True, True]), jnp.float32),
        (jnp.array([1, 2, 9, 4], jnp.bfloat16), jnp.bfloat16),
        (jnp.array([1, 2, 9, 4], jnp.float16), jnp.float16),
        (np.array([1.0, 2, 9, 4]), jnp.float32),
        (jnp.array([1, 2, 9, 4], jnp.complex64), jnp.complex64),
    ],
)
def test_floats_keep_their_dtype_and_all_else_becomes_float32(values: Any, dtype: Any) -> None:
    mean = masked_mean(values, MASK)
    assert mean.dtype == dtype
    expected = np.asarray(values)[np.asarray(MASK)].astype(np.complex64).mean()
    np.testing.assert_allclose(np.asarray(mean, np.complex64), expected, rtol=1e-2)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_floats_are_counted_and_summed_in_full(dtype: Any) -> None:
    ones = jnp.ones(100_001, dtype)
    assert float(masked_mean(ones, jnp.ones(100_001, jnp.bool_))) == 1.0


def test_numbers_serve_as_a_mask() -> None:
    assert float(masked_mean(jnp.array([1.0, 5.0]), jnp.array([1.0, 0.0]))) == 1.0


def test_it_is_the_same_compiled_and_mapped(strict_jax: None) -> None:
    values = jnp.arange(8, dtype=jnp.float32).reshape(2, 4)
    masks = jnp.stack([MASK, ~MASK])
    mapped = jax.jit(jax.vmap(masked_mean))(values, masks)
    np.testing.assert_allclose(mapped, [4 / 3, 6.0], rtol=1e-6)


@pytest.mark.parametrize(
    ("values", "mask"), [((3,), (4,)), ((), (4,)), ((4,), (4, 1)), ((1,), (4,))]
)
def test_shapes_that_do_not_fit_are_refused_not_broadcast(
    values: tuple[int, ...], mask: tuple[int, ...]
) -> None:
    with pytest.raises(cereal.UsageError, match=r"values of shape .* pass one value per element"):
        masked_mean(jnp.ones(values), jnp.ones(mask, jnp.bool_))


@pytest.mark.parametrize("mask", [[-1, -1], [0.5, 1.0], [2, 0], [np.nan, 1.0]])
def test_a_mask_of_other_numbers_than_0_and_1_is_refused(mask: Any) -> None:
    with pytest.raises(cereal.UsageError, match="needs a mask of True and False, or of 1 and 0, g"):
        masked_mean(jnp.array([1.0, 5.0]), jnp.array(mask))
    with pytest.raises(cereal.UsageError, match="For weights, write"):
        masked_mean(jnp.array([1.0, 5.0]), mask)


def test_where_nobody_can_look_other_numbers_give_nan() -> None:
    compiled = jax.jit(masked_mean)
    assert np.isnan(compiled(jnp.array([1.0, 5.0]), jnp.array([-1, 1])))
    assert float(compiled(jnp.array([1.0, 5.0]), jnp.array([0, 1]))) == 5.0
    assert float(compiled(jnp.array([1.0, 5.0]), jnp.array([0.0, 1.0]))) == 5.0


@pytest.mark.parametrize(("values", "mask"), [("a", MASK), (MASK, "a"), (None, MASK), ([{}], MASK)])
def test_what_is_no_array_is_refused(values: Any, mask: Any) -> None:
    with pytest.raises(cereal.UsageError, match=r"needs arrays, got .* for `(values|mask)`; pass"):
        masked_mean(values, mask)
