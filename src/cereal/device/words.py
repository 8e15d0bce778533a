"""Rows of narrow integers, stored as 32-bit words.

On the CPU, XLA gathers small images one number at a time, so single bytes cost four times what
they need to. If they are stored as words and split into bytes after the gather, 128 images of 28x28
take 10 µs instead of 36. The data is not copied for this: the words are a view of the same memory.

    uint8[60000,28,28]  =view=  uint32[60000,196]  --gather-->   uint32[128,196]
                                                   --bitcast-->  uint8[128,28,28]

This is faster for images of one channel, of 16x16 to 48x48 bytes, whether or not the channel is an
axis. It is not faster for rows of one axis, for longer rows, and for rows whose last axis is not a
whole number of words (colours).
"""

from __future__ import annotations

import math
import sys
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..base.pytree import pytree_dataclass, static_field
from .explicit_axes import gathered, reshaped
from .transfer import sent

_LEAST_ROW_BYTES, _MOST_ROW_BYTES = 256, 4096


@pytree_dataclass
class WordRows:
    """An array of narrow integers, as words."""

    words: Any
    row_shape: tuple[int, ...] = static_field()
    dtype: np.dtype = static_field()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array that this stands for."""
        return (self.words.shape[0], *self.row_shape)

    def take(self, indices: Any) -> Any:
        """The rows at these indices."""
        words = gathered(self.words, indices)
        # Without the barriers, XLA would split the words again in every loop that uses the batch.
        words = lax.optimization_barrier(words)
        rows = lax.bitcast_convert_type(words, self.dtype)
        rows = reshaped(rows, *indices.shape, *self.row_shape)
        return lax.optimization_barrier(rows)


def worth_packing(array: Any) -> bool:
    """Whether this array can be stored as words, and is read faster then."""
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):  # random keys
        return False
    dtype = np.dtype(array.dtype)
    if dtype not in (np.uint8, np.int8, np.uint16, np.int16) or sys.byteorder != "little":
        return False
    shape = array.shape[:-1] if array.shape[-1:] == (1,) else array.shape
    whole_words = len(shape) >= 3 and shape[-1] * dtype.itemsize % 4 == 0
    row_bytes = math.prod(array.shape[1:]) * dtype.itemsize
    if not whole_words or not _LEAST_ROW_BYTES <= row_bytes < _MOST_ROW_BYTES:
        return False
    return not isinstance(array, jax.Array) or (
        len(array.devices()) == 1 and array.sharding.memory_kind != "pinned_host"
    )


def pack(array: Any) -> WordRows:
    """The array as words: a copy of NumPy data, a view of a `jax.Array` on the CPU.

    The bet: JAX on the CPU shares its memory with NumPy, in both directions. If it is lost, the
    words are a copy, and the data is in memory twice. `tests/device/test_words.py`,
    `test_numpy_data_is_copied_and_a_jax_array_is_seen_as_it_lies`, fails first.
    """
    host = np.ascontiguousarray(array)
    stored = _known_words(array)
    if stored is None:
        words = host.reshape(host.shape[0], -1).view(np.uint32)
        if isinstance(array, jax.Array):
            place = next(iter(array.devices())) if array.committed else None
            stored = jax.device_put(words, place)
            _packed[id(array)] = (weakref.ref(array), weakref.ref(stored))
        else:
            stored = jax.block_until_ready(jnp.array(sent(words), copy=True))
    return WordRows(stored, host.shape[1:], host.dtype)


# The words of each array, so that two sources over one array share them.
_packed: dict[int, tuple[Any, Any]] = {}


def _known_words(array: Any) -> Any:
    for number in [number for number, (_, words) in _packed.items() if words() is None]:
        del _packed[number]
    known, words = _packed.get(id(array), (None, None))
    return words() if known is not None and words is not None and known() is array else None
