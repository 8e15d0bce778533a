"""The digest of `digest.py` over meshes of devices, in one process and in several.

    python -m benchmarks.digest_hosts          some cells, as `make test` runs them
    python -m benchmarks.digest_hosts --all    all cells, as `make elastic` runs them

A cell is a number of processes, of devices in each, a mesh, a pipeline and a way to run it. The
processes are real ones, joined by `jax.distributed`. Every process puts the global batches together
from all devices and digests them; all must get the golden value.

    pipeline   host stages                           a process reads        golden value
    whole      before and after the BatchTransform   whole batches          that of `digest.py`
    parts      before it                             its part of a batch    GOLDEN_PARTS

Killed runs: all processes are killed at a random step, and another combination of the above goes on
from the state that was saved last. No batch may be lost or repeated:

    append the batch to a file  ->  save the state and the length of the file  ->  next step
                                    goes on: cut the file to that length
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from benchmarks.digest import GOLDEN, KEY, STEPS, as_bytes, pipeline
from jax.sharding import NamedSharding, PartitionSpec
from tests.many_hosts.jobs import mesh_of
from tests.many_hosts.launch import FailedError, launch, started

from cereal import DataLoader

GOLDEN_PARTS = "10659d5c3c70bc4ee2e0fc3856fc3c26ee4e50ca2e279ce15cee7ff4222a73fe"
GOLDENS = {"whole": GOLDEN, "parts": GOLDEN_PARTS}
MESHES = ("data", "data x model", "data x seq")
WAYS = ("iterate", "next_batch", "scan_epoch")


class Cell(NamedTuple):
    """How the pipeline is run."""

    processes: int
    devices: int  # of each process
    mesh: str
    pipeline: str = "parts"
    way: str = "iterate"


# In each process


def make_loader(kind: str, mesh: str) -> DataLoader[Any]:
    names = ["x", "label"] + (["real"] if kind == "whole" else [])
    parts = {name: PartitionSpec("data") for name in names}
    if mesh == "data x seq":
        parts["x"] = PartitionSpec("data", "seq")
    return DataLoader(stages_of(kind), workers=2, sharding=(mesh_of(mesh), parts))


def stages_of(kind: str) -> list[Any]:
    return pipeline() if kind == "whole" else pipeline(on_batches=())


def gathered(tree: Any) -> Any:
    """Global arrays as NumPy arrays, whole in every process."""
    mesh = jax.tree.leaves(tree)[0].sharding.mesh
    return jax.device_get(_copied_to_all(NamedSharding(mesh, PartitionSpec()))(tree))


@cache
def _copied_to_all(everywhere: NamedSharding) -> Any:
    return jax.jit(lambda tree: tree, out_shardings=everywhere)


def steps_of(loader: DataLoader[Any], state: Any, way: str, steps: int) -> Iterator[Any]:
    """`((batch, mask), state)` of the next steps, with the state after each."""
    if way == "iterate":
        with loader.iterate(state, steps=steps) as batches:
            for pair in batches:
                yield pair, batches.state
    for _ in range(steps if way == "next_batch" else 0):
        batch, state, mask = loader.next_batch(state)
        yield (batch, mask), state


def scanned(loader: DataLoader[Any], state: Any, steps: int) -> Iterator[Any]:
    """`(batch, mask)` of the next steps, as the body of a scan gets them."""
    _, _, pairs = loader.scan_epoch(state, jnp.int32(0), _keep, steps=steps)
    pairs = gathered(pairs)
    yield from (jax.tree.map(lambda x, k=step: x[k], pairs) for step in range(steps))


def _keep(carry: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
    return carry, (batch, mask)


def digests(cells: list[list[str]]) -> list[str]:
    """The digest of each `[mesh, pipeline, way]`, as this process sees it."""
    found = []
    for mesh, kind, way in cells:
        loader, made = make_loader(kind, mesh), hashlib.sha256()
        state = loader.init_state(KEY)
        for batch, mask in _pairs(loader, state, way):
            made.update(as_bytes(batch, mask))
        loader.close()
        found.append(made.hexdigest())
    return found


def _pairs(loader: DataLoader[Any], state: Any, way: str) -> Iterator[Any]:
    if way == "scan_epoch":
        yield from scanned(loader, state, STEPS)
        return
    steps = steps_of(loader, state, way, STEPS)
    while some := [pair for pair, _ in itertools.islice(steps, 20)]:  # sent together: that is quick
        yield from gathered(some)


def go_on(folder: str, mesh: str, kind: str, way: str) -> None:
    """Goes on from the saved state to the last step; process 0 saves after each."""
    saved, batches = _read_saved(Path(folder)), Path(folder) / "batches"
    loader = make_loader(kind, mesh)
    start, step, size = loader.init_state(KEY), saved["step"], saved["size"]
    if saved["words"] is not None:
        start = start.replaced(jnp.asarray(saved["words"], jnp.uint32))
    first = jax.process_index() == 0
    if first:
        batches.touch()
        os.truncate(batches, size)
    for pair, state in steps_of(loader, start, way, STEPS - step):
        step, whole = step + 1, gathered(pair)
        if first:
            with batches.open("ab") as file:
                size += file.write(as_bytes(*whole))
            words = np.asarray(state.words).tolist()
            _save(Path(folder), {"step": step, "size": size, "words": words})
    loader.close()


def _save(folder: Path, saved: Any) -> None:
    (folder / "state.new").write_text(json.dumps(saved))
    os.replace(folder / "state.new", folder / "state")


def _read_saved(folder: Path) -> Any:
    if not (folder / "state").exists():
        return {"step": 0, "size": 0, "words": None}
    return json.loads((folder / "state").read_text())


# In the process that starts them


def run_cells(cells: list[Cell]) -> dict[Cell, str]:
    """The digest of each cell; one job runs all that have the same processes and devices."""
    found = {}
    for (processes, devices), group in itertools.groupby(sorted(cells), lambda cell: cell[:2]):
        same = list(group)
        rest = [list(cell[2:]) for cell in same]
        job = "benchmarks.digest_hosts:digests"
        made = launch(job, processes, devices, timeout=1200, cells=rest)
        for cell, each in zip(same, zip(*made, strict=True), strict=True):
            found[cell] = " and ".join(dict.fromkeys(each))  # one, if all processes agree
    return found


def killed(kind: str, ends: list[int], ways: Iterator[Cell]) -> tuple[str, int]:
    """The digest of a run that is killed after these steps, and how often it was.

    Each time, the next cell of `ways` goes on.
    """
    done = 0
    with tempfile.TemporaryDirectory() as folder:
        while (step := _read_saved(Path(folder))["step"]) < STEPS:
            end = next((each for each in ends if each > step), None)
            done += _until(end, Path(folder), next(ways)._replace(pipeline=kind))
        return hashlib.sha256((Path(folder) / "batches").read_bytes()).hexdigest(), done


def _until(end: int | None, folder: Path, cell: Cell) -> bool:
    """Runs a job until this step has been saved, and kills it; None: until it is done. Whether it
    was killed before its end."""
    arguments = {"folder": str(folder), "mesh": cell.mesh, "kind": cell.pipeline, "way": cell.way}
    job = "benchmarks.digest_hosts:go_on"
    with started(job, cell.processes, cell.devices, **arguments) as running:
        while end is None or _read_saved(folder)["step"] < end:
            codes = [process.poll() for process in running.processes]
            failed = [number for number, code in enumerate(codes) if code]
            if failed:
                raise FailedError(f"{cell}: {codes}\n{running.output(failed[0])[-6000:]}")
            if None not in codes:
                return False
            time.sleep(0.002)
    return _read_saved(folder)["step"] < STEPS  # the block has killed all processes at its end


# The cells

SIZES = tuple(itertools.product((1, 2, 4), (1, 2)))


def all_cells() -> list[Cell]:
    """Every mesh of every size is iterated; the other ways and the other pipeline take turns."""
    found = []
    for number, (size, mesh) in enumerate(itertools.product(SIZES, MESHES)):
        found.append(Cell(*size, mesh, "parts", "iterate"))
        found.append(Cell(*size, mesh, "parts", WAYS[1 + number % 2]))
        found.append(Cell(*size, mesh, "whole", WAYS[(number + number // 3) % 3]))
    return found


def few_cells() -> list[Cell]:
    """Each mesh and pipeline; few processes, since each takes seconds to start."""
    return [
        Cell(1, 2, "data"),
        Cell(1, 2, "data x seq"),
        Cell(2, 2, "data", "whole"),
        Cell(2, 2, "data x model"),
        Cell(2, 2, "data x seq"),
    ]


def drawn(seed: int) -> Iterator[Cell]:
    """Random cells without end; each differs from the last in processes, devices or mesh."""
    draw, last = random.Random(seed), None
    while True:
        cell = Cell(*draw.choice(SIZES), draw.choice(MESHES), way=draw.choice(WAYS[:2]))
        if cell[:3] != last:
            last = cell[:3]
            yield cell


def runs(every: bool) -> Iterator[tuple[str, str, str]]:
    """(what was run, its digest, the one that it must have), as they end."""
    cells = all_cells() if every else few_cells()
    for size in SIZES:
        for cell, found in run_cells([cell for cell in cells if cell[:2] == size]).items():
            yield str(cell), found, GOLDENS[cell.pipeline]
    for seed, kind in enumerate(("parts", "whole", "parts") if every else ("parts",)):
        ends = sorted(random.Random(seed).sample(range(1, STEPS - 30), 6 if every else 1))
        found, kills = killed(kind, ends, drawn(seed))
        yield f"killed {kills} times, {kind}", found, GOLDENS[kind]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="all cells")
    wrong, begin = 0, time.perf_counter()
    for name, found, golden in runs(parser.parse_args().all):
        wrong += found != golden
        taken = time.perf_counter() - begin
        print(
            f"{'ok  ' if found == golden else 'WRONG'} {found}  {taken:5.0f} s  {name}", flush=True
        )
    sys.exit(wrong > 0)
