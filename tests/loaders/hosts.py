"""One of several processes of a job, which saves a checkpoint with the others.

python -m tests.loaders.hosts RANK HOSTS PORT FOLDER
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from cereal import BatchTransform, DataLoader, DiskSampleSource

STEPS = 5


def make_loader(batch: int) -> DataLoader[Any]:
    source = DiskSampleSource(50, np.float32, ordering="shuffle")
    return DataLoader([source, BatchTransform(batch)], workers=1)


def main(rank: int, hosts: int, port: int, folder: Path) -> None:
    jax.distributed.initialize(f"localhost:{port}", hosts, rank)
    import orbax.checkpoint as ocp
    import orbax.checkpoint.experimental.v1 as v1
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    spread = NamedSharding(Mesh(np.array(jax.devices()), "x"), PartitionSpec("x"))
    numbers = np.arange(jax.device_count(), dtype=np.float32)
    model = {"w": jax.make_array_from_callback(numbers.shape, spread, lambda part: numbers[part])}
    with make_loader(4) as loader:
        batches = loader.iterate(loader.init_state(3), epochs=None)
        list(itertools.islice(batches, STEPS))
        with ocp.CheckpointManager(folder / "manager") as manager:
            data = ocp.args.JsonSave(batches.get_state())
            manager.save(0, args=ocp.args.Composite(model=ocp.args.StandardSave(model), data=data))
            manager.wait_until_finished()
        v1.save_checkpointables(str(folder / "v1"), {"model": model, "data": batches})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
