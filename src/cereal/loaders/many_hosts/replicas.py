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
from ...device.batch_sharding import BatchSharding
from ...device.exchange import exchange
from .checksums import checksum, words_of


def some_rows_are_shared(placement: BatchSharding) -> bool:
    """Whether two processes hold the same part of an array of the batch, or of its mask."""
    arrays = [*zip(placement.leaves, placement.spec.leaves, strict=True)]
    pairs = [(sharding, leaf.shape) for sharding, leaf in arrays]
    for sharding, shape in (*pairs, (placement.mask, placement.padded)):
        holder: dict[Any, int] = {}
        for device, index in sharding.devices_indices_map(shape).items():
            process = device.process_index
            if holder.setdefault(_box(index, shape), process) != process:
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
        arrays = {f"batch{path}": leaf for path, leaf in _named(batch)} | {"the mask": mask}
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
                    f"`{name}`, at {where}. A function of the pipeline does not depend on its "
                    f"arguments alone, or the processes read different files; until this is "
                    f"mended, the model trains on wrong data."
                )


def _named(batch: Any) -> list[tuple[str, Any]]:
    paths = jax.tree_util.tree_flatten_with_path(batch)[0]
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in paths]


def _digests(array: jax.Array) -> np.ndarray:
    """For each part of an array, whether this process has it, and its checksum."""
    array = words_of(array)
    parts = {
        _box(i, array.shape): None for i in array.sharding.devices_indices_map(array.shape).values()
    }
    numbers = {box: k for k, box in enumerate(sorted(parts))}
    found = np.zeros((len(numbers), 2), np.uint32)
    for shard in array.addressable_shards:
        number = numbers[_box(shard.index, array.shape)]
        if not found[number, 0]:
            found[number] = 1, checksum(shard.data)
    return found


def _box(index: Any, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(each.indices(n)[:2] for each, n in zip(index, shape, strict=True))
