"""In which order an epoch visits the data: sequential, shuffled, or a list of indices.

Orders that sample the data are in `sampling`; the one that reads in blocks is in `block_shuffle`.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..base.capture import is_traced
from ..base.errors import PipelineError, said
from ..base.identity import TRACED, Identity, in_words
from ..base.pytree import pytree_dataclass, static_field
from ..device.explicit_axes import gathered
from ..device.transfer import sent
from ..reading.bridges.recognise import recognised
from .permutation import MAX_TRACED, permute, round_constants


class Visit(NamedTuple):
    """The elements at some positions of an order."""

    index: Any
    epoch: Any = None  # the element's epoch, if it is not the position's
    draw: Any = None  # a number that differs between two visits to one element in an epoch
    again: Any = None  # how often the element came before in this epoch; None: never


class Order(ABC):
    """Maps positions in an epoch to indices of the data, for several epochs at once.

        position   0  1  2  3  4  5     of an epoch
        index      3  0  5  1  4  2     of the data

    The orders that come with cereal: "sequential", "shuffle", an array of indices, `BlockShuffle`,
    `WeightedSampling`, `ClassBalanced`, `Bootstrap`.
    """

    random: bool = False
    plain: bool = False
    """Whether an epoch has each element once, for data of any length. Parts of a combined source
    may then have this order too."""
    wide: bool = False
    """Whether it can be computed for more than 2^31 - 1 elements, on the host."""
    samples: bool = False
    """Whether an epoch may have an element several times, or not at all."""

    def in_blocks(self, lengths: Any, owner: str) -> Order:
        """This order for data that lies in blocks of these lengths."""
        del lengths, owner
        return self

    def over(self, n: int, owner: str) -> Order:
        """This order for data of n elements, or an error that names the `owner`."""
        del n, owner
        return self

    def length(self, n: int) -> int:
        """The number of elements in an epoch, over data of n elements."""
        return n

    def index(self, key: Any, epochs: Any, column: Any, position: Any, n: int) -> Any:
        """The index at each `position` (less than n) of the epoch `epochs[column]`.

        A subclass defines this, or `visit`.
        """
        return self.visit(key, epochs, column, position, n).index

    def visit(self, key: Any, epochs: Any, column: Any, position: Any, n: int) -> Visit:
        """The index at each position. If an epoch has an element several times, `draw` or `again`
        tells its visits apart."""
        return Visit(self.index(key, epochs, column, position, n))

    def __repr__(self) -> str:
        return said(lambda: self.name, f"{type(self).__name__}(...)")

    @property
    @abstractmethod
    def identity(self) -> Identity:
        """What tells it from other orders. A state of a pipeline with another order is refused."""

    @property
    def name(self) -> str:
        """Its name in drawings and error messages."""
        return in_words(self.identity)


@pytree_dataclass
class Sequential(Order):
    """0, 1, 2, ..."""

    plain = True
    wide = True

    def index(self, key: Any, epochs: Any, column: Any, position: Any, n: int) -> Any:
        del key, epochs, column, n
        return position

    @property
    def identity(self) -> Identity:
        return ("sequential",)


@pytree_dataclass
class Shuffle(Order):
    """A new random order in every epoch, computed per position."""

    random = True
    plain = True
    wide = True

    def index(self, key: Any, epochs: Any, column: Any, position: Any, n: int) -> Any:
        return permute(position, column, round_constants(key, epochs, n), n)

    @property
    def identity(self) -> Identity:
        return ("shuffle",)


@pytree_dataclass
class Listed(Order):
    """The given indices, in the given order, in every epoch."""

    indices: Any
    size: int = static_field()
    digest: str = static_field()
    again: Any = None  # how often each index was listed before; None: none is listed twice

    wide = True

    def length(self, n: int) -> int:
        del n
        return self.size

    def visit(self, key: Any, epochs: Any, column: Any, position: Any, n: int) -> Visit:
        del key, epochs, column, n
        again = None if self.again is None else gathered(self.again, position)
        return Visit(gathered(self.indices, position), again=again)

    @property
    def identity(self) -> Identity:
        return ("indices({}, {})", self.size, self.digest)


_NAMED: dict[str, type[Order]] = {"sequential": Sequential, "shuffle": Shuffle}


def as_order(ordering: Any, n: int, owner: str, blocks: Any = None) -> Order:
    """Reads the `ordering=` argument of a source over n elements, in `blocks` of these lengths."""
    if isinstance(ordering, Order):
        order = ordering if blocks is None else ordering.in_blocks(blocks, owner)
        return order.over(n, owner)
    if isinstance(ordering, str) and ordering in _NAMED:
        return _NAMED[ordering]()
    _refuse_key(ordering, owner)
    if not isinstance(ordering, jax.Array | np.ndarray | list | tuple | range):
        recognised(ordering, f"{owner}: `ordering`")  # a sampler of torch: says what to write
        raise PipelineError(
            f'{owner}: `ordering` must be "sequential", "shuffle", an array of indices or an order '
            f"such as BlockShuffle(1024), got {_describe(ordering)}."
        )
    if is_traced(ordering):  # inside of `jit`: the values are not known
        indices = ordering.astype(jnp.int32)
        return Listed(indices, ordering.shape[0], TRACED, times_before(indices))
    what = f"{owner}: an `ordering` of indices"
    indices = check_indices(ordering, n, what)
    if indices.dtype != np.int32:
        raise PipelineError(
            f"{what} has the index {indices.max()}, and lists of indices count to {MAX_TRACED}; "
            f"choose elements in the function that reads them."
        )
    again = None if is_once(indices) else jnp.asarray(sent(times_before(indices)))
    return Listed(jnp.asarray(sent(indices)), indices.size, digest_of(indices), again)


def _refuse_key(ordering: Any, owner: str) -> None:
    """Refuses a random key as an order: its two words would look like two indices."""
    if not isinstance(ordering, jax.Array):
        return
    typed = jnp.issubdtype(ordering.dtype, jax.dtypes.prng_key)
    if typed or (ordering.dtype == np.uint32 and ordering.shape in ((2,), (4,))):
        raise PipelineError(
            f'{owner}: `ordering` is a random key; write `ordering="shuffle"`, and pass the key to '
            f"`loader.init_state(key)`. (For indices write `ordering.astype(np.int32)`.)"
        )


def _describe(ordering: Any) -> str:
    if isinstance(ordering, type):
        return f"the class {ordering.__name__}, not an instance: write `{ordering.__name__}(...)`"
    return repr(ordering) if isinstance(ordering, str) else type(ordering).__name__


def check_indices(given: Any, n: int, what: str) -> np.ndarray:
    """Checked indices of data of n elements: one axis of int32, or of int64 if they need it."""
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
    return indices.astype(np.int32 if indices.max() <= MAX_TRACED else np.int64)


def is_once(indices: np.ndarray) -> bool:
    """Whether no index is listed twice."""
    most = int(indices.max()) + 1
    if most > 64 * indices.size + 4096:
        return len(np.unique(indices)) == indices.size
    seen = np.zeros(most, np.bool_)  # several times quicker than sorting
    seen[indices] = True
    return int(np.count_nonzero(seen)) == indices.size


def times_before(indices: Any) -> Any:
    """For each index, how often the same index is listed before it; in NumPy or JAX."""
    xp = np if isinstance(indices, np.ndarray) else jnp
    place = xp.arange(indices.shape[0], dtype=np.int32)
    order = xp.argsort(indices, stable=True)
    listed = indices[order]
    new = xp.concatenate([xp.ones(1, np.bool_), listed[1:] != listed[:-1]])
    begins: Any = xp.where(new, place, 0)
    begins = np.maximum.accumulate(begins) if xp is np else jax.lax.cummax(begins)
    found = (place - begins).astype(np.uint32)
    if xp is jnp:
        return jnp.zeros(indices.shape, np.uint32).at[order].set(found)
    before = np.empty(indices.shape, np.uint32)
    before[order] = found
    return before


def digest_of(*arrays: np.ndarray) -> str:
    """Eight letters that change if the values change; for names and fingerprints."""
    crc = 0
    for array in arrays:
        crc = zlib.crc32(np.ascontiguousarray(array).data, crc)
    return f"{crc:08x}"
