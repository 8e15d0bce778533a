"""What docs/many-hosts.md says, in several processes: its own blocks, who reads what, orders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from tests.many_hosts.jobs import gathered
from tests.many_hosts.launch import launch
from tests.test_docs import BLOCK, ROOT

import cereal
from cereal import (
    BatchTransform,
    ClassBalanced,
    DataLoader,
    DiskSampleSource,
    IterableSource,
    MixSource,
    SliceSource,
    WeightedSampling,
)

LENGTH, BATCH = 32, 8


def run_the_page(folder: str) -> int:
    """Runs its blocks, each process in a folder of its own."""
    here = Path(folder, str(jax.process_index()))
    here.mkdir()
    os.chdir(here)
    names: dict[str, Any] = {"__name__": "__main__"}
    blocks = BLOCK.findall((ROOT / "docs" / "many-hosts.md").read_text())
    for block in blocks:
        exec(block, names)
    return len(blocks)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_the_page_runs_in_real_processes(processes: int, tmp_path: Path) -> None:
    name = "tests.many_hosts.test_guide:run_the_page"
    counts = launch(name, processes, 2, folder=str(tmp_path))
    assert len(set(counts)) == 1
    assert counts[0] >= 10


# Who reads what


def elements_read() -> dict[str, int]:
    """For each way, how many of 32 elements this process makes in an epoch of batches of 8."""
    seen: list[int] = []

    def read(index: int) -> Any:
        seen.append(index)
        return {"x": np.full(8, index, np.float32)}

    def stream() -> Iterator[Any]:
        yield from map(read, range(LENGTH))

    def count(stages: list[Any], sharding: Any, source: Any = None) -> int:
        seen.clear()
        known = source() if source else DiskSampleSource(LENGTH, read, ordering="sequential")
        with DataLoader([known, *stages], sharding=sharding, workers=1) as loader:
            if source is None:
                seen.clear()  # the first element, read to learn its shape; a stream goes on from it
            for batch, _ in loader.iterate(loader.init_state(0), steps=LENGTH // BATCH):
                jax.block_until_ready(batch)
        return len(set(seen))

    data, batched = (cereal.mesh(data=-1), "data"), [BatchTransform(BATCH)]
    stacked = BatchTransform(BATCH, collate=lambda rows: {"x": np.stack([r["x"] for r in rows])})
    return {
        "data parallel": count(batched, data),
        "neighbours in a row": count(batched, (cereal.mesh(data=2, model=2), "data")),
        "neighbours in a column": count(batched, (cereal.mesh(model=2, data=2), "data")),
        "inner axes": count(batched, (cereal.mesh(data=2, seq=2), {"x": P("data", "seq")})),
        "microbatches": count([BatchTransform(4), BatchTransform(2)], (data[0], P(None, "data"))),
        "whole batches": count([stacked], data),
        "a stream": count(batched, data, lambda: IterableSource(stream, length=LENGTH)),
    }


@pytest.mark.slow  # two processes
def test_processes_read_what_the_guide_says() -> None:
    half = ("data parallel", "neighbours in a row", "inner axes", "microbatches")
    whole = ("neighbours in a column", "whole batches")
    found = launch("tests.many_hosts.test_guide:elements_read", 2, 2)
    assert [each.pop("a stream") for each in found] == [28, 32]  # up to the last that it keeps
    assert found == [dict.fromkeys(half, LENGTH // 2) | dict.fromkeys(whole, LENGTH)] * 2


# Orders


def sources() -> dict[str, Any]:
    rows = DiskSampleSource(60, lambda i: {"x": np.int32(i)}, ordering="shuffle")
    labels = np.arange(60) % 7
    return {
        "weighted": SliceSource(rows, range(60), ordering=WeightedSampling(labels + 1.0)),
        "balanced": SliceSource(rows, range(60), ordering=ClassBalanced(labels)),
        "mixed": MixSource([rows, SliceSource(rows, range(9))], weights=(3, 1), ordering="shuffle"),
    }


def orders() -> dict[str, list[int]]:
    """The elements of twenty batches, from a loader over all devices."""
    found, mesh = {}, cereal.mesh(data=-1)
    for name, source in sources().items():
        with DataLoader([source, BatchTransform(8)], sharding=(mesh, "data"), workers=1) as loader:
            batches = loader.iterate(loader.init_state(0), steps=20)
            found[name] = [int(x) for batch, _ in batches for x in gathered(batch)["x"]]
    return found


@pytest.mark.slow  # two processes
def test_weighted_balanced_and_mixed_orders_are_those_of_one_process() -> None:
    alone = {}
    for name, source in sources().items():
        loader = DataLoader([source, BatchTransform(8)], workers=0)
        batches = loader.iterate(loader.init_state(0), steps=20)
        alone[name] = [int(x) for batch, _ in batches for x in batch["x"]]
    assert launch("tests.many_hosts.test_guide:orders", 2, 2) == [alone] * 2
