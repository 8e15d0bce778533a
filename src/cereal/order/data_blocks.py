"""Blocks of different lengths: the pieces in which data lies, such as the row groups of a file.

    lengths [5 2 4], BlockShuffle()            the blocks of an epoch     2 | 0 | 1
    slot      0          1            2        in the order that is
    begins    0          4            9        drawn for it
    position  0 1 2 3    4 5 6 7 8    9 10

An epoch has a table of where its slots begin; a search in it finds the slot of a position. If all
blocks have one length (the last may be shorter), this is the order of `BlockShuffle(length)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..base.errors import PipelineError
from ..base.identity import Identity
from ..base.pytree import pytree_dataclass, set_fields, static_field
from ..device.explicit_axes import gathered, reshaped
from ..device.platforms import by_platform
from ..device.transfer import sent
from .lane_permutation import permute_lanes
from .ordering import Order, digest_of
from .permutation import MAX_TRACED, permute, round_constants
from .threefry import BLOCK, key_for, threefry


@pytree_dataclass
class DataBlocks(Order):
    """What `BlockShuffle()` becomes over data that lies in blocks of these lengths."""

    random = True
    plain = True

    lengths: Any  # of the blocks, [blocks]
    starts: Any  # where each block begins in the data, [blocks]
    size: int = static_field(default=0)  # of all of them together
    count: int = static_field(default=0)
    together: int = static_field(default=1)
    digest: str = static_field(default="")

    def __init__(self, lengths: Any, together: int, owner: str) -> None:
        known = np.asarray(lengths, np.int64)
        size = int(known.sum())
        if size > MAX_TRACED:
            raise PipelineError(
                f"{owner}: `BlockShuffle()` counts to {MAX_TRACED}, and there are {size} elements; "
                f'write `ordering="shuffle"`.'
            )
        known = known[known > 0]
        starts = np.cumsum(known) - known
        set_fields(
            self,
            lengths=jnp.asarray(sent(known.astype(np.int32))),
            starts=jnp.asarray(sent(starts.astype(np.int32))),
            size=size,
            count=len(known),
            together=together,
            digest=digest_of(known),
        )

    def over(self, n: int, owner: str) -> Order:
        if n != self.size:
            raise PipelineError(
                f"{owner}: `BlockShuffle()` has the blocks of a source of {self.size} elements, "
                f"and there are {n} here; give it a size, `ordering=BlockShuffle(1024)`."
            )
        return self

    @property
    def identity(self) -> Identity:
        together = f", together={self.together}" if self.together > 1 else ""
        return ("BlockShuffle({} blocks, {}{})", self.count, self.digest, together)

    def index(self, key: Any, epochs: Any, column: Any, position: Any, n: int) -> Any:
        word = position.dtype.type
        together = min(self.together, self.count)
        column = column.astype(np.int32)
        blocks, begins = self._slots(key, epochs, position.dtype)
        row = column * np.int32(self.count + 1)  # where the table of the lane's epoch begins

        def begin_of(slot: Any) -> Any:
            return gathered(begins, row + slot.astype(np.int32))

        slot = _last_begun(begin_of, position, self.count)
        group = slot // word(together)
        first = group * word(together)
        last = (np if isinstance(slot, np.ndarray) else jnp).minimum(
            first + word(together), word(self.count)
        )
        begin, end = begin_of(first), begin_of(last)
        lane_epoch = gathered(epochs, column)
        seeds = threefry(key_for(key, 1, BLOCK), (lane_epoch, group.astype(np.uint32)))
        inside = (position - begin).astype(np.uint32)
        inside = permute_lanes(inside, seeds, (end - begin).astype(np.uint32))
        position = begin + inside.astype(position.dtype)
        if together > 1:  # otherwise it is still in the same slot
            slot = _last_begun(begin_of, position, self.count)
        block = gathered(blocks, column * np.int32(self.count) + slot.astype(np.int32))
        start = gathered(self.starts, block).astype(position.dtype)
        return start + (position - begin_of(slot))

    def _slots(self, key: Any, epochs: Any, dtype: Any) -> tuple[Any, Any]:
        """The block in each slot of each epoch, [epochs * blocks]; and where the slots begin,
        [epochs * (blocks + 1)]: the last one of an epoch is its end."""
        xp = np if isinstance(epochs, np.ndarray) else jnp
        shape = (epochs.shape[0], self.count)
        constants = round_constants(key_for(key, 0, BLOCK), epochs, self.count)
        # Computed from the epochs, and not constants: see `BlockShuffle.index`.
        zero = xp.broadcast_to((epochs * np.uint32(0)).astype(np.int32)[:, None], shape)
        every = xp.broadcast_to(xp.arange(shape[0], dtype=np.int32)[:, None], shape)
        slot = zero + xp.broadcast_to(xp.arange(shape[1], dtype=np.int32)[None, :], shape)
        blocks = permute(slot, every, constants, self.count).astype(np.int32)
        lengths = gathered(self.lengths, blocks).astype(dtype)
        ends = xp.cumsum(lengths, axis=1, dtype=dtype)
        begins = xp.concatenate([ends[:, :1] - lengths[:, :1], ends], axis=1)
        flat = np.ravel if xp is np else lambda x: reshaped(x, x.size)
        return flat(blocks), flat(begins)


def _last_begun(begin_of: Callable[[Any], Any], position: Any, count: int) -> Any:
    """The last of `count` slots that begins at or before each position."""
    word = position.dtype.type
    rounds = (count - 1).bit_length()

    def halved(slot: Any, step: Any) -> Any:
        xp = np if isinstance(slot, np.ndarray) else jnp
        there = slot + step
        inside = xp.minimum(there, word(count - 1))
        begun = (there < word(count)) & (begin_of(inside) <= position)
        return xp.where(begun, inside, slot)

    def unrolled(slot: Any) -> Any:
        for number in reversed(range(rounds)):
            slot = halved(slot, word(1 << number))
        return slot

    def rolled(slot: Any) -> Any:
        steps = jnp.asarray([1 << number for number in reversed(range(rounds))], position.dtype)
        return lax.scan(lambda slot, step: (halved(slot, step), None), slot, steps)[0]

    none = position * word(0)
    if isinstance(position, np.ndarray) or rounds == 0:
        return unrolled(none)
    # As in `permutation`: on the CPU a loop, which XLA cannot fuse into the code that uses it.
    return by_platform(none, cpu=rolled, default=unrolled)
