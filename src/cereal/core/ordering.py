"""In which order an epoch visits the data: sequential, shuffled, or a list of indices."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from .errors import PipelineError
from .permutation import permute, round_constants
from .pytree import pytree_dataclass, static_field


class Order(ABC):
    """Maps positions in an epoch to indices of the data, for several epochs at once."""

    random: bool = False

    def length(self, n: int) -> int:
        """Elements in an epoch over data of n elements."""
        return n

    @abstractmethod
    def index(self, key: Any, epochs: Any, column: Any, position: Any, n: int) -> Any:
        """The index at each `position` (less than n) of the epoch `epochs[column]`."""

    @property
    @abstractmethod
    def name(self) -> str:
        """How the drawing, the fingerprint and the saved state call it."""


@pytree_dataclass
class Sequential(Order):
    """0, 1, 2, ..."""

    def index(self, key: Any, epochs: Any, column: Any, position: Any, n: int) -> Any:
        del key, epochs, column, n
        return position

    @property
    def name(self) -> str:
        return "sequential"


@pytree_dataclass
class Shuffle(Order):
    """A new random order in every epoch, computed per position."""

    random = True

    def index(self, key: Any, epochs: Any, column: Any, position: Any, n: int) -> Any:
        return permute(position, column, round_constants(key, epochs, n), n)

    @property
    def name(self) -> str:
        return "shuffle"


@pytree_dataclass
class Listed(Order):
    """The given indices, in the given order, in every epoch."""

    indices: Any
    size: int = static_field()
    digest: str = static_field()

    def length(self, n: int) -> int:
        del n
        return self.size

    def index(self, key: Any, epochs: Any, column: Any, position: Any, n: int) -> Any:
        del key, epochs, column, n
        if isinstance(position, np.ndarray):
            return np.asarray(self.indices)[position]
        return self.indices.at[position].get(mode="promise_in_bounds")

    @property
    def name(self) -> str:
        return f"indices({self.size}, {self.digest})"


def as_order(ordering: Any, n: int, owner: str) -> Order:
    """Reads the `ordering=` argument of a source over n elements."""
    if isinstance(ordering, Order):
        return ordering
    if isinstance(ordering, str):
        if ordering == "sequential":
            return Sequential()
        if ordering == "shuffle":
            return Shuffle()
        raise PipelineError(
            f'{owner}: `ordering` must be "sequential", "shuffle" or an array of indices, got '
            f"{ordering!r}."
        )
    return _listed(ordering, n, owner)


def _listed(ordering: Any, n: int, owner: str) -> Order:
    what = f"{owner}: an `ordering` of indices"
    if not isinstance(ordering, jax.Array | np.ndarray | list | tuple | range):
        raise PipelineError(
            f'{owner}: `ordering` must be "sequential", "shuffle" or an array of indices, got '
            f"{type(ordering).__name__}."
        )
    if isinstance(ordering, jax.core.Tracer):  # inside jit: the values cannot be looked at
        return Listed(ordering.astype(jnp.int32), ordering.shape[0], "traced")
    indices = np.asarray(ordering)
    if indices.size == 0:
        raise PipelineError(f"{what} is empty; give it at least one index.")
    if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
        raise PipelineError(
            f"{what} must be one axis of integers, got {indices.dtype}{list(indices.shape)}; "
            f"for a boolean mask write `np.flatnonzero(mask)`."
        )
    if indices.min() < 0 or indices.max() >= n:
        wrong = indices[(indices < 0) | (indices >= n)][0]
        raise PipelineError(
            f"{what} has the index {wrong}, outside the data's range 0 to {n - 1}; drop it."
        )
    indices = indices.astype(np.int32 if n < 2**31 else np.int64)
    digest = f"{zlib.crc32(np.ascontiguousarray(indices).data):08x}"
    return Listed(jnp.asarray(indices), indices.size, digest)
