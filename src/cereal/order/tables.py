"""Tables of whole numbers, in NumPy or JAX: looked up by index, and searched."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..device.explicit_axes import gathered
from ..device.platforms import by_platform

_FEW = 64


def count_up_to(table: Any, values: Any) -> Any:
    """How many entries of a sorted table are at most each value."""
    if isinstance(values, np.ndarray):
        return np.searchsorted(np.asarray(table), values, side="right")
    table = jnp.asarray(table)
    find = partial(jnp.searchsorted, side="right")
    if table.shape[0] <= _FEW:
        return find(table, values, method="compare_all")
    # A loop on the CPU, which XLA cannot fuse into what reads the batch; on a GPU a loop waits
    # for the host at every trip.
    return by_platform(
        table,
        values,
        cpu=partial(find, method="scan"),
        default=partial(find, method="scan_unrolled"),
    )


def look_up(table: Any, index: Any) -> Any:
    """table[index]; its columns, where the table has two axes."""
    if isinstance(index, np.ndarray):
        found = np.asarray(table)[index.astype(np.int64)].astype(np.int64)
    else:
        found = gathered(jnp.asarray(table), index.astype(jnp.int32))
    return found if table.ndim == 1 else tuple(found[..., k] for k in range(table.shape[-1]))
