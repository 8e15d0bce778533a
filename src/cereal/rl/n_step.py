"""The n-step return of the first step of each window; time is the last axis.

reward   1    1    1  |            returns    1 + gamma + gamma**2
done     .    .    .  |            last       2, the step whose next state is bootstrapped
                      |            discount   gamma**3

reward   1    1  |  9              returns    1 + gamma
done     .    x  |  .              last       1
                                   discount   0 if it terminated, gamma**2 if it was truncated
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..base.errors import UsageError
from ..base.spec import at_least_float32
from .returns import as_fraction

_OWNER = "n_step_of_window"


def n_step_of_window(
    reward: Any, done: Any, terminated: Any, n: int, gamma: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Of each window `[..., n]`: its n-step return, its last step, and the discount after it.

        returns [...]    the discounted sum of the rewards up to the end of the episode
        last [...]       the number of the last step that was summed, from 0 to n - 1
        discount [...]   gamma**(last + 1), or 0 if the episode terminated there

        target = returns + discount * value(next_state[..., last])

    They are those that `n_step_returns` gives the first step of a segment. What follows an end of
    an episode is not used, whatever it is: it may be of another episode, or padding.

    >>> import jax.numpy as jnp
    >>> from cereal.rl.n_step import n_step_of_window
    >>> done = jnp.array([[False, False, False], [False, True, False]])
    >>> returns, last, discount = n_step_of_window(jnp.ones((2, 3)), done, done, 3, 0.5)
    >>> returns.tolist(), last.tolist(), discount.tolist()
    ([1.75, 1.5], [2, 1], [0.125, 0.0])
    """
    reward, done, terminated = jnp.asarray(reward), jnp.asarray(done), jnp.asarray(terminated)
    for name, part in (("reward", reward), ("done", done), ("terminated", terminated)):
        if part.shape != reward.shape or part.shape[-1:] != (n,):
            raise UsageError(
                f"`{_OWNER}`: `{name}` has shape {part.shape}, but all three must have one shape "
                f"`[..., {n}]`, with the n={n} steps of a window last."
            )
    dtype = at_least_float32(reward.dtype)
    reward, done = reward.astype(dtype), done.astype(jnp.bool_)
    gamma = jnp.asarray(as_fraction(gamma, "gamma", _OWNER)).astype(dtype)
    ends = done.astype(jnp.int32)
    counts = jnp.cumsum(ends, axis=-1, dtype=jnp.int32) == ends  # no end before this step
    powers = lax.pow(jnp.broadcast_to(gamma, (n + 1,)), jnp.arange(n + 1).astype(dtype))
    rewards = jnp.where(counts, reward, jnp.zeros_like(reward))
    returns = jnp.sum(rewards * jnp.broadcast_to(powers[:-1], rewards.shape), axis=-1)
    last = jnp.sum(counts, axis=-1, dtype=jnp.int32) - 1
    ended = jnp.any(counts & done & terminated.astype(jnp.bool_), axis=-1)
    power = powers.at[last + 1].get(mode="promise_in_bounds")
    return returns, last, jnp.where(ended, jnp.zeros_like(power), power)
