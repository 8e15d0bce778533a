from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from cereal import PipelineError
from cereal.preview.contents import Contents, describe, find_contents, named_leaves


class Pair(NamedTuple):
    image: Any
    label: Any


def array(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.uint8)


def found(element: Any, **keys: Any) -> Contents:
    options = {"image_key": None, "series_key": None, "label_key": None, **keys}
    columns = {name: [leaf] for name, leaf in named_leaves(element).items()}
    return find_contents(columns, owner="Photos", **options)


def test_parts_are_called_by_their_place() -> None:
    element = {"a": {"b": 1}, "c": (2, [3, 4]), "d": Pair(5, "x")}
    names = ["a.b", "c.0", "c.1", "d.image", "d.label"]
    assert list(named_leaves(element)) == names
    assert named_leaves(element)["c.1"] == [3, 4]
    assert list(named_leaves(array(2))) == [""]


@pytest.mark.parametrize(
    ("element", "image", "labels"),
    [
        ({"image": array(8, 8), "label": 3}, "image", ["label"]),
        ({"label": 3, "x": array(8, 8)}, "x", ["label"]),
        ((array(8, 8, 3), 3), "0", ["1"]),
        (Pair(array(8, 8), 3), "image", ["label"]),
        (array(8, 8), "", []),
        ({"image": array(784), "label": 3}, "image", ["label"]),
        ({"image": array(2, 2), "label": 3}, "image", ["label"]),
        ({"image": array(8, 8), "depth": array(8, 8)}, "image", []),
        ({"depth": array(8, 8), "rgb_image": array(8, 8, 3)}, "rgb_image", []),
        ({"image_id": 3, "pixels": array(8, 8)}, "pixels", ["image_id"]),
        ({"coarse_label": 1, "image": array(8, 8), "label": 2}, "image", ["label", "coarse_label"]),
        ({"attributes": array(40), "image": array(8, 8, 3)}, "image", ["attributes"]),
        ({"image": array(8, 8), "weight": 0.5, "word": "a"}, "image", ["weight", "word"]),
        ({"inputs": {"left": array(8, 8, 3)}, "y": 1}, "inputs.left", ["y"]),
    ],
)
def test_images_and_labels_are_found(element: Any, image: str, labels: list[str]) -> None:
    contents = found(element)
    assert contents.image == image
    assert contents.labels == labels
    assert contents.drawn == [image]


@pytest.mark.parametrize(
    ("element", "series"),
    [
        ({"context": array(30), "target": array(1)}, ["context", "target"]),
        ({"context": array(36), "target": array(4)}, ["context", "target"]),
        ({"context": array(24, 1), "target": array(6)}, ["context", "target"]),
        ({"context": array(24, 9)}, ["context"]),
        ({"label": array(10), "signal": array(50)}, ["signal"]),
        ((array(64), array(64)), ["0"]),
        (array(7), [""]),
        (array(50, 3), [""]),
    ],
)
def test_series_are_found(element: Any, series: list[str]) -> None:
    contents = found(element)
    assert contents.image is None
    assert contents.series == contents.drawn == series


def test_keys_say_what_is_what() -> None:
    element = {"a": array(8, 8), "b": array(16), "c": 1, "label": 2}
    assert found(element, image_key="b", label_key="c") == Contents("b", [], ["c"])
    assert found(element, series_key=["b", "c"]) == Contents(None, ["b", "c"], ["label"])
    assert found(element, label_key=()).labels == []
    assert found((array(9), 1), image_key=0).image == "0"


def test_no_image_is_an_error_that_lists_what_there_is() -> None:
    element = {"token": np.int32(3), "name": "x"}
    with pytest.raises(PipelineError) as error:
        found(element)
    for part in ("of Photos are {name: str, token: int32[]}", '`image_key="..."`'):
        assert part in str(error.value)


@pytest.mark.parametrize("option", ["image_key", "series_key", "label_key"])
def test_a_key_that_is_not_there_is_named_with_those_that_are(option: str) -> None:
    with pytest.raises(PipelineError, match=rf"no 'img': .*; pass `{option}=` one of 'image', 'x'"):
        found({"image": array(8, 8), "x": 1}, **{option: "img"})


def test_a_flat_image_that_is_no_square_is_an_error() -> None:
    for keys in ({}, {"image_key": "image"}):
        with pytest.raises(PipelineError, match=r"'image' is of shape \[30\], which is no square"):
            found({"image": array(30)}, **keys)
    assert found({"image": array(30)}, series_key="image").series == ["image"]
    with pytest.raises(PipelineError, match=r"of shape \[2, 8, 8, 3\], and no image"):
        found({"image": array(2, 8, 8, 3)}, image_key="image")
    with pytest.raises(PipelineError, match="'image' is no array"):
        found({"image": "x.png"}, image_key="image")


def test_a_series_that_is_none_is_an_error() -> None:
    with pytest.raises(PipelineError, match=r"'image' is no series, which is \[T\]"):
        found({"image": array(8, 8, 3)}, series_key="image")


def test_two_kinds_at_once_are_refused() -> None:
    with pytest.raises(PipelineError, match="`image_key=` or `series_key=`, not both"):
        found({"x": array(9)}, image_key="x", series_key="x")


def test_columns_are_described_by_their_first_value() -> None:
    columns = {"image": [None, array(8, 9), array(3, 3)], "label": [None, 3, 4], "text": ["a"]}
    assert describe(columns) == "{image: uint8[8,9] and other shapes, label: int, text: str}"
    assert describe({"": [array(5)]}) == "uint8[5]"
    assert describe({"": [np.zeros(3, np.complex64)]}) == "complex64[3]"
