"""A few numbers from every process to every process, through JAX's own collectives.

All processes that have devices of the mesh must call this together, in the same order as their
other programs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from .transfer import from_parts, to_host


def exchange(numbers: np.ndarray, mesh: Mesh) -> dict[int, np.ndarray]:
    """The numbers (uint32, of one shape in all processes) of every process, by its index."""
    flat, spread, share = _over_all(mesh)
    shape = (flat.size, *numbers.shape)
    given = from_parts(shape, spread, lambda _: numbers[None], numbers.dtype)
    with jax.set_mesh(flat):  # the user's may have these devices in another order
        found = share(given)
    if not found.addressable_shards:  # no device of the mesh belongs to this process
        return {}
    whole = to_host(found.addressable_shards[0].data)
    return {device.process_index: whole[k] for k, device in enumerate(flat.devices)}


@lru_cache(maxsize=8)
def _over_all(mesh: Mesh) -> tuple[Mesh, NamedSharding, Any]:
    devices = list(mesh.devices.ravel())
    if {device.process_index for device in devices} == set(range(jax.process_count())):
        devices = jax.devices()  # these are the same everywhere, even if the meshes are not
    devices = sorted(devices, key=lambda device: device.id)
    flat = Mesh(np.array(devices), ("all",), axis_types=(AxisType.Auto,))
    everywhere = NamedSharding(flat, PartitionSpec())
    share = jax.jit(lambda x: x, out_shardings=everywhere)
    return flat, NamedSharding(flat, PartitionSpec("all")), share
