"""Finds out which part of an element is the image, and which parts are labels.

    {"image": [28, 28], "label": []}       an image and its label
    ([28, 28], [])                         the same, as parts 0 and 1
    {"context": [30], "target": [5]}       a series, and its continuation
    {"inputs": {"left": [64, 64, 3]}}      the part is called "inputs.left"

Elements are stored as columns here: for each part, by its name, a list of values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ..base.errors import PipelineError
from ..reading.leaves import is_leaf
from .pixels import IMAGE_SHAPES, as_image, numeric

Columns = dict[str, list[Any]]
_IMAGES = ("image", "img", "pixel", "picture", "photo")
_SERIES = ("context", "series", "sequence", "signal", "window", "target")
_LABELS = ("y", "target", "class", "category", "attributes", "attrs", "caption", "text", "name")
_MOST_LABELS = 3
_WIDE = 4  # an array with at most this many columns is a series with features, not an image


class Contents(NamedTuple):
    """The names of the parts that are drawn, and of those that become captions."""

    image: str | None
    series: list[str]
    labels: list[str]

    @property
    def drawn(self) -> list[str]:
        """The names of the parts that are drawn."""
        return self.series if self.image is None else [self.image]


def named_leaves(tree: Any, *, lists: bool = True) -> dict[str, Any]:
    """The parts of an element by name; if the element is one array, its name is "".

    A list of numbers is one part; with `lists=False`, any list is one part.
    """
    whole = is_leaf if lists else lambda x: isinstance(x, list)
    paths = jax.tree_util.tree_flatten_with_path(tree, is_leaf=whole)[0]
    return {jax.tree_util.keystr(p, simple=True, separator="."): leaf for p, leaf in paths}


def describe(columns: Columns) -> str:
    """`{image: uint8[28,28], label: int32[]}`: the first value of each part that is not None."""
    parts = [f"{name}: {_describe_values(values)}" for name, values in columns.items()]
    return _describe_values(columns[""]) if list(columns) == [""] else "{" + ", ".join(parts) + "}"


def _describe_values(values: Sequence[Any]) -> str:
    first = _first(values)
    array = numeric(first)
    if isinstance(first, np.ndarray | jax.Array):
        array = first  # of any dtype
    if array is None or isinstance(first, bool | int | float):
        return type(first).__name__
    shapes = {getattr(value, "shape", array.shape) for value in values if value is not None}
    more = " and other shapes" if len(shapes) > 1 else ""
    return f"{array.dtype}[{','.join(map(str, array.shape))}]{more}"


def _first(values: Sequence[Any]) -> Any:
    return next((value for value in values if value is not None), None)


def find_contents(
    columns: Columns, *, image_key: Any, series_key: Any, label_key: Any, owner: str
) -> Contents:
    """The parts that the keys name; without keys, those that look like images, series, labels."""
    has = f"the elements of {owner} are {describe(columns)}"
    arrays = {name: numeric(_first(values)) for name, values in columns.items()}
    image: str | None = None
    series: list[str] = []
    if image_key is not None and series_key is not None:
        raise PipelineError("preview: pass `image_key=` or `series_key=`, not both.")
    if image_key is not None:
        image = _named(columns, image_key, "image_key", has)
        _check_image(image, arrays[image], has)
    elif series_key is not None:
        series = [_named(columns, key, "series_key", has) for key in _as_list(series_key)]
        for name in series:
            array = arrays[name]
            if array is None or array.ndim > 2 or array.size == 0:
                raise PipelineError(
                    f"preview: {name!r} is no series, which is [T] or [T, features]: {has}."
                )
    else:
        image = _find_image(arrays, has)
        series = [] if image is not None else _find_series(arrays)
    if image is None and not series:
        raise PipelineError(
            f"preview: there is no image to draw: {has}. An image is [H, W] or [H, W, channels]; "
            f'name it with `image_key="..."`, or a series with `series_key="..."`.'
        )
    if label_key is None:
        drawn = [*series, image]
        labels = _find_labels({name: x for name, x in columns.items() if name not in drawn})
    else:
        labels = [_named(columns, key, "label_key", has) for key in _as_list(label_key)]
    return Contents(image, series, labels)


def _as_list(key: Any) -> list[Any]:
    return list(key) if isinstance(key, list | tuple) else [key]


def _named(columns: Mapping[str, Any], key: Any, option: str, has: str) -> str:
    name = str(key)
    if name not in columns:
        names = ", ".join(repr(each) for each in columns if each)
        fix = f"pass `{option}=` one of {names}" if names else f"leave out `{option}=`"
        raise PipelineError(f"preview: there is no {key!r}: {has}; {fix}.")
    return name


def _check_image(name: str, array: np.ndarray | None, has: str) -> None:
    if array is not None and as_image(array) is not None:
        return
    shape = "no array" if array is None else f"of shape {list(array.shape)}"
    fix = f"make it {IMAGE_SHAPES} in a MapTransform"
    if array is not None and array.ndim == 1:
        shape = f"{shape}, which is no square"
        fix = f"reshape it to [H, W] in a MapTransform, or draw it as `series_key={name!r}`"
    raise PipelineError(f"preview: {name!r} is {shape}, and no image: {has}; {fix}.")


def _find_image(arrays: Mapping[str, np.ndarray | None], has: str) -> str | None:
    """The part that is called image; otherwise the first part with the shape of an image."""
    called = [name for name in arrays if _name_has(name, _IMAGES)]
    called.sort(key=lambda name: name.rpartition(".")[2] != "image")
    for name in called:
        array = arrays[name]
        if array is None or array.size <= 1:
            continue
        if name.rpartition(".")[2] == "image":
            _check_image(name, array, has)
        if as_image(array) is not None:
            return name
    for name, array in arrays.items():
        if array is None or array.ndim < 2 or as_image(array) is None:
            continue
        if array.ndim == 3 or (min(array.shape) > _WIDE and not _name_has(name, _SERIES)):
            return name
    return None


def _find_series(arrays: Mapping[str, np.ndarray | None]) -> list[str]:
    """The context and its target; otherwise the first series."""
    found = [
        name
        for name, array in arrays.items()
        if array is not None and array.ndim in (1, 2) and array.size and "label" not in name
    ]
    if "context" in found:
        return ["context", *(name for name in found if name == "target")]
    long = [name for name in found if len(arrays[name]) > 1]  # type: ignore[arg-type]
    long.sort(key=lambda name: not _name_has(name, _SERIES))
    return long[:1]


def _name_has(name: str, words: Sequence[str]) -> bool:
    return any(word in name.lower() for word in words)


def _find_labels(columns: Mapping[str, Sequence[Any]]) -> list[str]:
    """Parts called label; otherwise parts with other usual names; otherwise numbers and texts."""
    last = {name: name.rpartition(".")[2].lower() for name in columns}
    labels = [name for name in columns if "label" in last[name]]
    labels.sort(key=lambda name: last[name] != "label")
    likely = [name for name in columns if last[name] in _LABELS]
    second = [name for name in columns if name == "1" and _first(columns[name]) is not None]
    small = [name for name, values in columns.items() if _is_small(_first(values))]
    return (labels or likely or second or small)[:_MOST_LABELS]


def _is_small(value: Any) -> bool:
    if isinstance(value, str | bytes):
        return True
    array = numeric(value)
    return array is not None and array.size == 1
