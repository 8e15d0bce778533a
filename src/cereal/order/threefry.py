"""All random numbers come from here: Threefry-2x32, with the same bits in NumPy and in JAX.

Every random decision of a pipeline encrypts one counter:

    key (2 words), counter (2 words)  ->  2 random words

So no decision depends on another one. The top bits of a counter's second word say what the random
words are for; counters for different uses are never equal:

    order of an epoch      counter (epoch, ORDER | round)
    key of a random stage  counter (stage, STAGE)
    key of an element      counter (epoch, index), under the key of its stage
    ... with a high word   those words, plus the high word, under a key of AGAIN
    a key of four words    counter (word 0, word 1), under words 2 and 3
    key of a part          counter (number, PART): of a source that is joined with others
    key of a purpose       counter (salt, purpose): DRAW, MIX, BLOCK; then counters of its own
    key of an environment  counter (number, 0), under the key of ROLLOUT; then counters of its own
"""

from __future__ import annotations

from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

from ..device.explicit_axes import explicit_mesh

ORDER = np.uint32(0x4F00_0000)
STAGE = np.uint32(0x5300_0000)
PART = np.uint32(0x5000_0000)
DRAW = np.uint32(0x4400_0000)
MIX = np.uint32(0x4D00_0000)
BLOCK = np.uint32(0x4200_0000)
ROLLOUT = np.uint32(0x5200_0000)
AGAIN = np.uint32(0x4100_0000)

_PARITY = np.uint32(0x1BD1_1BDA)
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))

Words = Any  # uint32 arrays, of NumPy or of JAX


def threefry(key: tuple[Words, Words], counter: tuple[Words, Words]) -> tuple[Words, Words]:
    """Encrypts counters (arrays of one shape) under one key (two scalars)."""
    if all(isinstance(word, np.ndarray | np.generic) for word in (*key, *counter)):
        return _threefry_numpy(key, counter)
    high, low = (jnp.asarray(word, jnp.uint32) for word in counter)
    high, low = jnp.broadcast_arrays(high, low)
    if explicit_mesh(high, low) is not None:
        # Under `vmap` over an axis of the mesh, JAX 0.11 cannot concatenate a mapped array and an
        # unmapped one. This makes both of them mapped, with the same values.
        high, low = high ^ (low ^ low), low ^ (high ^ high)
    # JAX's own primitive is one kernel on a GPU, and a loop on the CPU. (XLA would fuse unrolled
    # rounds into all code that uses them, and compute them once per pixel.)
    blocks = jax.extend.random.threefry_2x32(
        jnp.stack([jnp.asarray(word, jnp.uint32) for word in key]),
        jnp.concatenate([high.ravel(), low.ravel()]),
    )
    first, second = jnp.split(blocks, 2)
    return first.reshape(high.shape), second.reshape(high.shape)


def key_for(key: tuple[Words, Words], number: int, purpose: np.uint32) -> tuple[Words, Words]:
    """The key for one of the uses above."""
    host = all(isinstance(word, np.ndarray | np.generic) for word in key)
    word = np.uint32(number)
    return threefry((key[0], key[1]), (word if host else jnp.asarray(word), purpose))


def _threefry_numpy(key: tuple[Words, Words], counter: tuple[Words, Words]) -> tuple[Words, Words]:
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
