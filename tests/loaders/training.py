"""A small training with checkpoints, as a program that can be killed while it saves.

    python -m tests.loaders.training FOLDER STEPS BATCH WORKERS HOW AT

It prints a line for each step. HOW says when it kills itself, in the checkpoint after step AT:

    never     it does not
    between   when the model is written, and the state of the loader is not
    late      when both are written, and the checkpoint is not finished
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from cereal import BatchTransform, DataLoader, DiskSampleSource, HostRandomMapTransform

N, EVERY = 50, 3


def read(index: int) -> Any:
    return np.full(4, index, np.float32)


def noise(element: Any, rng: np.random.Generator) -> Any:
    return element + rng.random(4, np.float32)


def make_loader(batch: int, workers: int) -> DataLoader[Any]:
    source = DiskSampleSource(N, read, ordering="shuffle")
    return DataLoader(
        [source, HostRandomMapTransform(noise), BatchTransform(batch)], workers=workers
    )


@jax.jit
def train_step(params: Any, batch: Any, mask: Any) -> Any:
    del mask
    return jax.tree.map(lambda x: 0.9 * x + batch.mean(axis=0), params)


class KillingHandler(ocp.JsonCheckpointHandler):
    """Writes JSON as its parent does, and kills the process before or after it."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.armed = how, False

    async def async_save(self, directory: Any, item: Any = None, args: Any = None) -> Any:
        self.armed = args.kill
        if self.armed and self.how == "between":
            while not list(directory.parent.glob("model*/_METADATA")):  # the last that is written
                await asyncio.sleep(0.001)
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().async_save(directory, item, args)

    def finalize(self, directory: Any) -> None:
        if self.armed and self.how == "late":
            os.kill(os.getpid(), signal.SIGKILL)
        super().finalize(directory)


@ocp.args.register_with_handler(KillingHandler, for_save=True)
@dataclass
class KillingSave(ocp.args.JsonSave):
    kill: bool = False


@ocp.args.register_with_handler(KillingHandler, for_restore=True)
@dataclass
class KillingRestore(ocp.args.JsonRestore):
    pass


def train(
    folder: Path, steps: int, batch: int, workers: int, how: str = "never", at: int = -1
) -> Iterator[str]:
    """Trains to the end, or from the last checkpoint on; gives a line for each step."""
    params: Any = {"w": jnp.zeros(4), "b": jnp.ones(4)}
    handlers = {"model": ocp.StandardCheckpointHandler(), "data": KillingHandler(how)}
    with (
        make_loader(batch, workers) as loader,
        ocp.CheckpointManager(folder.absolute(), item_handlers=handlers) as manager,
    ):
        batches = loader.iterate(loader.init_state(3), epochs=None)
        begin, last = 0, manager.latest_step()
        if last is not None:
            wanted = ocp.args.Composite(
                model=ocp.args.StandardRestore(params), data=KillingRestore()
            )
            found = manager.restore(last, args=wanted)
            params, begin = found["model"], last + 1
            batches.set_state(found["data"])
        for step in range(begin, steps):
            elements, mask = next(batches)
            params = train_step(params, elements, mask)
            digests = [zlib.crc32(np.asarray(x).tobytes()) for x in (elements, *params.values())]
            yield " ".join(map(str, (step, *digests)))
            if step % EVERY == EVERY - 1:
                saved = ocp.args.Composite(
                    model=ocp.args.StandardSave(params),
                    data=KillingSave(batches.get_state(), kill=step == at),
                )
                manager.save(step, args=saved)
        manager.wait_until_finished()


if __name__ == "__main__":
    place, *counts, killing, when = sys.argv[1:]
    for line in train(Path(place), *map(int, counts), how=killing, at=int(when)):
        print(line, flush=True)
