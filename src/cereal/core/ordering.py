"""In which order an epoch visits the data: sequential, shuffled, or a list of indices.

Orders that sample the data, and those that read in runs, are in `sampling` and `block_shuffle`.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from .errors import PipelineError
from .permutation import permute, round_constants
from .pytree import pytree_dataclass, static_field
from .transfer import sent


class Visit(NamedTuple):
    """What stands at some positions of an order."""

    index: Any
    epoch: Any = None  # of the element, where it is not that of the position
    draw: Any = None  # where an epoch visits elements again: tells the visits apart


class Order(ABC):
    """Maps positions in an epoch to indices of the data, for several epochs at once.

        position   0  1  2  3  4  5     of an epoch
        index      3  0  5  1  4  2     of the data

    The orders that come with cereal: "sequential", "shuffle", an array of indices, `BlockShuffle`,
    `WeightedSampling`, `ClassBalanced`, `Bootstrap`.
    """

    random: bool = False
    plain: bool = False
    """Whether an epoch has each element once whatever the data, so that parts may have it too."""
    samples: bool = False
    """Whether an epoch may have elements several times, or not at all."""

    def over(self, n: int, owner: str) -> Order:
        """This order for data of n elements, or an error that names the `owner`."""
        del n, owner
        return self

    def length(self, n: int) -> int:
        """Elements in an epoch over data of n elements."""
        return n

    @abstractmethod
    def index(self, key: Any, epochs: Any, column: Any, position: Any, n: int) -> Any:
        """The index at each `position` (less than n) of the epoch `epochs[column]`."""

    def visit(self, key: Any, epochs: Any, column: Any, position: Any, n: int) -> Visit:
        """The index, and where it is not clear from (epoch, index), what tells visits apart."""
        return Visit(self.index(key, epochs, column, position, n))

    def __repr__(self) -> str:
        return self.name

    @property
    @abstractmethod
    def name(self) -> str:
        """How the drawing, the fingerprint and the saved state call it."""


@pytree_dataclass
class Sequential(Order):
    """0, 1, 2, ..."""

    plain = True

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
    plain = True

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
        return ordering.over(n, owner)
    if isinstance(ordering, str):
        if ordering == "sequential":
            return Sequential()
        if ordering == "shuffle":
            return Shuffle()
        raise PipelineError(
            f'{owner}: `ordering` must be "sequential", "shuffle", an array of indices or an order '
            f"such as BlockShuffle(1024), got {ordering!r}."
        )
    return _listed(ordering, n, owner)


def _listed(ordering: Any, n: int, owner: str) -> Order:
    what = f"{owner}: an `ordering` of indices"
    if not isinstance(ordering, jax.Array | np.ndarray | list | tuple | range):
        raise PipelineError(
            f'{owner}: `ordering` must be "sequential", "shuffle", an array of indices or an order '
            f"such as BlockShuffle(1024), got {_describe(ordering)}."
        )
    if isinstance(ordering, jax.core.Tracer):  # inside jit: the values cannot be looked at
        return Listed(ordering.astype(jnp.int32), ordering.shape[0], "traced")
    indices = check_indices(ordering, n, what)
    return Listed(jnp.asarray(sent(indices)), indices.size, digest_of(indices))


def _describe(ordering: Any) -> str:
    if isinstance(ordering, type):
        return f"the class {ordering.__name__}, not an instance: write `{ordering.__name__}(...)`"
    return type(ordering).__name__


def check_indices(given: Any, n: int, what: str) -> np.ndarray:
    """Indices of data of n elements, as one axis of int32 (int64 where they need it)."""
    indices = np.asarray(given)
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
    return indices.astype(np.int32 if n < 2**31 else np.int64)


def digest_of(*arrays: np.ndarray) -> str:
    """Eight letters that change with the values; for names and fingerprints."""
    crc = 0
    for array in arrays:
        crc = zlib.crc32(np.ascontiguousarray(array).data, crc)
    return f"{crc:08x}"
