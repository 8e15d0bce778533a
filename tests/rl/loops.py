"""Returns and advantages as plain loops over the steps of one environment."""

from __future__ import annotations

from typing import Any

import numpy as np


def loop_to_go(
    reward: Any, done: Any, gamma: float, bootstrap: float | None = None, mask: Any = None
) -> np.ndarray:
    """Rewards to the end of the episode, step by step."""
    size = len(reward)
    mask = np.ones(size, bool) if mask is None else mask
    result = np.zeros(size)
    for start in range(size):
        total, weight, t = 0.0, 1.0, start
        while t < size and mask[t]:
            total += weight * float(reward[t])
            weight *= gamma
            if done[t]:
                break
            t += 1
        else:
            if mask[start] and not mask[t:].any() and bootstrap is not None:
                total += weight * bootstrap
        result[start] = total
    return result


def loop_n_step(
    reward: Any, done: Any, n: int, gamma: float, terminated: Any = None, mask: Any = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The sum of n rewards, the step after which it bootstraps, and the discount."""
    size = len(reward)
    terminated = done if terminated is None else terminated
    mask = np.ones(size, bool) if mask is None else mask
    total, last, discount = np.zeros(size), np.arange(size), np.zeros(size)
    for start in range(size):
        for k in range(n):
            t = start + k
            if t >= size or not mask[t]:
                break
            total[start] += gamma**k * float(reward[t])
            last[start], discount[start] = t, gamma ** (k + 1)
            if done[t]:
                discount[start] *= not terminated[t]
                break
    return total, last, discount


def loop_gae(
    steps: tuple[Any, Any, Any, Any],
    gamma: float,
    lam: float,
    terminated: Any = None,
    mask: Any = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Advantages from the last step to the first; steps are (reward, done, value, next_value)."""
    reward, done, value, after = steps
    size = len(reward)
    terminated = done if terminated is None else terminated
    mask = np.ones(size, bool) if mask is None else mask
    advantage, returns, running = np.zeros(size), np.zeros(size), 0.0
    for t in reversed(range(size)):
        if not mask[t]:
            running = 0.0
            continue
        ahead = 0.0 if done[t] and terminated[t] else float(after[t])
        delta = float(reward[t]) + gamma * ahead - float(value[t])
        running = delta if done[t] else delta + gamma * lam * running
        advantage[t], returns[t] = running, running + float(value[t])
    return advantage, returns


def loop_episodes(reward: Any, done: Any, mask: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Return and length of the running episode of one environment."""
    size = len(reward)
    mask = np.ones(size, bool) if mask is None else mask
    totals, lengths, total, length = np.zeros(size), np.zeros(size, int), 0.0, 0
    for t in range(size):
        if mask[t]:
            total, length = total + float(reward[t]), length + 1
        totals[t], lengths[t] = total, length
        if mask[t] and done[t]:
            total, length = 0.0, 0
    return totals, lengths


def per_column(loop: Any, *arrays: Any) -> Any:
    """A loop over `[T, N]` arrays, an environment at a time, stacked."""
    columns = [loop(*(a[:, k] for a in arrays)) for k in range(arrays[0].shape[1])]
    if isinstance(columns[0], tuple):
        return tuple(np.stack(each, axis=1) for each in zip(*columns, strict=True))
    return np.stack(columns, axis=1)
