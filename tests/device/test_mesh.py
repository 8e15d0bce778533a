"""Meshes over all devices, from the sizes of their axes."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from tests.many_hosts.launch import launch

import cereal
from cereal import PipelineError

EXPLICIT = AxisType.Explicit


@pytest.mark.parametrize(
    ("axes", "shape"),
    [
        ({"data": -1}, (4,)),
        ({"data": 2, "fsdp": -1}, (2, 2)),
        ({"fsdp": -1, "data": 2}, (2, 2)),
        ({"data": -1, "model": 4}, (1, 4)),
        ({"data": np.int64(2), "model": np.int32(2)}, (2, 2)),
        ({"data": 1, "seq": -1, "model": 2}, (1, 2, 2)),
    ],
)
def test_one_size_is_inferred(axes: dict[str, int], shape: tuple[int, ...]) -> None:
    assert jax.device_count() == 4
    mesh = cereal.mesh(**axes)
    assert mesh.axis_names == tuple(axes)
    assert mesh.devices.shape == shape
    assert set(mesh.devices.flat) == set(jax.devices())
    assert set(mesh.axis_types) == {AxisType.Auto}


def test_axis_types_are_for_all_axes_or_one_for_each() -> None:
    assert cereal.mesh(data=-1, model=2, axis_types=EXPLICIT).axis_types == (EXPLICIT, EXPLICIT)
    mixed = (EXPLICIT, AxisType.Auto)
    assert cereal.mesh(data=-1, model=2, axis_types=mixed).axis_types == mixed


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no axes": ({}, "needs at least one axis"),
    "two to infer": ({"data": -1, "model": -1}, "`data` and `model` are both -1"),
    "zero": ({"data": 0}, "`data` must be an integer of at least 1, got 0; -1 stands for"),
    "less than -1": ({"data": -2}, "`data` must be .* got -2"),
    "a fraction": ({"data": 2.0}, "`data` must be .* got 2.0"),
    "a word": ({"data": "all"}, "`data` must be .* got 'all'"),
    "True": ({"data": True}, "`data` must be .* got True"),
    "does not divide": ({"data": -1, "model": 3}, "model=3 does not divide the 4 devices"),
    "too few": ({"data": 2}, "data=2 is a mesh of 2, and there are 4 devices; write -1"),
    "too many": ({"data": 4, "model": 2}, "data=4 x model=2 is a mesh of 8, and there are 4"),
    "types: not one each": (
        {"data": 4, "axis_types": (EXPLICIT, EXPLICIT)},
        "one for each of data",
    ),
    "types: a word": ({"data": 4, "axis_types": "auto"}, "`axis_types` must be one"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mesh_that_cannot_be_is_refused(name: str) -> None:
    axes, message = BAD[name]
    with pytest.raises(PipelineError, match=f"^mesh: .*{message}"):
        cereal.mesh(**axes)


@pytest.mark.slow  # two processes
def test_a_mesh_has_the_devices_of_all_processes() -> None:
    found = launch("tests.device.test_mesh:shape_and_processes", processes=2, devices=4)
    assert found == [[[4, 2], [0, 1]]] * 2


def shape_and_processes() -> Any:
    mesh = cereal.mesh(data=-1, model=2)
    return [list(mesh.devices.shape), sorted({d.process_index for d in mesh.devices.flat})]
