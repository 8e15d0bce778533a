"""Where all arrays of a batch go: one sharding for each, worked out from a loader's `sharding=`."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ..base.capture import is_traced
from ..base.spec import Spec
from .transfer import from_parts, to_host


def padded_shape(shape: Any, lanes: tuple[int, ...], padded: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an array after padding, which adds lanes only to arrays that have all lanes."""
    return (*padded, *shape[len(lanes) :]) if shape[: len(lanes)] == lanes else shape


def axes_in_words(mesh: Any) -> str:
    """As drawings and errors print them: `data=4, model=2`."""
    return ", ".join(f"{name}={size}" for name, size in mesh.shape.items())


@dataclasses.dataclass(frozen=True)
class BatchSharding:
    """Where the arrays of a batch and its mask go."""

    leaves: tuple[NamedSharding, ...]  # in the order of `jax.tree.leaves`
    mask: NamedSharding
    lanes: tuple[int, ...]  # of the batch
    padded: tuple[int, ...]  # of the arrays: at least as many
    spec: Spec  # of the arrays
    check_replicas: int | None = None  # how often processes compare rows that they share
    skips: bool = False  # whether elements that fail are left out: in all processes, if in one

    @property
    def mesh(self) -> Any:
        return self.mask.mesh

    @cached_property
    def device_set(self) -> Any:
        return self.mask.device_set

    @cached_property
    def rows(self) -> NamedSharding:
        """Of arrays that have one number for each lane."""
        return NamedSharding(self.mesh, PartitionSpec(*self.mask.spec[: len(self.lanes)]))

    @cached_property
    def everywhere(self) -> NamedSharding:
        """A whole copy on every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    @cached_property
    def explicit(self) -> bool:
        """Whether the axes of the mesh are part of the types of arrays."""
        return AxisType.Explicit in self.mesh.axis_types

    @cached_property
    def is_local(self) -> bool:
        """Whether all devices belong to this process."""
        return self.mask.is_fully_addressable

    @cached_property
    def is_here(self) -> bool:
        """Whether some of the devices belong to this process."""
        return bool(self.mask.addressable_devices)

    def of(self, values: Any) -> Any:
        """The shardings of a tree of arrays, as a tree."""
        return jax.tree.unflatten(jax.tree.structure(values), self.leaves)

    def __deepcopy__(self, _: Any) -> BatchSharding:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(
            "a loader with `sharding=` cannot be pickled, since its mesh has devices of this "
            "process; pickle the pipeline, and build the loader where it is used."
        )

    def in_words(self) -> str:
        """As drawings and errors print it: `P('data') over data=4`."""
        specs = list(dict.fromkeys(str(each.spec) for each in self.leaves))
        return f"{', '.join(specs)} over {axes_in_words(self.mesh)}"

    def replicated(self, tree: Any) -> Any:
        """A tree of arrays with a whole copy on every device. Arrays that were put somewhere stay
        where they are."""
        return jax.tree.map(self._copied, tree)

    def joined(self, leaf: Any) -> Any:
        """An array of a state, on every device of this mesh; also if it comes from another mesh.
        One that is divided stays as it is."""
        if isinstance(leaf, np.ndarray) and not self.is_local:
            return self._everywhere(leaf)
        if is_traced(leaf) or not isinstance(leaf, jax.Array):
            return leaf
        there, alike = self.everywhere, leaf.sharding.is_equivalent_to
        if leaf.sharding == there or (not self.explicit and alike(there, leaf.ndim)):
            return leaf
        return self._everywhere(leaf) if leaf.is_fully_replicated or not leaf.committed else leaf

    def _copied(self, leaf: Any) -> Any:
        if is_traced(leaf) or not isinstance(leaf, jax.Array | np.ndarray):
            return leaf
        if isinstance(leaf, jax.Array) and leaf.committed:
            return leaf
        return self._everywhere(leaf)

    def _everywhere(self, leaf: Any) -> Any:
        if self.is_local:
            return jax.device_put(leaf, self.everywhere)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            words = self._everywhere(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
        value = to_host(leaf)
        return from_parts(value.shape, self.everywhere, lambda index: value[index], value.dtype)
