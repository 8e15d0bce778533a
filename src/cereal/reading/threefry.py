"""Threefry-2x32 in NumPy. `order/threefry.py` says what it is used for, and has the JAX half."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

STAGE = np.uint32(0x5300_0000)
PART = np.uint32(0x5000_0000)
AGAIN = np.uint32(0x4100_0000)

_PARITY = np.uint32(0x1BD1_1BDA)
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))

Words = Any  # uint32 arrays, of NumPy or of JAX
_Encrypts = Callable[[tuple[Words, Words], tuple[Words, Words]], tuple[Words, Words]]
_for_jax: list[_Encrypts] = []


def set_jax_half(encrypt: _Encrypts) -> None:
    """Says how arrays of JAX are encrypted. (Where JAX was not imported, there are none.)"""
    _for_jax[:] = [encrypt]


def threefry(key: tuple[Words, Words], counter: tuple[Words, Words]) -> tuple[Words, Words]:
    """Encrypts counters (arrays of one shape) under one key (two scalars)."""
    if all(isinstance(word, np.ndarray | np.generic) for word in (*key, *counter)):
        return _in_numpy(key, counter)
    return _for_jax[0](key, counter)


def key_for(key: tuple[Words, Words], number: int, purpose: np.uint32) -> tuple[Words, Words]:
    """The key for one of the uses that `order/threefry.py` lists."""
    return threefry((key[0], key[1]), (np.uint32(number), purpose))


def _in_numpy(key: tuple[Words, Words], counter: tuple[Words, Words]) -> tuple[Words, Words]:
    # Sums must wrap around. NumPy does this silently for arrays, but warns for scalars.
    shape = np.broadcast_shapes(np.shape(counter[0]), np.shape(counter[1]))
    schedule = [np.atleast_1d(np.asarray(word, np.uint32)) for word in key]
    schedule.append(schedule[0] ^ schedule[1] ^ _PARITY)
    first, second = (np.atleast_1d(np.asarray(word, np.uint32)) for word in counter)
    first, second = first + schedule[0], second + schedule[1]
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            first = first + second
            second = (second << np.uint32(distance)) | (second >> np.uint32(32 - distance))
            second = second ^ first
        first = first + schedule[(group + 1) % 3]
        second = second + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return first.reshape(shape), second.reshape(shape)
