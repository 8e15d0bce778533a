"""One digest for every way to run a pipeline: the promise of the library, in one number.

    python benchmarks/digest.py          nine cells, as `make slow` runs them
    python benchmarks/digest.py --all    all cells, as `make elastic` runs them

The same over meshes of devices in several processes is in `digest_hosts.py`.

SHA-256 over the first 300 batches of a pipeline with random integers added on the host and in JAX.
A cell is a number of workers, threads or processes, a number of batches read ahead, a way to run
it, and restarts at random steps or none; every cell must print the digest below. It is the same on
every machine and with every version of JAX: a change of it is a breaking change.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cereal import (
    BatchTransform,
    DataLoader,
    DiskSampleSource,
    HostMapTransform,
    HostRandomMapTransform,
    RandomMapTransform,
)

GOLDEN = "6acac49a48fe9015b73d9dec5246531ce72ad977386008d0659f1bd4ee9d414a"
STEPS, LENGTH, BATCH, KEY = 300, 1000, 32, 7


class Cell(NamedTuple):
    """How the pipeline is run."""

    workers: int
    prefetch: int
    way: str
    restarts: int
    kind: str = "thread"


def read(index: int) -> dict[str, Any]:
    return {"x": np.arange(8, dtype=np.int32) * index, "label": index}


def add_on_host(element: Any, rng: np.random.Generator) -> Any:
    return {**element, "x": element["x"] + rng.integers(0, 1000, 8, dtype=np.int32)}


def count(batch: Any, mask: Any) -> Any:
    return {**batch, "real": np.cumsum(mask)}


def add_in_jax(element: Any, key: Any) -> Any:
    noise = jax.random.bits(key, (8,), jnp.uint32) >> 16
    return {**element, "x": element["x"] + noise.astype(jnp.int32)}


class Flip:
    """A stage as Grain's users write it."""

    def map(self, element: Any) -> Any:
        return {**element, "x": element["x"] ^ 1}


def pipeline(on_batches: tuple[Any, ...] = (HostMapTransform(count),)) -> list[Any]:
    """The stages; `on_batches` are those of Python that see whole batches."""
    return [
        DiskSampleSource(length=LENGTH, sample_fn=read, ordering="shuffle"),
        HostRandomMapTransform(add_on_host),
        Flip(),
        BatchTransform(BATCH),
        *on_batches,
        RandomMapTransform(add_in_jax),
    ]


def make_loader(workers: int, prefetch: int, kind: Any = None) -> DataLoader[Any]:
    return DataLoader(
        pipeline(),
        workers=workers,
        prefetch=prefetch,
        worker_type=kind if workers else None,
    )


# The ways


def by_iterate(loader: DataLoader[Any], state: Any, steps: int) -> tuple[list[Any], Any]:
    with loader.iterate(state, steps=steps) as batches:
        found = list(batches)
        return found, batches.state


def by_next_batch(loader: DataLoader[Any], state: Any, steps: int) -> tuple[list[Any], Any]:
    found, step = [], jax.jit(loader.next_batch)
    for _ in range(steps):
        batch, state, mask = step(state)
        found.append((batch, mask))
    return found, state


def by_scan_epoch(loader: DataLoader[Any], state: Any, steps: int) -> tuple[list[Any], Any]:
    state, _, (batches, masks) = loader.scan_epoch(state, 0, _keep, steps=steps)
    pairs = jax.device_get((batches, masks))
    return [jax.tree.map(lambda x, k=k: x[k], pairs) for k in range(steps)], state


def _keep(carry: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
    return carry, (batch, mask)


WAYS: dict[str, Callable[..., tuple[list[Any], Any]]] = {
    "iterate": by_iterate,
    "next_batch": by_next_batch,
    "scan_epoch": by_scan_epoch,
}


def pieces(restarts: int, seed: int) -> Iterator[int]:
    """How many steps to run between restarts."""
    cuts = sorted(random.Random(seed).sample(range(1, STEPS), restarts))
    yield from (b - a for a, b in itertools.pairwise([0, *cuts, STEPS]))


def as_bytes(batch: Any, mask: Any) -> bytes:
    """All that is digested of a batch of NumPy arrays."""
    named = (*sorted(batch.items()), ("mask", mask))
    return b"".join(
        f"{name} {array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes()
        for name, array in named
    )


def digest(cell: Cell) -> str:
    """The digest of the first batches, run as the cell says."""
    found = hashlib.sha256()
    words: Any = None
    for number, steps in enumerate(pieces(cell.restarts, seed=cell.workers + cell.prefetch)):
        if number == 0 or cell.restarts:  # a restart: nothing is left but the state's words
            loader = make_loader(cell.workers, cell.prefetch, cell.kind)
        state = loader.init_state(KEY)
        if words is not None:
            state = state.replaced(jnp.asarray(words))
        batches, state = WAYS[cell.way](loader, state, steps)
        for batch, mask in jax.device_get(batches):
            found.update(as_bytes(batch, mask))
        words = np.asarray(state.words)
        loader.close()
    return found.hexdigest()


def all_cells() -> list[Cell]:
    threads = itertools.product((0, 1, 4), (0, 1, 16), WAYS, (0, 3))
    processes = itertools.product((1, 2, 4), (1, 16), WAYS, (0, 3), ("process",))
    return [Cell(*each) for each in (*threads, *processes)]


def few_cells() -> list[Cell]:
    """Each value of everything, in every way."""
    return [
        Cell(0, 0, "iterate", 0),
        Cell(1, 1, "iterate", 3),
        Cell(4, 16, "iterate", 0),
        Cell(4, 1, "next_batch", 3),
        Cell(1, 16, "scan_epoch", 0),
        Cell(4, 0, "scan_epoch", 3),
        Cell(2, 16, "iterate", 3, "process"),
        Cell(1, 1, "scan_epoch", 0, "process"),
        Cell(4, 1, "next_batch", 0, "process"),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="all cells")
    wrong = 0
    for cell in all_cells() if parser.parse_args().all else few_cells():
        begin = time.perf_counter()
        result = digest(cell)
        wrong += result != GOLDEN
        took = time.perf_counter() - begin
        print(f"{'ok  ' if result == GOLDEN else 'WRONG'} {result}  {took:5.1f} s  {cell}")
    sys.exit(wrong > 0)
