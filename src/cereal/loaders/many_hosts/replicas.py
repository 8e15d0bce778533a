"""Do processes that should hold the same rows hold the same rows? `check_replicas=N` looks.

    data=2, model=2       process 0: rows 0:4     process 1: rows 0:4      compared
                          process 2: rows 4:8     process 3: rows 4:8      compared

A difference means that a function is not pure (it uses the time, or a generator of its own), or
that processes read different files. The model would then train on wrong data, without an error.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ...base.errors import ReplicaError
from ...base.spec import named_places
from ...device.batch_sharding import BatchSharding
from ...device.exchange import exchange
from ...device.share import box_of
from .checksums import checksum, words_of


def some_rows_are_shared(placement: BatchSharding) -> bool:
    """Whether two processes hold the same part of an array of the batch, or of its mask."""
    arrays = [*zip(placement.leaves, placement.spec.leaves, strict=True)]
    pairs = [(sharding, leaf.shape) for sharding, leaf in arrays]
    for sharding, shape in (*pairs, (placement.mask, placement.padded)):
        holder: dict[Any, int] = {}
        for device, index in sharding.devices_indices_map(shape).items():
            process = device.process_index
            if holder.setdefault(box_of(index, shape), process) != process:
                return True
    return False


class ReplicaCheck:
    """Compares one of every so many batches."""

    def __init__(self, placement: Any) -> None:
        self._mesh, self._every = placement.mesh, placement.check_replicas

    def __call__(self, step: int, batch: Any, mask: Any) -> None:
        """`step` is the number of a batch since the iteration began, from 0 on."""
        if (step + 1) % self._every:
            return
        where = f"step {step} of this iteration, counted from 0"
        arrays = {**dict(named_places(batch, "batch")), "the mask": mask}
        table = [_digests(array) for array in arrays.values()]
        most = max(len(each) for each in table)
        numbers = np.zeros((len(table), most, 2), np.uint32)
        for row, each in enumerate(table):
            numbers[row, : len(each)] = each
        found = exchange(numbers, self._mesh)
        for row, name in enumerate(arrays):
            self._compare({p: x[row] for p, x in found.items()}, name, where)

    def _compare(self, found: dict[int, np.ndarray], name: str, where: str) -> None:
        for part in range(len(next(iter(found.values()), ()))):
            have = {p: int(x[part, 1]) for p, x in found.items() if x[part, 0]}
            if len(set(have.values())) > 1:
                first = min(have)
                other = min(p for p, value in have.items() if value != have[first])
                raise ReplicaError(
                    f"processes {first} and {other} hold different values in the same rows of "
                    f"{name}, at {where}. A function of the pipeline does not depend on its "
                    f"arguments alone, or the processes read different files; until this is "
                    f"mended, the model trains on wrong data."
                )


def _digests(array: jax.Array) -> np.ndarray:
    """For each part of an array, whether this process has it, and its checksum."""
    array = words_of(array)
    held = array.sharding.devices_indices_map(array.shape).values()
    parts = {box_of(index, array.shape) for index in held}
    numbers = {box: k for k, box in enumerate(sorted(parts))}
    found = np.zeros((len(numbers), 2), np.uint32)
    for shard in array.addressable_shards:
        number = numbers[box_of(shard.index, array.shape)]
        if not found[number, 0]:
            found[number] = 1, checksum(shard.data)
    return found
