"""An order that reads neighbours together: it shuffles blocks, and the elements inside of them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from ..base.errors import PipelineError
from ..base.identity import Identity
from ..base.numbers import as_count
from ..base.pytree import pytree_dataclass, set_fields, static_field
from ..device.explicit_axes import gathered
from .data_blocks import DataBlocks
from .lane_permutation import permute_lanes
from .ordering import Order
from .permutation import inverse, permute, round_constants
from .threefry import BLOCK, key_for, threefry


@pytree_dataclass
class BlockShuffle(Order):
    """Shuffles blocks of neighbours, and the elements within `together` blocks at a time.

        12 elements, block_size=3              [0 1 2] [3 4 5] [6 7 8] [9 10 11]
        BlockShuffle(3)                        8 6 7 | 1 0 2 | 11 9 10 | 4 3 5
        BlockShuffle(3, together=2)            8 1 6 0 2 7 | 3 11 9 4 10 5

    At any time it reads from only `together` blocks. This is for files, row groups and host memory,
    where neighbours are cheap to read. Elements of a block stay within `together * block_size`
    places of each other. Every epoch has a new order. It needs O(1) memory, and computes any
    position directly.

    Without a size, the blocks are those in which the data lies: the row groups of Parquet files,
    the chunks of HDF5 or Zarr. They may have different lengths. An epoch reads each of them once.
    A compiled call then has a table of all blocks, for each epoch that it touches.

    >>> import cereal
    >>> source = cereal.RangeSource(12, ordering=cereal.BlockShuffle(3))
    >>> loader = cereal.DataLoader([source, cereal.BatchTransform(3)])
    >>> sorted(sorted(loader.batch_at(0, step)[0].tolist()) for step in range(4))
    [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    """

    random = True
    plain = True

    block_size: int = static_field()  # 0: the blocks of the data
    together: int = static_field(default=1)

    def __init__(self, block_size: int | None = None, *, together: int = 1) -> None:
        set_fields(
            self,
            block_size=0 if block_size is None else _count(block_size, "block_size"),
            together=_count(together, "together"),
        )

    def in_blocks(self, lengths: Any, owner: str) -> Order:
        return self if self.block_size else DataBlocks(lengths, self.together, owner)

    def over(self, n: int, owner: str) -> Order:
        del n
        if not self.block_size:
            raise PipelineError(
                f"{owner}: `BlockShuffle()` takes the blocks in which the data lies, and this data "
                f"does not lie in blocks; give it a size, `ordering=BlockShuffle(1024)`."
            )
        return self

    @property
    def identity(self) -> Identity:
        together = f", together={self.together}" if self.together > 1 else ""
        if not self.block_size:
            return ("BlockShuffle({})", together.removeprefix(", "))
        return ("BlockShuffle({}{})", self.block_size, together)

    def index(self, key: Any, epochs: Any, column: Any, position: Any, n: int) -> Any:
        xp = np if isinstance(position, np.ndarray) else jnp
        word = position.dtype.type
        size = min(self.block_size, n)
        blocks = -(-n // size)
        rest = n - (blocks - 1) * size  # elements of the last block
        together = min(self.together, blocks)
        constants = round_constants(key_for(key, 0, BLOCK), epochs, blocks)
        # The last block may be shorter. After the shuffle it stands in some slot, `short`, and the
        # slots after it begin earlier than a multiple of `size`.
        every = xp.arange(epochs.shape[0], dtype=np.int32)
        # Computed from the epochs, and not a constant: over a mesh with explicit axes, JAX cannot
        # map a loop that begins with a constant and ends with values of the state.
        last = (epochs * np.uint32(0)).astype(position.dtype) + word(blocks - 1)
        short = permute(last, every, inverse(constants), blocks).astype(position.dtype)
        short = gathered(short, column.astype(np.int32))

        def begin_of(slot: Any) -> Any:
            missing = (slot > short).astype(position.dtype) * word(size - rest)
            return slot * word(size) - missing

        def slot_of(position: Any) -> Any:
            after = (position >= begin_of(short) + word(rest)).astype(position.dtype)
            return (position + after * word(size - rest)) // word(size)

        group = slot_of(position) // word(together)
        first = group * word(together)
        begin = begin_of(first)
        end = begin_of(xp.minimum(first + word(together), word(blocks)))
        lane_epoch = gathered(epochs, column.astype(np.int32))
        seeds = threefry(key_for(key, 1, BLOCK), (lane_epoch, group.astype(np.uint32)))
        inside = (position - begin).astype(np.uint32)
        inside = permute_lanes(inside, seeds, (end - begin).astype(np.uint32))
        position = begin + inside.astype(position.dtype)
        slot = slot_of(position)
        block = permute(slot, column, constants, blocks).astype(position.dtype)
        return block * word(size) + (position - begin_of(slot))


def _count(value: Any, name: str) -> int:
    return as_count(value, name, "BlockShuffle", hint="write, for example, `BlockShuffle(1024)`")
