"""A process reads the bytes that its devices need, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.many_hosts.byte_counts import write_rows
from tests.many_hosts.launch import launch

MESHES = ("data", "data x model", "data x seq")


@pytest.mark.slow  # two processes
def test_each_of_two_processes_reads_its_half(tmp_path: Path) -> None:
    cells = [["data x seq", "file", 32], ["data", "file", 32], ["data", "function", 32]]
    for found in _counted(tmp_path, 2, 1, cells):
        for each in found:
            assert each["read"] == each["share"]
        assert found[1]["share"] * 2 == found[1]["all"]
        assert found[2]["share"] * 2 == found[2]["all"]
        labels = 4 * 32 * 4  # of which both processes need all, if only the rows are divided
        assert found[0]["share"] == (found[0]["all"] - labels) // 2 + labels


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "devices"), [(2, 2), (4, 1), (4, 2)])
def test_a_process_reads_its_share(tmp_path: Path, processes: int, devices: int) -> None:
    cells = [
        [mesh, source, batch]
        for mesh in MESHES
        for source in ("file", "function")
        for batch in (32, 30)
    ]
    for found in _counted(tmp_path, processes, devices, cells):
        for cell, each in zip(cells, found, strict=True):
            assert each["read"] == each["share"], cell


def _counted(
    folder: Path, processes: int, devices: int, cells: list[list[object]]
) -> list[list[dict[str, int]]]:
    job = "tests.many_hosts.byte_counts:counted"
    path = str(write_rows(folder))
    return launch(job, processes, devices, path=path, cells=cells, steps=4)
