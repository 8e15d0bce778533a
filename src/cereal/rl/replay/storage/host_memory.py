"""Items in the memory of the host, for programs that run on an accelerator.

An array there can be larger than the device's memory. A program writes a block of rows into it by
one copy, in place, and the host gathers the rows of a batch (`device/gather.py`). Only a slice can
be written in place: for rows at any places, XLA would copy the whole array (24 ms for 256 MB). So
the capacity is a multiple of the rows of a step, and no step is partly masked.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import SingleDeviceSharding

from ....base.capture import eager
from ....device.storage import as_device


def empty_on_host(shape: tuple[int, ...], dtype: Any) -> Any:
    """Zeros in host memory."""
    if not eager():
        return jax.device_put(jnp.zeros(shape, dtype), jax.memory.Space.Host)
    pinned = SingleDeviceSharding(as_device(None, "storage"), memory_kind="pinned_host")
    return jax.device_put(np.zeros(shape, dtype), pinned)


def is_on_host(leaf: Any) -> bool:
    """Whether an array of a program lies in the memory of the host."""
    return jax.typeof(leaf).memory_space == jax.memory.Space.Host


def write_on_host(leaf: Any, rows: Any, start: Any) -> Any:
    """The array with these rows from `start` on; it must not end before they do."""
    begin = (start, *(jnp.int32(0),) * (leaf.ndim - 1))
    return lax.dynamic_update_slice(leaf, jax.device_put(rows, jax.memory.Space.Host), begin)
