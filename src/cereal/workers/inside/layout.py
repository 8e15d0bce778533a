"""Where the arrays of a batch lie in a piece of shared memory; loader and worker agree on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

ALIGNMENT = 64  # JAX on the CPU uses an array that begins at such a place without a copy

Leaf = tuple[tuple[int, ...], np.dtype[Any]]  # shape and dtype


def size_of(leaves: Sequence[Leaf], count: int) -> int:
    """The bytes that `count` steps need."""
    return sum(_padded(leaf, count) for leaf in leaves)


def views(memory: np.ndarray, leaves: Sequence[Leaf], count: int) -> list[np.ndarray]:
    """The arrays of `count` steps, [count, *shape] each, in this memory."""
    found, begin = [], 0
    for leaf in leaves:
        shape, dtype = leaf
        end = begin + count * math.prod(shape) * dtype.itemsize
        found.append(memory[begin:end].view(dtype).reshape(count, *shape))
        begin += _padded(leaf, count)
    return found


def _padded(leaf: Leaf, count: int) -> int:
    size = count * math.prod(leaf[0]) * leaf[1].itemsize
    return -(-size // ALIGNMENT) * ALIGNMENT
