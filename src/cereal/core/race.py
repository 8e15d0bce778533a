"""Weighted sampling without replacement, as a race: the same in NumPy and in JAX, to the bit.

Every element runs for a time that is exponentially distributed, divided by its weight; the order
in which they finish is that of drawing one after another, by weight, from those that are left.

Logarithms of NumPy and of XLA differ in their last bits, and could exchange two runners. So the
time is a logarithm in whole numbers, by a table, and what follows is one product and one
comparison of floats, which all machines round alike.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .threefry import threefry

_BITS = 12
_ONE = 1 << 26
_LOG = np.round(np.log2(1 + np.arange((1 << _BITS) + 1) / (1 << _BITS)) * _ONE).astype(np.uint32)


def finish_order(key: Any, epochs: Any, slowness: Any) -> Any:
    """The indices of all elements in the order of their drawing, [epochs, n]."""
    n = slowness.shape[0]
    if isinstance(epochs, np.ndarray):
        index = np.arange(n, dtype=np.uint32)
        epoch, index = np.broadcast_arrays(epochs[:, None], index[None, :])
        log = _minus_log(np, threefry(key, (epoch, index))[0])
        time = log.astype(np.float32) * np.asarray(slowness)[None, :]
        return np.argsort(time, axis=1, kind="stable")
    index = jnp.arange(n, dtype=jnp.uint32)
    epoch, index = jnp.broadcast_arrays(epochs[:, None], index[None, :])
    log = _minus_log(jnp, threefry(key, (epoch, index))[0])
    time = log.astype(jnp.float32) * jnp.asarray(slowness)[None, :]
    return jnp.argsort(time, axis=1, stable=True)


def _minus_log(xp: Any, words: Any) -> Any:
    """-log2(word / 2^32) in units of 2^-26, at least 1."""
    words = xp.maximum(words, np.uint32(1))
    zeros = _leading_zeros(xp, words)
    mantissa = (words << zeros) & np.uint32(0x7FFF_FFFF)
    cell = mantissa >> np.uint32(31 - _BITS)
    within = (mantissa >> np.uint32(31 - 2 * _BITS)) & np.uint32((1 << _BITS) - 1)
    table = xp.asarray(_LOG)
    low, high = table[cell.astype(np.int32)], table[cell.astype(np.int32) + 1]
    log = low + ((high - low) * within >> np.uint32(_BITS))
    return zeros * np.uint32(_ONE) + (np.uint32(_ONE) - log) + np.uint32(1)


def _leading_zeros(xp: Any, words: Any) -> Any:
    if xp is jnp:
        return lax.clz(words)
    return (32 - np.frexp(words.astype(np.float64))[1]).astype(np.uint32)
