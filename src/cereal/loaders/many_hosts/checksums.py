"""Checksums of arrays, by which processes compare what they hold."""

from __future__ import annotations

import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

from ...device.transfer import to_host

_MOST_BYTES = 256 * 2**20
_PIECES, _PIECE = 64, 1 << 20


def checksum(array: jax.Array, start: int = 0) -> int:
    """The CRC-32 of the bytes of an array on one device; it goes on from that of another one."""
    found: Any = np.ascontiguousarray(to_host(words_of(array))).reshape(-1)
    return zlib.crc32(found.view(np.uint8), start) if found.size else start


def quick_checksum(array: jax.Array) -> int:
    """The same; of a large array, only of pieces of it."""
    words = words_of(array)
    if words.nbytes <= _MOST_BYTES:
        return checksum(words)
    each = max(1, _PIECE * len(words) // words.nbytes)
    starts = np.unique(np.linspace(0, len(words) - each, _PIECES).astype(int))
    found = 0
    # A program on this device alone, also if the user has set a mesh of many.
    with jax.set_mesh(Mesh(np.array(list(words.devices())), ("one",), axis_types=(AxisType.Auto,))):
        for begin in starts.tolist():
            found = checksum(words[begin : begin + each], found)
    return found


def words_of(array: Any) -> Any:
    """The array; of random keys, their words."""
    is_key = jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(array) if is_key else array
