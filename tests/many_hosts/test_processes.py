"""Real processes of `jax.distributed`: one global batch, of which each process reads its part."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tests.many_hosts.launch import launch

JOBS = "tests.many_hosts.jobs:"
MESHES = ("data", "data x model", "data x seq")
ALL = list(itertools.product(MESHES, ("function", "arrays"), (False, True), (False, True)))


def alike(processes: int, devices: int, **how: Any) -> list[Any]:
    given = {"explicit": False, "order": "as it is", "size": 8, "stage": False, **how}
    return launch(JOBS + "all_alike", processes, devices, **given)


@pytest.mark.slow
def test_two_processes_read_half_of_every_batch() -> None:
    found = alike(2, 2, mesh="data", source="function")
    assert [each["reads"] for each in found] == [40, 40]  # of 80, in ten steps


@pytest.mark.slow
def test_devices_that_do_not_follow_the_order_of_processes() -> None:
    found = alike(2, 2, mesh="data", source="function", order="mixed", stage=True, size=10)
    assert [each["reads"] for each in found] == [60, 60]  # a batch of 10 is padded to 12


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "source", "stage", "explicit"), ALL)
def test_two_processes(mesh: str, source: str, stage: bool, explicit: bool) -> None:
    alike(2, 2, mesh=mesh, source=source, stage=stage, explicit=explicit)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["as it is", "mixed"])
@pytest.mark.parametrize("stage", [False, True])
def test_parts_of_rows_of_a_memory_map(order: str, stage: bool) -> None:
    alike(2, 2, mesh="data x seq", source="memory map", order=order, stage=stage)


@pytest.mark.slow
@pytest.mark.parametrize("by_function", [False, True])
def test_all_processes_leave_out_an_element_that_one_could_not_read(by_function: bool) -> None:
    found = launch(JOBS + "elements_left_out", 2, 2, by_function=by_function)
    if by_function:
        assert found == [{"skipped": 0, "row": [-7] * 16, "real": True}] * 2
    else:  # it is the first element that can be read, as without a mesh
        assert found == [{"skipped": 1, "row": list(range(1, 17)), "real": False}] * 2


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("source", ["function", "arrays"])
def test_four_processes(mesh: str, source: str) -> None:
    found = alike(4, 2, mesh=mesh, source=source, size=16, order="mixed", stage=True)
    if source == "function":
        # With the devices mixed, a row's two columns belong to two processes, which both read it.
        share = {"data": 40, "data x model": 80, "data x seq": 80}[mesh]
        assert [each["reads"] for each in found] == [share] * 4


@pytest.mark.slow
@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_loops_under_a_mesh_that_was_set(explicit: bool, wide: bool) -> None:
    total = sum(range(64)) + (64 if wide else 0)
    found = launch(JOBS + "under_a_mesh_that_was_set", 2, 2, explicit=explicit, wide=wide)
    assert found == [[total] * 3] * 2
