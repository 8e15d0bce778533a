"""One digest for every way to run a pipeline; `make elastic` runs all cells."""

from __future__ import annotations

import hashlib

import jax
import pytest
from benchmarks import digest_hosts
from benchmarks.digest import GOLDEN, KEY, STEPS, Cell, as_bytes, digest, few_cells
from tests.slowly import slowly

from cereal import DataLoader


@pytest.mark.slow
@pytest.mark.parametrize("cell", few_cells(), ids=str)
def test_every_way_to_run_a_pipeline_has_the_golden_digest(cell: Cell) -> None:
    assert digest(cell) == GOLDEN


def test_the_golden_digest_of_parts_is_that_of_one_process_without_a_mesh() -> None:
    loader, found = DataLoader(digest_hosts.stages_of("parts"), workers=0), hashlib.sha256()
    for pair in loader.iterate(loader.init_state(KEY), steps=STEPS):
        found.update(as_bytes(*jax.device_get(pair)))
    assert found.hexdigest() == digest_hosts.GOLDEN_PARTS


def cells_of(processes: int, devices: int) -> list[digest_hosts.Cell]:
    """They run one after the other, in the same processes."""
    return [each for each in digest_hosts.few_cells() if each[:2] == (processes, devices)]


@pytest.mark.parametrize(
    "cells",
    [
        slowly([digest_hosts.Cell(2, 2, "data x seq")]),
        slowly(cells_of(1, 2)),
        slowly(cells_of(2, 2)),
    ],
    ids=lambda cells: f"{len(cells)} of {cells[0][0]}x{cells[0][1]}",
)
def test_every_mesh_over_processes_has_the_golden_digest(cells: list[digest_hosts.Cell]) -> None:
    for cell, found in digest_hosts.run_cells(cells).items():
        assert found == digest_hosts.GOLDENS[cell.pipeline], cell


@pytest.mark.slow  # three processes
def test_a_run_that_is_killed_and_goes_on_over_another_mesh_has_the_golden_digest() -> None:
    ways = iter([digest_hosts.Cell(2, 1, "data"), digest_hosts.Cell(1, 2, "data x seq")])
    found, kills = digest_hosts.killed("parts", [40], ways)
    assert (found, kills) == (digest_hosts.GOLDEN_PARTS, 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", digest_hosts.GOLDENS)
def test_a_run_that_is_killed_at_random_steps_has_the_golden_digest(kind: str) -> None:
    found, kills = digest_hosts.killed(kind, [40, 90, 200], digest_hosts.drawn(seed=len(kind)))
    assert found == digest_hosts.GOLDENS[kind]
    assert kills > 0
