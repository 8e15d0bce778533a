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
    key of a buffer        counter (number, REPLAY); then counters of its own
"""

from __future__ import annotations

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

from ..device.explicit_axes import explicit_mesh
from ..reading.threefry import AGAIN as AGAIN
from ..reading.threefry import PART as PART
from ..reading.threefry import STAGE as STAGE
from ..reading.threefry import Words, set_jax_half
from ..reading.threefry import key_for as key_for
from ..reading.threefry import threefry as threefry

ORDER = np.uint32(0x4F00_0000)
DRAW = np.uint32(0x4400_0000)
MIX = np.uint32(0x4D00_0000)
BLOCK = np.uint32(0x4200_0000)
ROLLOUT = np.uint32(0x5200_0000)
REPLAY = np.uint32(0x4500_0000)


def _in_jax(key: tuple[Words, Words], counter: tuple[Words, Words]) -> tuple[Words, Words]:
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


set_jax_half(_in_jax)
