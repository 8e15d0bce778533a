"""Tables of whole numbers, in NumPy or JAX: reading them by index, and searching in them."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..device.explicit_axes import gathered
from ..device.platforms import by_platform

_FEW = 64


def count_up_to(table: Any, values: Any) -> Any:
    """For each value, how many entries of a sorted table are not above it."""
    if isinstance(values, np.ndarray):
        return np.searchsorted(np.asarray(table), values, side="right")
    table = jnp.asarray(table)
    find = partial(jnp.searchsorted, side="right")
    if table.shape[0] <= _FEW:
        return find(table, values, method="compare_all")
    # On the CPU a loop, which XLA cannot fuse into the code that uses the batch. On a GPU a loop
    # would wait for the host in every round.
    return by_platform(
        table,
        values,
        cpu=partial(find, method="scan"),
        default=partial(find, method="scan_unrolled"),
    )


def look_up(table: Any, index: Any) -> Any:
    """table[index]; if the table has two axes, a tuple of its columns."""
    if isinstance(index, np.ndarray):
        found = np.asarray(table)[index.astype(np.int64)].astype(np.int64)
    else:
        found = gathered(jnp.asarray(table), index.astype(jnp.int32))
    return found if table.ndim == 1 else tuple(found[..., k] for k in range(table.shape[-1]))
