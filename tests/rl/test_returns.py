"""Returns and advantages agree with plain loops over the steps."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.rl.loops import loop_gae, loop_n_step, loop_to_go, per_column
from tests.rl.played import written_steps

from cereal import PipelineError, UsageError
from cereal.rl import episode_statistics, returns
from cereal.rl.returns import gae, n_step_returns, reward_to_go

pytestmark = pytest.mark.optimized

T, N, GAMMA = 13, 3, 0.9
SEEDS = range(8)
# Padding at the end of some environments, a gap in another.
MASK = np.arange(T)[:, None] < np.array([T, 9, T])
MASK[5, 2] = False

close = partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)
to_go = jax.jit(partial(reward_to_go, gamma=GAMMA))
advantages = jax.jit(partial(gae, gamma=GAMMA, lam=0.8))
n_steps = jax.jit(n_step_returns, static_argnames="n")


def values(seed: int, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1000 + seed)
    return rng.normal(size=shape).astype("f4"), rng.normal(size=shape).astype("f4")


# Against loops


@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
def test_reward_to_go_is_the_loop(mask: Any) -> None:
    for seed in SEEDS:
        steps = written_steps(seed, T, N)
        masks = np.ones((T, N), bool) if mask is None else mask
        expected = per_column(
            lambda r, d, m: loop_to_go(r, d, GAMMA, None, m), steps["reward"], steps["done"], masks
        )
        close(to_go(steps["reward"], steps["done"], mask=mask), expected)


@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
def test_reward_to_go_is_the_loop_with_a_bootstrap(mask: Any) -> None:
    after = np.array([10.0, 20.0, 30.0], np.float32)
    for seed in SEEDS:
        steps = written_steps(seed, T, N, stop=0.1)
        masks = np.ones((T, N), bool) if mask is None else mask
        expected = np.stack(
            [
                loop_to_go(steps["reward"][:, k], steps["done"][:, k], GAMMA, after[k], masks[:, k])
                for k in range(N)
            ],
            axis=1,
        )
        close(to_go(steps["reward"], steps["done"], bootstrap=after, mask=mask), expected)


@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
@pytest.mark.parametrize("n", [1, 2, 5, 50])
def test_n_step_returns_are_the_loop(n: int, mask: Any) -> None:
    for seed in SEEDS[:4]:
        steps = written_steps(seed, T, N)
        terminated = steps["info"]["terminated"]
        masks = np.ones((T, N), bool) if mask is None else mask
        total, last, discount = per_column(
            lambda r, d, e, m: loop_n_step(r, d, n, GAMMA, e, m),
            *(steps["reward"], steps["done"], terminated, masks),
        )
        arrays = (steps["reward"], steps["done"], steps["next_state"])
        found = n_steps(*arrays, n=n, gamma=GAMMA, terminated=terminated, mask=mask)
        close(found[0], total)
        np.testing.assert_array_equal(
            found[1], np.take_along_axis(steps["next_state"], last[..., None], axis=0)
        )
        close(found[2], discount)


@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
def test_gae_is_the_loop(mask: Any) -> None:
    for seed in SEEDS:
        steps, (now, after) = written_steps(seed, T, N), values(seed, T, N)
        terminated = steps["info"]["terminated"]
        masks = np.ones((T, N), bool) if mask is None else mask
        expected = per_column(
            lambda r, d, v, w, e, m: loop_gae((r, d, v, w), GAMMA, 0.8, e, m),
            *(steps["reward"], steps["done"], now, after, terminated, masks),
        )
        run = partial(advantages, steps["reward"], steps["done"], now, after)
        close(run(terminated=terminated, mask=mask), expected)


def test_long_segments_are_the_loop_too() -> None:
    steps, (now, after) = written_steps(3, 2048, stop=0.002), values(3, 2048)
    reward, done = steps["reward"], steps["done"]
    expected = loop_gae((reward, done, now, after), 0.99, 0.95)
    found = jax.jit(gae)(reward, done, now, after)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_without_terminated_every_done_is_a_termination() -> None:
    steps, (now, after) = written_steps(1, T), values(1, T)
    done = steps["done"]
    close(
        advantages(steps["reward"], done, now, after)[0],
        loop_gae((steps["reward"], done, now, after), GAMMA, 0.8)[0],
    )
    discount = n_steps(steps["reward"], done, now, n=3, gamma=GAMMA)[2]
    close(discount, loop_n_step(steps["reward"], done, 3, GAMMA)[2])


def test_a_truncation_cuts_and_bootstraps_and_a_termination_only_cuts() -> None:
    reward, done, after = jnp.ones(2), jnp.array([True, True]), jnp.full(2, 8.0)
    terminated = jnp.array([False, True])
    advantage, returned = jax.jit(gae)(
        reward, done, jnp.zeros(2), after, gamma=0.5, terminated=terminated
    )
    assert advantage.tolist() == returned.tolist() == [5.0, 1.0]
    found = n_steps(reward, done, after, n=2, gamma=0.5, terminated=terminated)
    assert found[2].tolist() == [0.5, 0.0]


def test_with_lambda_one_the_return_is_the_reward_to_go() -> None:
    steps, (now, after) = written_steps(5, T, N, stop=0.1), values(5, T, N)
    # Values that agree: what follows a step is the state of the next one.
    after[:-1] = now[1:]
    _, returned = jax.jit(gae)(steps["reward"], steps["done"], now, after, gamma=GAMMA, lam=1.0)
    close(returned, to_go(steps["reward"], steps["done"], bootstrap=after[-1]))


# Shapes


def test_further_axes_ride_along() -> None:
    steps = written_steps(2, T, 2, 3)
    reward, done = steps["reward"], steps["done"]
    found = to_go(reward, done)
    _, state, _ = n_steps(reward, done, {"seen": steps["next_state"]}, n=3, gamma=GAMMA)
    for i, j in np.ndindex(2, 3):
        close(found[:, i, j], loop_to_go(reward[:, i, j], done[:, i, j], GAMMA))
        last = loop_n_step(reward[:, i, j], done[:, i, j], 3, GAMMA)[1]
        np.testing.assert_array_equal(state["seen"][:, i, j], steps["next_state"][last, i, j])


def test_one_done_may_end_several_rewards() -> None:
    steps = written_steps(2, T, 2, 3)
    reward, done = steps["reward"], steps["done"][..., 0]
    found = to_go(reward, done, mask=np.arange(T) < 9)
    seen = steps["next_state"][..., 0, :]
    total, _, discount = n_steps(reward, done, seen, n=2, gamma=GAMMA)
    assert discount.shape == done.shape
    for i, j in np.ndindex(2, 3):
        mask = np.arange(T) < 9
        close(found[:, i, j], loop_to_go(reward[:, i, j], done[:, i], GAMMA, None, mask))
        close(total[:, i, j], loop_n_step(reward[:, i, j], done[:, i], 2, GAMMA)[0])


def test_a_segment_of_one_step() -> None:
    one, no = jnp.ones(1), jnp.zeros(1, bool)
    assert to_go(one, no, bootstrap=10.0).tolist() == [10.0]
    assert [float(x[0]) for x in n_steps(one, no, one, n=5, gamma=0.5)] == [1.0, 1.0, 0.5]
    assert advantages(one, no, one, 10 * one)[0].tolist() == [9.0]


def test_what_is_masked_may_be_anything() -> None:
    steps, (now, after) = written_steps(6, T, N), values(6, T, N)
    clean = advantages(steps["reward"], steps["done"], now, after, mask=MASK)
    for array in (steps["reward"], now, after):
        array[~MASK] = np.nan
    dirty = advantages(steps["reward"], steps["done"], now, after, mask=MASK)
    np.testing.assert_array_equal(dirty, clean)
    assert np.all(np.asarray(dirty[1])[~MASK] == 0)


# Under transformations


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_reward_stays_in_its_episode(bad: float) -> None:
    reward, done = np.array([1, 2, bad, 3], "f4"), np.array([False, True, True, False])
    followed = jnp.asarray(~done, jnp.float32)
    for way in (returns._by_doubling, returns.backwards):
        assert way(followed, jnp.asarray(reward))[jnp.array([0, 1, 3])].tolist() == [3, 2, 3]
    assert n_step_returns(reward, done, reward, 2, gamma=1)[0].tolist()[:2] == [3, 2]
    found = gae(reward, done, np.zeros(4, "f4"), np.zeros(4, "f4"), gamma=1, lam=1)[0]
    assert found[:2].tolist() == [3, 2]
    assert reward_to_go(reward[:2], done[:2], bootstrap=bad).tolist() == [3, 2]
    sums, _ = episode_statistics(reward, done)
    assert sums[jnp.array([0, 1, 3])].tolist() == [1, 3, 3]


def test_jit_and_eager_agree() -> None:
    steps, (now, after) = written_steps(4, T, N), values(4, T, N)
    close(
        reward_to_go(steps["reward"], steps["done"], gamma=GAMMA),
        to_go(steps["reward"], steps["done"]),
    )
    eager = gae(steps["reward"], steps["done"], now, after, gamma=GAMMA, lam=0.8)
    close(eager, advantages(steps["reward"], steps["done"], now, after))


def test_vmap_over_environments_is_an_axis() -> None:
    steps, (now, after) = written_steps(4, T, N), values(4, T, N)
    arrays = (steps["reward"], steps["done"], now, after)
    mapped = jax.jit(jax.vmap(advantages, in_axes=1, out_axes=1))(*arrays)
    close(mapped, advantages(*arrays))


def test_gamma_may_be_mapped_over() -> None:
    steps, gammas = written_steps(4, T), np.array([0.0, 0.5, 1.0], np.float32)
    reward, done, seen = steps["reward"], steps["done"], steps["next_state"]
    mapped = jax.vmap(jax.jit(lambda gamma: reward_to_go(reward, done, gamma=gamma)))(gammas)
    powers = jax.vmap(lambda gamma: n_steps(reward, done, seen, n=3, gamma=gamma)[2])(gammas)
    for k, gamma in enumerate(gammas.tolist()):
        close(mapped[k], loop_to_go(reward, done, gamma))
        close(powers[k], loop_n_step(reward, done, 3, gamma)[2])


def test_gradients_of_advantages_are_those_of_the_loop() -> None:
    steps, (now, after) = written_steps(7, T), values(7, T)
    reward, done = steps["reward"], steps["done"]

    def total(now: Any, after: Any) -> Any:
        return (gae(reward, done, now, after, gamma=GAMMA, lam=0.8)[0] ** 2).sum()

    found = jax.jit(jax.grad(total, argnums=(0, 1)))(now, after)
    assert all(np.isfinite(g).all() for g in found)

    def by_loop(now: Any, after: Any) -> float:
        return float((loop_gae((reward, done, now, after), GAMMA, 0.8)[0] ** 2).sum())

    for t in range(T):
        little = np.eye(T)[t] * 1e-4
        slope = (by_loop(now + little, after) - by_loop(now - little, after)) / 2e-4
        np.testing.assert_allclose(found[0][t], slope, rtol=1e-3, atol=1e-3)
        slope = (by_loop(now, after + little) - by_loop(now, after - little)) / 2e-4
        np.testing.assert_allclose(found[1][t], slope, rtol=1e-3, atol=1e-3)


def test_gradients_reach_gamma_and_stay_finite_at_its_ends() -> None:
    reward, done = jnp.ones(3), jnp.zeros(3, bool)
    slope = jax.grad(lambda g: n_steps(reward, done, reward, n=3, gamma=g)[2][0])
    assert [float(slope(g)) for g in (0.0, 1.0)] == [0.0, 3.0]
    slope = jax.jit(jax.grad(lambda g: reward_to_go(reward, done, gamma=g)[0]))
    assert [float(slope(g)) for g in (0.0, 1.0)] == [1.0, 3.0]


@pytest.mark.parametrize("size", [1, 3, 64])
def test_windows_that_double_give_what_steps_one_by_one_give(size: int) -> None:
    """The way of accelerators, which `backwards` does not take on a CPU."""
    rng = np.random.default_rng(size)
    factor, added = rng.random((size, 2)).astype("f4"), rng.normal(size=(size, 2)).astype("f4")
    expected, running = np.zeros((size, 2)), np.zeros(2)
    for t in reversed(range(size)):
        expected[t] = running = added[t] + factor[t] * running

    @jax.jit
    def both(factor: Any, added: Any) -> Any:
        found = []
        for way in (returns._by_doubling, returns.backwards):
            mapped = jax.vmap(way, in_axes=1, out_axes=1)(factor, added)
            slopes = jax.grad(lambda f, a, way=way: (way(f, a) ** 2).sum(), (0, 1))(factor, added)
            found.append((way(factor, added), mapped, slopes))
        return found

    doubled, plain = both(factor, added)
    for x in (*doubled[:2], *plain[:2]):
        close(x, expected)
    np.testing.assert_allclose(doubled[2][0], plain[2][0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(doubled[2][1], plain[2][1], rtol=1e-4, atol=1e-4)


# Dtypes


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.bool_, jnp.bfloat16])
def test_narrow_rewards_give_float32(dtype: Any) -> None:
    reward, done = jnp.ones(300, dtype), jnp.zeros(300, jnp.int32)
    found = jax.jit(reward_to_go)(reward, done)
    assert found.dtype == jnp.float32
    assert float(found[0]) == 300  # which bfloat16 cannot tell from 301
    bootstrapped = jax.eval_shape(lambda r: n_step_returns(r, done, r, 2, gamma=0.5), reward)
    assert [x.dtype for x in bootstrapped] == [jnp.float32, dtype, jnp.float32]


def test_a_wide_reward_or_value_gives_wide_results() -> None:
    with jax.enable_x64(True):
        steps, (now, after) = written_steps(1, T), values(1, T)
        reward, done = steps["reward"].astype(np.float64), steps["done"]
        found = to_go(reward, done)
        assert found.dtype == jnp.float64
        np.testing.assert_allclose(found, loop_to_go(reward, done, GAMMA), rtol=1e-13)
        mixed = advantages(steps["reward"], done, now.astype(np.float64), after)
        expected = loop_gae((steps["reward"], done, now, after), GAMMA, 0.8)
        np.testing.assert_allclose(mixed, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("strict_jax")
def test_nothing_is_promoted_on_the_quiet() -> None:
    reward, done = jnp.ones((4, 2), jnp.bfloat16), jnp.zeros((4, 2), jnp.float32)
    mask, now = jnp.ones(4, bool), jnp.ones((4, 2), jnp.int32)
    assert to_go(reward, done, bootstrap=2, mask=mask).shape == (4, 2)
    assert jax.jit(gae)(reward, done, now, now, gamma=1.0, mask=mask)[0].shape == (4, 2)
    assert n_steps(reward, done, now, n=3, gamma=jnp.float32(1), mask=mask)[0].shape == (4, 2)


# Bad input


@pytest.mark.parametrize(
    ("gamma", "said"),
    [
        (1.01, "`gamma` must be a number from 0 to 1, got 1.01"),
        (-0.1, "`gamma` must be a number from 0 to 1, got -0.1"),
        (float("nan"), "`gamma` must be a number from 0 to 1, got nan"),
        (True, r"got bool \(True\)"),
        (None, r"got NoneType \(None\)"),
        ("0.9", r"got str \('0.9'\)"),
        (jnp.float32(2), "got 2.0"),
        (jnp.ones(3), r"got float32\[3\]; for many at once, `jax.vmap` over `gamma`"),
    ],
)
def test_gamma_is_from_zero_to_one(gamma: Any, said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        reward_to_go(jnp.ones(3), jnp.zeros(3), gamma=gamma)


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "2"])
def test_n_is_a_positive_integer(n: Any) -> None:
    with pytest.raises(PipelineError, match="n_step_returns: `n` must be an integer of at least 1"):
        n_step_returns(jnp.ones(3), jnp.zeros(3), jnp.ones(3), n, gamma=0.9)


def test_shapes_that_do_not_belong_together_are_named() -> None:
    reward, done = jnp.ones((4, 2)), jnp.zeros((4, 2))
    with pytest.raises(UsageError, match=r"`reward_to_go` works on steps in a row.*shape \(\)"):
        reward_to_go(1.0, False)
    with pytest.raises(UsageError, match=r"`done` of shape \(2, 4\) does not belong to `reward`"):
        reward_to_go(reward, done.T)
    with pytest.raises(UsageError, match=r"`mask` of shape \(2,\) does not belong to `done`"):
        reward_to_go(reward, done, mask=jnp.ones(2))
    with pytest.raises(UsageError, match=r"`bootstrap` of shape \(4, 2\) is not one value"):
        reward_to_go(reward, done, bootstrap=reward)
    with pytest.raises(UsageError, match=r"`value` of shape \(4, 2, 1\).*write `\[..., 0\]`"):
        gae(reward, done, reward[..., None], reward)
    with pytest.raises(UsageError, match=r"`terminated` of shape \(4, 3\)"):
        gae(reward, done, reward, reward, terminated=jnp.ones((4, 3)))
    with pytest.raises(UsageError, match=r"`next_state` has an array of shape \(4,\)"):
        n_step_returns(reward, done, {"x": jnp.ones(4)}, 2, gamma=0.9)
    with pytest.raises(PipelineError, match="gae: `lam` must be a number from 0 to 1, got 2"):
        gae(reward, done, reward, reward, lam=2)
