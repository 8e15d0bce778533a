"""Weighted sampling without replacement, as a race: the same bits in NumPy and in JAX.

Every element gets a random time, exponentially distributed, divided by its weight. To sort the
elements by time is the same as to draw them one after another, by weight, from those that are left.

The logarithms of NumPy and XLA differ in their last bits, which could exchange two elements. So the
logarithm is computed in whole numbers, from a table. Elements of small weight come first only with
a very short time, so the shortest times use both random words, for more digits. All that follows
are products and comparisons of floats, which all machines round in the same way.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..device.explicit_axes import gathered
from .threefry import threefry

_BITS = 12
_UNIT = 26  # times in units of 2^-26
_FINE = 44  # the shortest, in units of 2^-44
_SHORT = np.uint32(1 << 19)
_LN2 = np.uint32(round(np.log(2) * 2**_UNIT))
_LOG = np.round(np.log1p(np.arange((1 << _BITS) + 1) / (1 << _BITS)) * 2**_UNIT).astype(np.uint32)
# Smaller weights (relative to the largest) are raised to this one: products then fit float32.
LEAST_WEIGHT = 1e-36


def finish_order(key: Any, epochs: Any, slowness: Any) -> Any:
    """The indices of all elements in the order of their drawing, [epochs, n]."""
    xp = np if isinstance(epochs, np.ndarray) else jnp
    index = xp.arange(slowness.shape[0], dtype=np.uint32)
    epoch, index = xp.broadcast_arrays(epochs[:, None], index[None, :])
    time = _exponential(xp, *threefry(key, (epoch, index))) * xp.asarray(slowness)[None, :]
    return xp.argsort(time, axis=1, stable=True)


def slowness_of(weights: np.ndarray) -> np.ndarray:
    """The factor of an element's time: one over its weight; infinity if the weight is 0."""
    share = weights / weights.max()
    with np.errstate(divide="ignore"):
        slow = np.where(weights > 0, 1 / np.maximum(share, LEAST_WEIGHT), np.inf)
    return slow.astype(np.float32)


def _exponential(xp: Any, first: Any, second: Any) -> Any:
    """-log(first / 2^32) as float32: a whole number times a power of two."""
    first = xp.maximum(first, np.uint32(1))
    usual = _minus_log(xp, first).astype(np.float32) * np.float32(2.0**-_UNIT)
    # For small x, -log(1 - x) is about x + x^2 / 2. The second word gives x more digits.
    x = xp.zeros_like(first) - first
    half = (x >> np.uint32(6)) * (x >> np.uint32(6)) >> np.uint32(9)
    inside = xp.minimum(x, _SHORT) - np.uint32(1)
    behind = (second ^ np.uint32(0xFFFF_FFFF)) >> np.uint32(20)
    fine = (inside << np.uint32(12)) + behind + half + np.uint32(1)
    short = fine.astype(np.float32) * np.float32(2.0**-_FINE)
    return xp.where(x <= _SHORT, short, usual)


def _minus_log(xp: Any, words: Any) -> Any:
    """-log(word / 2^32) in units of 2^-26."""
    if xp is jnp:
        zeros = lax.clz(words)
    else:
        zeros = (32 - np.frexp(words.astype(np.float64))[1]).astype(np.uint32)
    mantissa = (words << zeros) & np.uint32(0x7FFF_FFFF)
    cell = (mantissa >> np.uint32(31 - _BITS)).astype(np.int32)
    within = (mantissa >> np.uint32(31 - 2 * _BITS)) & np.uint32((1 << _BITS) - 1)
    table = xp.asarray(_LOG)
    low, high = gathered(table, cell), gathered(table, cell + 1)
    log = low + ((high - low) * within >> np.uint32(_BITS))
    return zeros * _LN2 + (_LN2 - log)
