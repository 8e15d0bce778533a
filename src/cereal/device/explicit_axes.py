"""Reading a table by index, also if the table or the indices lie on a mesh with explicit axes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec


def gathered(table: Any, indices: Any) -> Any:
    """table[indices] for valid indices, in NumPy or JAX.

    With explicit axes, JAX does not choose where the result goes: we put it on every device. If
    `vmap` maps over an axis of the mesh, it adds that axis to the result by itself.
    """
    if isinstance(indices, np.ndarray):
        return np.asarray(table)[indices]
    mesh = explicit_mesh(table, indices)
    if mesh is None:
        return table.at[indices].get(mode="promise_in_bounds")
    there = NamedSharding(mesh, PartitionSpec())
    return table.at[indices].get(mode="promise_in_bounds", out_sharding=there)


def explicit_mesh(*arrays: Any) -> Any:
    """The mesh with explicit axes that one of the arrays lies on, None if there is none."""
    meshes = [jax.typeof(array).sharding.mesh for array in arrays]
    return next((mesh for mesh in meshes if AxisType.Explicit in mesh.axis_types), None)


def reshaped(array: Any, *shape: int) -> Any:
    """The array in another shape; with explicit axes, the result is put on every device too."""
    mesh = explicit_mesh(array)
    if mesh is None:
        return array.reshape(shape)
    return lax.reshape(array, shape, out_sharding=NamedSharding(mesh, PartitionSpec()))


def everywhere(array: Any) -> Any:
    """The whole array on every device, if it lies on a mesh with explicit axes."""
    mesh = explicit_mesh(array)
    if mesh is None:
        return array
    return jax.sharding.reshard(array, NamedSharding(mesh, PartitionSpec()))


@contextlib.contextmanager
def without_explicit_axes(spread: bool) -> Iterator[None]:
    """What is traced here does not know of explicit axes that the user has set (`jax.set_mesh`), if
    it is for batches that are `spread` over a mesh: their stages run as if axes were automatic."""
    if not spread or AxisType.Explicit not in jax.sharding.get_abstract_mesh().axis_types:
        yield
        return
    with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        yield
