"""One loader with worker processes in a fresh interpreter: its first batch, and its memory.

    python benchmarks/first_batch.py {cereal,torch,grain} [--workers 2] [--rounds 700]

`processes.py` runs this. The clock begins after all imports and after JAX has its device, and ends
when the first batch of 32 is on the device; making the loader and starting its processes count.
Then more batches are read, and the memory of the processes below this one is read from /proc.
What it found is one line of JSON. Worker processes import this file again if the loader starts
them in the way of `multiprocessing`: so it imports only what a worker needs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from work import Spin, descendants, memory_of

BATCH = 32


def cereal_batches(spin: Spin, workers: int) -> Callable[[], Iterator[Any]]:
    from sides import endless, make_loader

    from cereal import BatchTransform, DatasetSource, HostMapTransform

    def make() -> Iterator[Any]:
        source = DatasetSource(range(10**6), ordering="shuffle")
        stages = [source, HostMapTransform(spin), BatchTransform(BATCH)]
        return endless(make_loader(stages, workers, "process"))

    return make


def make_batches(name: str, spin: Spin, workers: int) -> Callable[[], Iterator[Any]] | None:
    from sides import grain_batches, torch_batches

    if name == "cereal":
        return cereal_batches(spin, workers)
    if name == "torch":
        return torch_batches(spin, BATCH, workers)
    return grain_batches(spin, BATCH, workers)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    import jax

    jax.block_until_ready(jax.device_put(1))
    make = make_batches(options.side, Spin(options.rounds), options.workers)
    if make is None:
        return {"missing": True}
    begin = time.perf_counter()
    batches = make()
    jax.block_until_ready(jax.device_put(next(batches)))
    first = time.perf_counter() - begin
    for batch in itertools.islice(batches, 20 * options.workers):
        jax.device_put(batch)
    time.sleep(0.5)
    memory = [memory_of(pid) for pid in descendants()]
    getattr(batches, "close", lambda: None)()
    return {"first": first, "memory": memory}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=("cereal", "torch", "grain"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=700, help="of the arithmetic an element")
    print(json.dumps(measured(parser.parse_args())))
