"""Columns under names of the user's choice; several of them as one array.

columns={"x": ["age", "height"], "y": "weight"}     {"x": float32[2], "y": float32}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...base.errors import PipelineError
from ..leaves import OBJECT, ArrayForm
from ..structure import flatten
from ..tables.columns import Numbers

Arrangement = Mapping[str, Any] | None  # None: columns have their own names


def names_in(columns: Any, owner: str) -> Any:
    """The names in a `columns=` argument: a list as it is; of a dict, all in its values."""
    if not isinstance(columns, Mapping):
        return columns
    names: list[str] = []
    for key, value in columns.items():
        several = value if isinstance(value, list | tuple) else [value]
        if not isinstance(key, str) or not several or not all(isinstance(v, str) for v in several):
            raise PipelineError(
                f"{owner}: a dict of `columns` has a name, or a list of names, for each key, such "
                f"as {{'x': ['a', 'b'], 'y': 'c'}}; got {key!r}: {value!r:.60}."
            )
        names += several
    if not names:
        raise PipelineError(f"{owner}: `columns` is empty; name at least one column.")
    return names


def arranged_form(form: Any, columns: Arrangement, owner: str) -> Any:
    """The form of the elements, from the form of the columns."""
    if columns is None:
        return form
    return {
        key: _found(form, value) if isinstance(value, str) else _one_form(form, key, value, owner)
        for key, value in columns.items()
    }


def _one_form(form: Any, key: str, names: Any, owner: str) -> ArrayForm:
    forms = [_found(form, name) for name in names]
    for name, each in zip(names, forms, strict=True):
        if not isinstance(each, ArrayForm) or each.dtype == OBJECT or each.shape:
            raise PipelineError(
                f"{owner}: {key!r} is to be one array of the columns {list(names)!r:.60}, and "
                f"{name!r} does not have one number in each row; leave it out of the list."
            )
    return ArrayForm((len(forms),), np.result_type(*(each.dtype for each in forms)))


def arranged_parts(tree: Any, columns: Arrangement, owner: str) -> list[Any]:
    """The parts of the elements' leaves, from a tree of the columns' parts."""
    if columns is None:
        return flatten(tree)[0]
    return flatten(
        {
            key: _found(tree, value) if isinstance(value, str) else _one(tree, key, value, owner)
            for key, value in columns.items()
        }
    )[0]


def _one(tree: Any, key: str, names: Any, owner: str) -> Numbers:
    parts = [_found(tree, name) for name in names]
    for name, part in zip(names, parts, strict=True):
        if part.missing is not None:
            raise PipelineError(
                f"{owner}: the column {name!r}, a part of {key!r}, has missing values; write "
                f"`fill={{{name!r}: 0}}`."
            )
    return Numbers(np.stack([part.values for part in parts], axis=1), None, key)


def _found(tree: Any, path: str) -> Any:
    """What stands under a name; a dot leads into a struct."""
    if path in tree:
        return tree[path]
    key = max((key for key in tree if path.startswith(f"{key}.")), key=len)
    return _found(tree[key], path[len(key) + 1 :])
