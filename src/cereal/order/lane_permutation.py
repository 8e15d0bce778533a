"""Many permutations at once: each lane has its own permutation, of its own length.

    lane    position   seed (2 words)   n          index
    0       5          ...              1,000  ->  731
    1       5          ...              48     ->  12

The network is that of `permutation`. The constants of a round are a hash of the lane's seed; they
are not looked up by epoch. So a batch from a thousand shuffled sources costs as much as a batch
from one.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..device.platforms import by_platform
from .permutation import ROUNDS, round_numpy, round_traced
from .words64 import high_word

_GROUP = 10
_STEP = np.uint32(0x9E37_79B9)
_C1, _C2 = np.uint32(0x21F0_AAAD), np.uint32(0xD35A_2D97)

Words = Any  # uint32 arrays, of NumPy or of JAX


def permute_lanes(position: Words, seeds: tuple[Words, Words], n: Words) -> Words:
    """The index at each position (below the lane's n) of each lane's permutation."""
    if isinstance(position, np.ndarray):
        index, n = position.astype(np.uint32), np.broadcast_to(n, position.shape)
        for number in range(ROUNDS):
            step = np.full(1, number, np.uint32) * _STEP
            constant = high_word(_hash(seeds[0] + step), n)
            index = round_numpy(index, constant, _hash(seeds[1] ^ step), n)
        return index.astype(np.int64)
    n = jnp.broadcast_to(n, position.shape)
    return _permute_traced(position.astype(jnp.uint32), *seeds, n).astype(jnp.int32)


def _permute_traced(position: Words, first: Words, second: Words, n: Words) -> Words:
    def one_round(position: Words, step: Words, first: Words, second: Words, n: Words) -> Words:
        step = jnp.broadcast_to(step, position.shape)
        constant = high_word(_hash_traced(lax.add(first, step)), n)
        salt = _hash_traced(lax.bitwise_xor(second, step))
        return round_traced(position, constant, salt, n)

    def rolled(position: Words, first: Words, second: Words, n: Words) -> Words:
        def body(position: Words, step: Words) -> tuple[Words, None]:
            return one_round(position, step, first, second, n), None

        return lax.scan(body, position, jnp.arange(ROUNDS, dtype=jnp.uint32) * _STEP, unroll=2)[0]

    def unrolled(position: Words, first: Words, second: Words, n: Words) -> Words:
        # As in `permutation`: groups that differ only in one operand are compiled once.
        for group in range(0, ROUNDS, _GROUP):
            start = jnp.full((), group, jnp.uint32) * _STEP
            position, start = lax.optimization_barrier((position, start))
            for number in range(_GROUP):
                step = start + np.uint32(number * int(_STEP) & 0xFFFF_FFFF)
                position = one_round(position, step, first, second, n)
        return position

    return by_platform(position, first, second, n, cpu=rolled, default=unrolled)


def _hash(x: Words) -> Words:
    x = (x ^ (x >> np.uint32(16))) * _C1
    x = (x ^ (x >> np.uint32(15))) * _C2
    return x ^ (x >> np.uint32(15))


def _hash_traced(x: Words) -> Words:
    x = lax.mul(lax.bitwise_xor(x, lax.shift_right_logical(x, np.uint32(16))), _C1)
    x = lax.mul(lax.bitwise_xor(x, lax.shift_right_logical(x, np.uint32(15))), _C2)
    return lax.bitwise_xor(x, lax.shift_right_logical(x, np.uint32(15)))
