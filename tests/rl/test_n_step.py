"""The n-step return of a window is that of the first step of a segment."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.slowly import slowly

from cereal import PipelineError, UsageError
from cereal.rl.n_step import n_step_of_window
from cereal.rl.returns import n_step_returns

B, GAMMA = 64, 0.9


def windows(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    done = rng.random((B, n)) < 0.3
    return rng.normal(size=(B, n)).astype("f4"), done, rng.random((B, n)) < 0.5


@pytest.mark.parametrize("n", [1, 3, slowly(17)])
def test_it_is_the_return_of_the_first_step_of_a_segment(n: int) -> None:
    reward, done, terminated = windows(n)
    steps = np.tile(np.arange(n)[:, None], (1, B))
    expected = n_step_returns(reward.T, done.T, steps, n, gamma=GAMMA, terminated=terminated.T)
    found = jax.jit(n_step_of_window, static_argnums=3)(reward, done, terminated, n, GAMMA)
    np.testing.assert_allclose(found[0], expected[0][0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found[1], expected[1][0])
    np.testing.assert_allclose(found[2], expected[2][0], rtol=1e-6)


def test_what_follows_the_end_of_an_episode_is_not_used() -> None:
    reward = np.array([1.0, 2.0, np.nan, np.inf], np.float32)
    done = np.array([False, True, False, True])
    returns, last, discount = n_step_of_window(reward, done, [False, False, True, True], 4, 0.5)
    assert (float(returns), int(last), float(discount)) == (2.0, 1, 0.25)


def test_no_discount_and_a_discount_of_zero() -> None:
    reward, no = np.array([1, 2, 3]), np.zeros(3, bool)
    assert [float(x) for x in n_step_of_window(reward, no, no, 3, 1.0)] == [6.0, 2.0, 1.0]
    assert [float(x) for x in n_step_of_window(reward, no, no, 3, 0.0)] == [1.0, 2.0, 0.0]


def test_windows_may_have_any_leading_axes_and_gamma_may_be_traced() -> None:
    reward, done, terminated = (x.reshape(8, 4, 2, 3) for x in windows(3))
    by_gamma = jax.vmap(lambda g: n_step_of_window(reward, done, terminated, 3, g))
    returns, last, discount = by_gamma(jnp.array([0.5, GAMMA]))
    assert returns.shape == last.shape == discount.shape == (2, 8, 4, 2)
    once = n_step_of_window(reward[3, 1, 0], done[3, 1, 0], terminated[3, 1, 0], 3, GAMMA)
    assert float(returns[1, 3, 1, 0]) == pytest.approx(float(once[0]), rel=1e-6)


def test_wrong_shapes_and_discounts_are_refused() -> None:
    reward, done, terminated = windows(3)
    with pytest.raises(UsageError, match=r"`reward` has shape \(64, 3\).*`\[..., 4\]`"):
        n_step_of_window(reward, done, terminated, 4, GAMMA)
    with pytest.raises(UsageError, match=r"`done` has shape \(3, 64\)"):
        n_step_of_window(reward, done.T, terminated, 3, GAMMA)
    with pytest.raises(PipelineError, match=r"`gamma` must be a number from 0 to 1, got 1\.5"):
        n_step_of_window(reward, done, terminated, 3, 1.5)
