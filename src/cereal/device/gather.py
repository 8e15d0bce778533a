"""Reading rows of an array inside a compiled program, wherever the array lies.

on the device          one gather; narrow rows of a large batch as 32-bit words
in pinned host memory  gathered by the host, only the batch crosses to the device
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..base.jax_internals import run_on_host
from .explicit_axes import explicit_mesh, gathered, reshaped
from .platforms import by_platform
from .words import WordRows

# An H200 gathers bytes at 1.5 TB/s and words at 3.2 (the two bitcasts are free). Below about a
# megabyte the launch of a kernel takes most of the time, and XLA fuses plain bytes better with what
# uses the batch.
_WORDS_FROM_BYTES = 1 << 20
_NARROW = tuple(
    jnp.dtype(name) for name in ("uint8", "int8", "uint16", "int16", "float16", "bfloat16")
)


def take_rows(array: Any, indices: Any) -> Any:
    """array[indices] for one axis of valid indices."""
    if isinstance(array, WordRows):
        return array.take(indices)
    if jax.typeof(array).memory_space == jax.memory.Space.Host:
        return _take_from_host(array, indices)
    if _as_words(array, indices.shape[0]):
        return by_platform(array, indices, cpu=gathered, default=_take_words)
    return gathered(array, indices)


def take_windows(array: Any, starts: Any, length: int) -> Any:
    """array[start : start + length] for one axis of valid starts, stacked."""
    if jax.typeof(array).memory_space == jax.memory.Space.Host:
        rows = starts[:, None] + jnp.arange(length, dtype=starts.dtype)[None, :]
        return _take_from_host(array, rows)

    if explicit_mesh(array, starts) is not None:
        return gathered(array, starts[:, None] + jnp.arange(length, dtype=starts.dtype)[None, :])

    def one(start: Any) -> Any:
        return lax.dynamic_slice_in_dim(array, start, length)

    return jax.vmap(one)(starts)


def _as_words(array: Any, rows: int) -> bool:
    row_bytes = math.prod(array.shape[1:]) * array.dtype.itemsize
    if array.dtype not in _NARROW:
        return False
    return row_bytes % 4 == 0 and row_bytes * rows >= _WORDS_FROM_BYTES


def _take_words(array: Any, indices: Any) -> Any:
    narrow = 4 // array.dtype.itemsize
    words = array.reshape(array.shape[0], -1, narrow)
    words = lax.bitcast_convert_type(words, jnp.uint32)
    taken = lax.bitcast_convert_type(gathered(words, indices), array.dtype)
    return reshaped(taken, indices.shape[0], *array.shape[1:])


def _take_from_host(array: Any, indices: Any) -> Any:
    there = jax.device_put(indices, jax.memory.Space.Host)
    return jax.device_put(run_on_host(gathered)(array, there), jax.memory.Space.Device)
