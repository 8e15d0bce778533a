"""Reading a table by index, whatever mesh table and indices lie on."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def gathered(table: Any, indices: Any) -> Any:
    """table[indices] for valid indices, in NumPy or JAX.

    With explicit axes JAX will not choose where rows from all devices go: everywhere. States that
    are mapped over an axis of the mesh keep it, since `vmap` adds it.
    """
    if isinstance(indices, np.ndarray):
        return np.asarray(table)[indices]
    mesh = explicit_mesh(table, indices)
    if mesh is None:
        return table.at[indices].get(mode="promise_in_bounds")
    everywhere = NamedSharding(mesh, PartitionSpec())
    return table.at[indices].get(mode="promise_in_bounds", out_sharding=everywhere)


def explicit_mesh(*arrays: Any) -> Any:
    """The mesh with explicit axes that one of the arrays lies on, None if there is none."""
    meshes = [jax.typeof(array).sharding.mesh for array in arrays]
    return next((mesh for mesh in meshes if AxisType.Explicit in mesh.axis_types), None)


def reshaped(array: Any, *shape: int) -> Any:
    """The array in another shape; with explicit axes, JAX will not choose here either."""
    mesh = explicit_mesh(array)
    if mesh is None:
        return array.reshape(shape)
    return lax.reshape(array, shape, out_sharding=NamedSharding(mesh, PartitionSpec()))
