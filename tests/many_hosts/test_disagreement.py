"""Processes that differ where they should not: an error in every one of them, and no hang."""

from __future__ import annotations

import pytest
from tests.many_hosts.launch import launch

JOBS = "tests.many_hosts.jobs:"


@pytest.mark.parametrize(
    ("what", "named"),
    [
        pytest.param("data", "the data in memory", marks=pytest.mark.slow),
        pytest.param("order", "the order", marks=pytest.mark.slow),
        pytest.param("batch", "the batches", marks=pytest.mark.slow),
        pytest.param("mesh", "`sharding=`", marks=pytest.mark.slow),
        pytest.param("state", "the position that it begins at", marks=pytest.mark.slow),
        pytest.param("scan state", "the position that it begins at", marks=pytest.mark.slow),
        pytest.param("scan steps", "the position that it begins at", marks=pytest.mark.slow),
        pytest.param("evaluate", "the data in memory", marks=pytest.mark.slow),
    ],
)
def test_processes_that_built_different_loaders(what: str, named: str) -> None:
    for number, said in enumerate(launch(JOBS + "different_loaders", 2, 2, what=what)):
        assert said.startswith("PipelineError: processes 0 and 1 do not have the same loader")
        assert named in said.partition(". All processes")[0]
        assert f"which is number {number}" in said


@pytest.mark.slow
def test_rows_that_differ_between_processes() -> None:
    for said in launch(JOBS + "impure", 2, 2, every=2, guilty=1):
        assert said.startswith("3 ReplicaError: processes 0 and 1 hold different values")
        assert "`batch['x']`, at step 3 of this iteration" in said


@pytest.mark.slow
def test_rows_that_do_not_differ_are_no_error() -> None:
    assert launch(JOBS + "impure", 2, 2, every=2, guilty=7) == ["8 nothing"] * 2


@pytest.mark.slow
def test_comparing_where_no_two_processes_hold_the_same_rows_warns() -> None:
    for found in launch(JOBS + "comparing", 2, 2, across=False):
        (said,) = found["said"]
        assert said.startswith("OptionWarning: DataLoader: `check_replicas=2` has no effect")
        assert "over data=2, model=2; leave it out" in said
        assert found["files"] == ["jobs.py"]
        assert found["compared"] == 0
    for found in launch(JOBS + "comparing", 2, 2, across=True):
        assert found == {"said": [], "files": [], "compared": 4}


@pytest.mark.slow
def test_random_keys_in_the_data_are_compared_too() -> None:
    assert launch(JOBS + "typed_keys", 2, 2) == [64] * 2


@pytest.mark.slow
@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("lengths", [[20], [20, 37], [37, 20]], ids=str)
def test_streams_of_unknown_length_end_together(lengths: list[int], drop: bool) -> None:
    found = launch(JOBS + "uneven_streams", 2, 2, lengths=lengths, drop=drop)
    assert found[0] == found[1]
    assert len(found[0]["batches"]) == (4 if drop else 6)
    assert found[0]["batches"][0] == list(range(8))
    assert found[0]["state"] == 2
    if len(lengths) > 1 and not drop:
        assert "do not give equally many elements in epoch 0" in found[0]["warned"][0]
    if len(lengths) == 1:
        assert not found[0]["warned"]
        tail = [16, 17, 18, 19, -1, -1, -1, -1]
        assert found[0]["batches"][-1] == (list(range(8, 16)) if drop else tail)


@pytest.mark.slow
def test_a_process_without_devices_takes_part_with_empty_data() -> None:
    first, second, last = launch(JOBS + "part_of_the_mesh", 3, 1)
    assert (first["reads"], second["reads"], last["reads"]) == (32, 32, 0)
    assert first["total"] + second["total"] == 3 * sum(range(64))
    assert last["total"] == 0
    assert [each["offset"] for each in (first, second, last)] == [8, 8, 8]
    assert first["stream"] == second["stream"] == "nothing"
    assert "no device of this process is in the mesh" in last["stream"]


@pytest.mark.slow
def test_python_inside_of_a_program_over_all_processes_is_refused() -> None:
    for said in launch(JOBS + "refused", 2, 2):
        assert all("cannot be part of a program over several processes" in each for each in said)


@pytest.mark.slow
def test_scans_in_programs_and_from_states_of_one_device() -> None:
    total = sum(range(64))
    assert launch(JOBS + "scans_in_a_program", 2, 2) == [[total, total, 8, 1]] * 2
