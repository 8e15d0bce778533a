"""Single elements, read for debugging."""

from __future__ import annotations

import numpy as np

import cereal


def test_elements_of_arrays_in_memory_can_be_read() -> None:
    source = cereal.ArraySampleSource({"x": np.arange(8) * 2, "y": np.arange(8) * 3})
    double = cereal.MapTransform(lambda element: element["x"] * 2)
    plain = cereal.DataLoader([source, cereal.BatchTransform(4)])
    assert {name: int(value) for name, value in plain.read_element(3).items()} == {"x": 6, "y": 9}
    parts = cereal.DataLoader([cereal.ConcatSource([source, source]), cereal.BatchTransform(4)])
    assert int(parts.read_element(11)["y"]) == 9
    assert int(cereal.DataLoader([source, double, cereal.BatchTransform(4)]).read_element(3)) == 12
