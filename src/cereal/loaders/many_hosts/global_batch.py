"""Global arrays of batches that every process has made for itself."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ...base.errors import UsageError, first_line
from ...base.fitting import canonical, narrowed
from ...base.spec import Spec, format_spec, is_array_like, named_places
from ...device.placement import in_words
from ...device.sharding_option import leaf_shardings


def global_batch(local_batch: Any, sharding: Any) -> Any:
    """One global array for each array of a batch, of which each process passes its own part.

        process 0: x [4, 784]  \\
                                 global_batch  ->  x [8, 784], P("data")
        process 1: x [4, 784]  /

    For batches that do not come from a loader with `sharding=`. Every process passes the rows that
    its own devices get, in the order of the mesh, and equally many in all processes. Nothing is
    sent between processes, so nobody checks this. A number for the whole batch is copied to all
    devices; it must be the same in all processes, like rows that several processes hold.
    `sharding` is what `DataLoader(sharding=)` takes.

    >>> import cereal, jax, numpy as np
    >>> mesh = jax.make_mesh((jax.device_count(),), ("data",))
    >>> batch = cereal.global_batch({"x": np.zeros((8, 3)), "scale": 2.0}, (mesh, "data"))
    >>> batch["x"].shape, batch["x"].sharding.is_fully_replicated or "spread"
    ((8, 3), 'spread')
    """
    leaves = [_as_array(leaf, place) for place, leaf in named_places(local_batch, "batch")]
    arrays = jax.tree.unflatten(jax.tree.structure(local_batch), leaves)
    shardings = leaf_shardings(sharding, Spec(arrays), "global_batch: `sharding`")
    made = list(map(_assembled, leaves, shardings))
    return jax.tree.unflatten(jax.tree.structure(local_batch), made)


def _as_array(leaf: Any, place: str) -> np.ndarray:
    if not is_array_like(leaf):
        raise UsageError(
            f"global_batch: {place} must be an array or a number, got {type(leaf).__name__}."
        )
    # A copy: JAX may send the array later, or use its memory, and the user may write into it.
    array = np.array(leaf) if isinstance(leaf, np.ndarray) else np.asarray(leaf)
    return narrowed(array, canonical(array.dtype), f"global_batch: {place}")


def _assembled(leaf: np.ndarray, sharding: Any) -> jax.Array:
    if not sharding.addressable_devices:
        raise UsageError(
            "global_batch: no device of this process is in the mesh, so it has no part of the "
            "batch; call it only in processes that have one."
        )
    try:
        return jax.make_array_from_process_local_data(sharding, leaf)
    except (ValueError, IndexError) as error:
        raise UsageError(
            f"global_batch: {format_spec(leaf)}, the part of this process, cannot be laid out as "
            f"{in_words(sharding)}: {first_line(error)}"
        ) from error
