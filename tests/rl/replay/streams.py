"""Streams whose steps say who they are, and loaders with a buffer over them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tests.rl.played import played

import cereal

KEY = jax.random.key(5)


def numbered(steps: int, envs: int = 1, ends: Any = (), seed: int = 0) -> dict[str, Any]:
    """Steps `[T, N]` (or `[T]`): `state` is (t, environment); episodes end at steps `ends`."""
    shape = (steps, envs) if envs > 1 else (steps,)
    t = np.broadcast_to(np.arange(steps).reshape(-1, *(1,) * (len(shape) - 1)), shape)
    e = np.broadcast_to(np.arange(envs)[: shape[-1]] if envs > 1 else 0, shape)
    done = np.isin(t, list(ends)) if not callable(ends) else ends(t, e)
    rng = np.random.default_rng(seed)
    return {
        "state": np.stack([t, e], -1).astype(np.int32),
        "reward": rng.normal(size=shape).astype(np.float32),
        "next_state": np.stack([t + 1, e], -1).astype(np.int32),
        "done": done,
    }


def replaying(steps: Any, capacity: int, *, envs: int = 1, **options: Any) -> Any:
    """A loader over these steps, played again and again, with a buffer."""
    options.setdefault("batch_size", 8)
    replay = cereal.ReplayTransform(capacity, num_envs=envs, **options)
    return cereal.DataLoader([played(steps), replay])


def batches_of(loader: Any, steps: int, key: Any = KEY) -> Any:
    """(batch, mask) of so many steps, stacked, as NumPy arrays."""
    _, _, made = loader.scan_epoch(
        loader.init_state(key), None, lambda carry, batch, mask: (carry, (batch, mask)), steps=steps
    )
    return jax.tree.map(np.asarray, made)


def pairs(states: Any) -> set[tuple[int, int]]:
    """The steps (t, environment) of states `[..., 2]`."""
    return set(map(tuple, np.asarray(states).reshape(-1, 2).tolist()))


def same(one: Any, other: Any) -> bool:
    both = jax.tree.leaves(one), jax.tree.leaves(other)
    return all(bool(jnp.array_equal(a, b)) for a, b in zip(*both, strict=True))
