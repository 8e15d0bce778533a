from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cereal
from cereal.testing import check_transform

DATA = {"x": np.arange(5, dtype=np.float32), "y": np.arange(5, dtype=np.int32)}
SOURCE = cereal.ArraySampleSource(DATA, ordering="sequential")
BATCH = cereal.BatchTransform(2)


def first(*stages: Any) -> dict[str, list[float]]:
    batch, _ = cereal.DataLoader([SOURCE, *stages]).batch_at(0, 1)
    return {name: values.tolist() for name, values in batch.items()}


def test_a_rename_keeps_the_contract() -> None:
    check_transform(cereal.RenameTransform({"x": "image", "y": "label"}), SOURCE)


def test_keys_are_renamed_before_and_after_batching_and_the_others_stay() -> None:
    stage = cereal.RenameTransform({"x": "image"})
    assert first(stage, BATCH) == first(BATCH, stage) == {"image": [2, 3], "y": [2, 3]}


def test_keys_may_change_places() -> None:
    swapped = first(BATCH, cereal.RenameTransform({"x": "y", "y": "x"}))
    assert swapped == {"y": [2, 3], "x": [2, 3]}
    assert (
        cereal.RenameTransform({"x": "y", "y": "x"})(SOURCE).element_spec()["y"].dtype == np.float32
    )


def test_nothing_renamed_is_nothing_changed() -> None:
    assert first(BATCH, cereal.RenameTransform({})) == first(BATCH)


def test_the_dict_given_may_change_afterwards() -> None:
    renames = {"x": "image"}
    stage = cereal.RenameTransform(renames)
    renames["y"] = "label"
    assert set(first(BATCH, stage)) == {"image", "y"}
    assert repr(stage) == "RenameTransform(x->image)"


@pytest.mark.parametrize(
    ("renames", "message"),
    [
        ({"z": "w"}, r"RenameTransform\(z->w\): there is no key 'z'; the element has \['x', 'y'\]"),
        ({"x": "y"}, r"RenameTransform\(x->y\): two values would be called 'y'; rename the other"),
        ({"x": "a", "y": "a"}, ".* two values would be called 'a'"),
    ],
)
def test_names_that_do_not_fit_are_refused_when_built(renames: Any, message: str) -> None:
    with pytest.raises(cereal.PipelineError, match="^stage 1: " + message):
        cereal.DataLoader([SOURCE, cereal.RenameTransform(renames)])


@pytest.mark.parametrize("renames", ["x", ["x", "y"], None, 3])
def test_what_is_no_dict_is_refused_with_the_line_to_write(renames: Any) -> None:
    message = rf"got {type(renames).__name__}; write `RenameTransform\(\{{\"x\": \"image\"\}}\)`"
    with pytest.raises(cereal.PipelineError, match=message):
        cereal.RenameTransform(renames)


def test_elements_that_are_no_dicts_are_refused_when_built() -> None:
    with pytest.raises(
        cereal.PipelineError, match=r"^stage 1: .* needs elements that are dicts, got"
    ):
        cereal.DataLoader([cereal.RangeSource(4), cereal.RenameTransform({"x": "y"})])
