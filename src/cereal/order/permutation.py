"""A shuffled order that is computed, never stored.

    position in the epoch  --permute-->  index in the data

This is a keyed bijection of [0, n). Each position is computed by itself: there is no table and no
sort, and position 10^9 costs as much as position 0. It is the swap-or-not network. In each round, a
position x has the partner (K - x) mod n. One random bit, the same for both, decides whether the
two change places.

    round r:   x ------------------.
                \\                   > bit(max(x, partner)) ? partner : x
                 `-> (K_r - x) % n '

The bits come from a hash of 32 bits. The constants of the rounds come from Threefry, one set per
epoch, so epochs and keys are unrelated. Neighbours stay neighbours with probability 2^-rounds, so
the number of rounds must be well above log2(n): 40 rounds are enough for 31 bits. On the host,
longer data use the same network with 64-bit words and 80 rounds.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..base.errors import PipelineError
from ..device.explicit_axes import gathered
from ..device.platforms import by_platform
from .threefry import ORDER, threefry
from .words64 import high_word

ROUNDS = 40
ROUNDS_64 = 80
MAX_TRACED = 2**31 - 1
MAX_HOST = 2**62  # sums of two positions still fit NumPy's int64
_GROUP = 10

_C1, _C2 = 0x7FEB352D, 0x846CA68B
_C1_64, _C2_64 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

Words = Any  # uint32 arrays, of NumPy or of JAX
Pair = tuple[Words, Words]


def round_constants(key: Pair, epochs: Words, n: int, rounds: int = ROUNDS) -> Pair:
    """The constants K and the hash salts of each round, one column per epoch: [rounds, E]."""
    xp = np if isinstance(epochs, np.ndarray) else jnp
    if n > MAX_TRACED:
        if xp is jnp:
            raise PipelineError(
                f"a shuffled order of {n} elements needs 64-bit positions, which compiled code "
                f"does not have; at most {MAX_TRACED} elements can be shuffled there."
            )
        return _round_constants_64(key, epochs, n, max(rounds, ROUNDS_64))
    number = ORDER | xp.arange(rounds, dtype=xp.uint32)
    epoch, number = xp.broadcast_arrays(epochs[None, :], number[:, None])
    first, salt = threefry(key, (epoch, number))
    if xp is np:
        return ((first.astype(np.uint64) * np.uint64(n)) >> np.uint64(32)).astype(np.uint32), salt
    return high_word(first, np.uint32(n)), salt


def permute(position: Words, column: Words, constants: Pair, n: int) -> Words:
    """The index at each position, in the epoch whose constants stand in its `column`.

    `position` and `column` are arrays of one shape; a position must be less than `n`.
    """
    if n == 1:
        return position.astype(np.int64 if isinstance(position, np.ndarray) else np.int32)
    if isinstance(position, np.ndarray):
        word = np.uint64 if n > MAX_TRACED else np.uint32
        index = position.astype(word)
        for constant, salt in zip(*constants, strict=True):
            index = round_numpy(index, constant[column], salt[column], word(n))
        return index.astype(np.int64)
    return _permute_traced(position.astype(jnp.uint32), column, constants, n).astype(jnp.int32)


def _permute_traced(position: Words, column: Words, constants: Pair, n: int) -> Words:
    def rolled(position: Words, column: Words, constants: Any) -> Words:
        def one_round(position: Words, row: Pair) -> tuple[Words, None]:
            constant, salt = (_of_lane(word, column) for word in row)
            return round_traced(position, constant, salt, np.uint32(n)), None

        return lax.scan(one_round, position, constants, unroll=2)[0]

    def unrolled(position: Words, column: Words, constants: Any) -> Words:
        # All groups do the same computation with other constants, so XLA compiles one kernel for
        # them. The barriers prevent XLA from fusing a group with the next one.
        for first in range(0, constants[0].shape[0], _GROUP):
            group = tuple(words[first : first + _GROUP] for words in constants)
            position, group = lax.optimization_barrier((position, group))
            lanes = [_of_lane(words.T, column) for words in group]  # [lanes, rounds]
            for number in range(group[0].shape[0]):
                constant, salt = (lax.index_in_dim(w, number, -1, keepdims=False) for w in lanes)
                position = round_traced(position, constant, salt, np.uint32(n))
        return position

    # On the CPU, XLA would fuse unrolled rounds into the code that uses the batch, and compute them
    # once per pixel. It cannot fuse a loop. On a GPU, a loop waits for the host in every round.
    return by_platform(position, column, constants, cpu=rolled, default=unrolled)


def _of_lane(table: Words, column: Words) -> Words:
    """table[column]; a select instead of a gather if there are at most two columns."""
    shape = (*column.shape, *table.shape[1:])
    if table.shape[0] > 2:
        return gathered(table, column)
    first = jnp.broadcast_to(table[0], shape)
    if table.shape[0] == 1:
        return first
    is_first = lax.broadcast_in_dim(column == 0, shape, range(column.ndim))
    return lax.select(is_first, first, jnp.broadcast_to(table[1], shape))


def inverse(constants: Pair) -> Pair:
    """The constants with which `permute` finds the position of an index.

    A round that is done twice changes nothing. So the inverse has the same rounds, last one first.
    """
    return constants[0][::-1], constants[1][::-1]


def round_numpy(x: Words, constant: Words, salt: Words, n: Words) -> Words:
    """One round, in NumPy, with words of 32 or 64 bits."""
    word = x.dtype.type
    first, second, half = (_C1, _C2, 16) if word is np.uint32 else (_C1_64, _C2_64, 32)
    below = constant - x
    partner = np.where(constant < x, below + n, below)
    hashed = (np.maximum(x, partner) ^ salt) * word(first)
    hashed = (hashed ^ (hashed >> word(half))) * word(second)
    return np.where(hashed >= word(1 << (2 * half - 1)), partner, x)


def round_traced(x: Words, constant: Words, salt: Words, n: Words) -> Words:
    """One round, in JAX."""
    # With `lax` there are a third of the operations that `jnp` would make, so 40 rounds compile in
    # a third of the time.
    below = lax.sub(constant, x)
    partner = lax.select(lax.lt(constant, x), lax.add(below, n), below)
    hashed = lax.mul(lax.bitwise_xor(lax.max(x, partner), salt), np.uint32(_C1))
    shifted = lax.shift_right_logical(hashed, np.uint32(16))
    hashed = lax.mul(lax.bitwise_xor(hashed, shifted), np.uint32(_C2))
    return lax.select(lax.ge(hashed, np.uint32(2**31)), partner, x)


def _round_constants_64(key: Pair, epochs: Words, n: int, rounds: int) -> Pair:
    number = np.arange(2 * rounds, dtype=np.uint32) | ORDER
    epoch, number = np.broadcast_arrays(epochs[None, :].astype(np.uint32), number[:, None])
    high, low = (words.astype(np.uint64) for words in threefry(key, (epoch, number)))
    words = (high << np.uint64(32)) | low
    constant = [[int(word) * n >> 64 for word in row] for row in words[:rounds]]
    return np.array(constant, np.uint64), words[rounds:]
