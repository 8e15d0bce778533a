"""Returns and advantages: pure functions of a segment; the first axis of its arrays is time.

    reward    1    1    1    1    1    1        x_t = b_t + a_t x_{t+1}
    done      .    .    x    .    .    .        a_t is 0 where an episode ends, else a discount
    to go     3    2    1    3    2    1

Each is a linear recurrence that runs backwards in time, separately for each environment.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..base.capture import is_traced
from ..base.errors import PipelineError, UsageError
from ..base.numbers import as_count
from ..base.spec import at_least_float32, format_spec
from ..device.platforms import by_platform


def reward_to_go(
    reward: Any, done: Any, *, gamma: Any = 1.0, bootstrap: Any = None, mask: Any = None
) -> jax.Array:
    """The discounted sum of rewards from each step to the end of its episode, or of the segment.

        return[t] = reward[t] + gamma * return[t + 1]      without the rest where done[t]

    Arrays are `[T]` or `[T, ...]`. `bootstrap`, `[...]`, is the value of the observation after the
    last step; it counts if the episode goes on. Steps whose `mask` (`[T]` or `[T, ...]`) is False
    get 0, and the sums of steps before them end there.

    >>> import cereal, jax.numpy as jnp
    >>> done = jnp.array([False, False, True, False])
    >>> cereal.rl.reward_to_go(jnp.ones(4), done, gamma=0.5).tolist()
    [1.75, 1.5, 1.0, 1.0]
    >>> cereal.rl.reward_to_go(jnp.ones(4), done, gamma=0.5, bootstrap=10.0).tolist()
    [1.75, 1.5, 1.0, 6.0]
    """
    steps = _read_steps("reward_to_go", reward, done, None, mask)
    gamma = _as_array(as_fraction(gamma, "gamma", "reward_to_go"), steps.dtype)
    follows = jnp.where(aligned(steps.cut, steps.reward), jnp.zeros_like(gamma), gamma)
    added = steps.reward
    if bootstrap is not None:
        after, shape = _as_array(bootstrap, steps.dtype), steps.reward.shape[1:]
        if after.shape not in ((), shape):
            raise UsageError(
                f"`reward_to_go`: `bootstrap` of shape {after.shape} is not one value for what "
                f"follows the last step; it has the axes of `reward` without time, {shape}."
            )
        after = jnp.broadcast_to(after, steps.reward.shape)
        last = aligned(_is_last(steps.real), steps.reward)
        added = jnp.where(last, _and_then(added, follows, after), added)
    return backwards(follows, added)


def n_step_returns(
    reward: Any,
    done: Any,
    next_state: Any,
    n: int,
    *,
    gamma: Any,
    terminated: Any = None,
    mask: Any = None,
) -> tuple[jax.Array, Any, jax.Array]:
    """The discounted sum of the next n rewards, and the state and discount for bootstrapping.

        returns, state, discount = n_step_returns(...)
        target = returns + discount * value(state)

    If the episode or the segment ends earlier, after m steps, only these m rewards are summed.
    `state` is the observation after them, and `discount` is `gamma**m`, or 0 if the episode
    terminated there. `terminated` says which episodes terminated and were not truncated; without
    it, every `done` is a termination.

    >>> import cereal, jax.numpy as jnp
    >>> done, after = jnp.array([False, False, True, False]), jnp.arange(1, 5)
    >>> returns, state, discount = cereal.rl.n_step_returns(jnp.ones(4), done, after, 2, gamma=0.5)
    >>> returns.tolist(), state.tolist(), discount.tolist()
    ([1.5, 1.5, 1.0, 1.0], [2, 3, 3, 4], [0.25, 0.0, 0.0, 0.5])
    """
    owner = "n_step_returns"
    n = as_count(n, "n", owner)
    steps = _read_steps(owner, reward, done, terminated, mask)
    gamma = _as_array(as_fraction(gamma, "gamma", owner), steps.dtype)
    size = steps.done.shape[0]
    # The step before a masked step is treated as the last step of a segment.
    cut = steps.cut | _later(~steps.real, 1, fill=False)
    follows = jnp.where(aligned(cut, steps.reward), jnp.zeros_like(gamma), gamma)
    total = backwards(follows, steps.reward) if n >= size else _window(follows, steps.reward, n)

    to_cut = backwards((~cut).astype(jnp.int32), jnp.ones(cut.shape, jnp.int32))
    count = jnp.minimum(to_cut, jnp.int32(min(n, size)))
    last = lax.broadcasted_iota(jnp.int32, cut.shape, 0) + count - 1
    exponents = jnp.arange(1, min(n, size) + 1).astype(steps.dtype)
    powers = lax.pow(jnp.broadcast_to(gamma, exponents.shape), exponents)
    power = powers.at[count - 1].get(mode="promise_in_bounds")
    discount = jnp.where(_at(steps.terminated | ~steps.real, last), jnp.zeros_like(power), power)
    return total, jax.tree.map(lambda leaf: _at(leaf, last), next_state), discount


def gae(
    reward: Any,
    done: Any,
    value: Any,
    next_value: Any,
    *,
    gamma: Any = 0.99,
    lam: Any = 0.95,
    terminated: Any = None,
    mask: Any = None,
) -> tuple[jax.Array, jax.Array]:
    """Generalised advantage estimation: (advantage, return), where return is advantage + value.

        delta[t] = reward[t] + gamma * next_value[t] * (1 - terminated[t]) - value[t]
        advantage[t] = delta[t] + gamma * lam * advantage[t + 1]    without the rest where done[t]

    `next_value[t]` is the value of the observation after step t; where `done`, of the last
    observation of the episode. So a truncated episode is bootstrapped. Without `terminated`, every
    `done` is a termination.

    >>> import cereal, jax.numpy as jnp
    >>> done = jnp.array([False, True, False])
    >>> value, after = jnp.zeros(3), jnp.array([0.0, 9.0, 2.0])
    >>> advantage, _ = cereal.rl.gae(jnp.ones(3), done, value, after, gamma=1.0, lam=0.5)
    >>> advantage.tolist()
    [1.5, 1.0, 3.0]
    """
    steps = _read_steps("gae", reward, done, terminated, mask, (value, next_value))
    gamma = _as_array(as_fraction(gamma, "gamma", "gae"), steps.dtype)
    lam = _as_array(as_fraction(lam, "lam", "gae"), steps.dtype)
    now, after = _value("value", value, steps), _value("next_value", next_value, steps)
    zero, real = jnp.zeros_like(now), aligned(steps.real, now)
    delta = steps.reward + gamma * jnp.where(aligned(steps.terminated, now), zero, after) - now
    follows = jnp.where(aligned(steps.cut, now), jnp.zeros_like(gamma), gamma * lam)
    advantage = backwards(follows, jnp.where(real, delta, zero))
    return advantage, jnp.where(real, advantage + now, zero)


# The recurrence


def backwards(factor: jax.Array, added: jax.Array) -> jax.Array:
    """x[t] = added[t] + factor[t] * x[t + 1], and 0 after the last step; time is the first axis.

    A CPU computes it step by step: for 2,048 steps this is five times as fast as
    `lax.associative_scan`, and compiles in a tenth of a second instead of two. A GPU would start a
    kernel for every step (37 ms), so it computes windows of 1, 2, 4, ... steps (0.07 ms).
    """
    factor = jnp.broadcast_to(factor, added.shape)
    return by_platform(factor, added, cpu=_one_by_one, default=_by_doubling)


def _one_by_one(factor: jax.Array, added: jax.Array) -> jax.Array:
    def one(after: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x = _and_then(step[1], step[0], after)
        return x, x

    start = jnp.zeros_like(added[0])
    return lax.scan(one, start, (factor, added), reverse=True)[1]


def _by_doubling(factor: jax.Array, added: jax.Array) -> jax.Array:
    return _window(factor, added, added.shape[0])


def _window(factor: jax.Array, added: jax.Array, n: int) -> jax.Array:
    """x[t] of the recurrence over only n steps: joins windows of 1, 2, 4, ... steps."""
    total, reach, power = None, 0, 1
    product: Any = None  # the product of the factors over the `reach` steps of `total`
    while True:
        if n & power:
            if total is None:
                total, product = added, factor
            else:
                total = _and_then(total, product, _later(added, reach))
                product = product * _later(factor, reach)
            reach += power
        if reach == n:
            assert total is not None
            return total
        further = _and_then(added, factor, _later(added, power))
        # Without the barrier, XLA computes each window again inside each later window.
        factor, added = lax.optimization_barrier((factor * _later(factor, power), further))
        power *= 2


def _and_then(added: jax.Array, factor: jax.Array, after: jax.Array) -> jax.Array:
    """added + factor * after. Where the factor is 0, another episode comes after: if it has a NaN
    or an infinite reward, that is no matter of this one. (0 * NaN would be NaN.)"""
    other = (factor == 0) & ~jnp.isfinite(after)
    return added + factor * jnp.where(other, jnp.zeros_like(after), after)


def _later(x: jax.Array, n: int, *, fill: Any = 0) -> jax.Array:
    """The array shifted by n steps: at t, the value of step t + n."""
    n = min(n, x.shape[0])
    return jnp.concatenate([x[n:], jnp.full((n, *x.shape[1:]), fill, x.dtype)])


# What users pass


class _Steps(NamedTuple):
    reward: jax.Array  # 0 where masked
    done: jax.Array
    terminated: jax.Array
    real: jax.Array
    cut: jax.Array  # whether later steps do not count for this step and those before it

    @property
    def dtype(self) -> Any:
        return self.reward.dtype


def _read_steps(
    owner: str, reward: Any, done: Any, terminated: Any, mask: Any, values: tuple[Any, ...] = ()
) -> _Steps:
    reward, done = jnp.asarray(reward), jnp.asarray(done).astype(jnp.bool_)
    if not reward.ndim or not reward.shape[0]:
        raise UsageError(
            f"`{owner}` works on steps in a row, the first axis of arrays, got a reward of shape "
            f"{reward.shape}; pass arrays `[T, ...]`."
        )
    check_leads(owner, "done", done, "reward", reward)
    ended = done if terminated is None else _flags(owner, "terminated", terminated, done) & done
    real = jnp.ones_like(done) if mask is None else _flags(owner, "mask", mask, done)
    dtype = np.result_type(*(at_least_float32(jnp.asarray(x).dtype) for x in (reward, *values)))
    reward = reward.astype(dtype)
    reward = jnp.where(aligned(real, reward), reward, jnp.zeros_like(reward))
    return _Steps(reward, done, ended, real, done | ~real)


def _flags(owner: str, name: str, flags: Any, done: jax.Array) -> jax.Array:
    """True or False per step, with as many axes as `done`."""
    flags = jnp.asarray(flags).astype(jnp.bool_)
    check_leads(owner, name, flags, "done", done)
    return jnp.broadcast_to(aligned(flags, done), done.shape)


def check_leads(owner: str, name: str, x: jax.Array, of: str, whole: jax.Array) -> None:
    """Refuses an array whose axes are not the first axes of another one."""
    if not x.ndim or whole.shape[: x.ndim] != x.shape:
        raise UsageError(
            f"`{owner}`: `{name}` of shape {x.shape} does not belong to `{of}` of shape "
            f"{whole.shape}; both begin with the axis of time, and `{name}` has the same axes or "
            f"the first of them."
        )


def _value(name: str, value: Any, steps: _Steps) -> jax.Array:
    value = jnp.asarray(value)
    if value.shape != steps.reward.shape:
        raise UsageError(
            f"`gae`: `{name}` of shape {value.shape} is not one value per step, of shape "
            f"{steps.reward.shape} as the reward; if the critic has a last axis of 1, write "
            f"`[..., 0]`."
        )
    return value.astype(steps.dtype)


def aligned(x: jax.Array, whole: Any) -> jax.Array:
    """The array with axes of length 1 added at the end, so that it broadcasts over `whole`."""
    return x.reshape(x.shape + (1,) * (whole.ndim - x.ndim))


def _is_last(real: jax.Array) -> jax.Array:
    """True at the last step that is not masked."""
    count = real.astype(jnp.int32)
    return real & (backwards(jnp.ones_like(count), count) == 1)


def _at(leaf: Any, index: jax.Array) -> jax.Array:
    leaf = jnp.asarray(leaf)
    if leaf.shape[: index.ndim] != index.shape:
        raise UsageError(
            f"`n_step_returns`: `next_state` has an array of shape {leaf.shape}, but there is one "
            f"observation for each `done`, of shape {index.shape}; pass `[T, ...]`, as stacked."
        )
    return jnp.take_along_axis(leaf, aligned(index, leaf), axis=0, mode="promise_in_bounds")


def _as_array(number: Any, dtype: Any) -> jax.Array:
    return jnp.asarray(number).astype(dtype)


def as_fraction(value: Any, name: str, owner: str) -> Any:
    """A number from 0 to 1: a Python number, or a JAX scalar, which may be traced."""
    wrong = f"{owner}: `{name}` must be a number from 0 to 1, got "
    if isinstance(value, jax.Array):
        if value.shape or not jnp.issubdtype(value.dtype, jnp.floating):
            raise PipelineError(
                f"{wrong}{format_spec(value)}; for many at once, `jax.vmap` over `{name}`."
            )
        if is_traced(value):
            return value
    elif np.shape(value) or np.asarray(value).dtype.kind not in "iuf":
        raise PipelineError(f"{wrong}{type(value).__name__} ({value!r:.60}).")
    if not 0 <= float(value) <= 1:
        raise PipelineError(f"{wrong}{value}.")
    return value if isinstance(value, jax.Array) else float(value)
