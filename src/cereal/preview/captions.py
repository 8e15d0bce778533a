"""Turns labels into the captions under the images.

3, classes=("cat", ...)         the name, or the number
[0, 0, 1, 0]                    one-hot: the place of the 1, or its name
[0.1, 0.9]                      probabilities: the largest, with its percentage
[1, 0, 1, ...] of 40, names     attributes: the names of those that are set
"text", b"text", 0.25           as it is
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..base.errors import PipelineError
from .pixels import number, numeric

Names = Sequence[str]
_MOST_SET = 3  # so many attributes are named, before "+ 5 more"
_SHORT = 4  # vectors up to this length are written out


def as_names(classes: Any) -> Names | Mapping[str, Names] | None:
    """Checks `classes=`: the names of labels 0, 1, 2, ..., or a dict of such names by label key."""
    if classes is None or is_names(classes):
        return classes
    if isinstance(classes, Mapping) and all(is_names(names) for names in classes.values()):
        return classes
    raise PipelineError(
        f"preview: `classes` must be the names of labels 0, 1, 2, ..., or a dict of such by key, "
        f'got {classes!r:.60}; write `classes=["cat", "dog"]` or '
        f'`classes={{"label": ["cat", "dog"]}}`.'
    )


def is_names(value: Any) -> bool:
    """Whether this is a list of names, for the labels 0, 1, 2, ..."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)


def captions(
    labels: Mapping[str, Sequence[Any]], classes: Any, otherwise: Sequence[str]
) -> list[str]:
    """The caption of each element; if its labels give none, the one in `otherwise`.

    Names without a key, or with the key None, belong to the first label.
    """
    names: Mapping[Any, Any] = classes if isinstance(classes, Mapping) else {None: classes}
    columns = []
    for place, (key, values) in enumerate(labels.items()):
        known = names.get(key, names.get(None) if place == 0 else None)
        words = _words(values, known)
        if len(labels) > 1 and not known and numeric(values[0]) is not None:
            words = [f"{key} {word}" if word else "" for word in words]  # which number is which
        columns.append(words)
    lines = [[word for word in row if word] for row in zip(*columns, strict=True)]
    lines = lines or [[] for _ in otherwise]
    return ["\n".join(row) or index for row, index in zip(lines, otherwise, strict=True)]


def _words(values: Sequence[Any], names: Names | None) -> list[str]:
    """One text for each value of a label; "" if there is nothing to write."""
    arrays = [numeric(value) for value in values]
    there = [array for array in arrays if array is not None]
    if not there or any(array.ndim != 1 or array.size <= 1 for array in there):
        pairs = zip(values, arrays, strict=True)
        return [_single(value, array, names) for value, array in pairs]
    alike = len({array.size for array in there}) == 1
    write = _largest if alike and _are_shares(np.stack(there)) else _vector
    return ["" if array is None else write(array, names) for array in arrays]


def _single(value: Any, array: np.ndarray | None, names: Names | None) -> str:
    if array is None:
        return _text(value)
    if array.size == 1:
        return _scalar(array.reshape(()).item(), names)
    return _vector(array, None) if array.ndim == 1 else ""


def _text(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.size == 1:  # of strings or objects
        value = value.reshape(()).item()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace").strip("\0").replace("\n", " ")
    return value.replace("\n", " ") if isinstance(value, str) else ""


def _scalar(value: bool | int | float, names: Names | None) -> str:
    if isinstance(value, float):
        return number(value) if np.isfinite(value) else str(value)
    if names is not None and 0 <= value < len(names):
        return str(names[int(value)])
    return str(value)


def _are_shares(rows: np.ndarray) -> bool:
    """Whether each row is one-hot, or probabilities that sum to one."""
    total, tolerance = rows.sum(axis=1), 1e-3 if rows.dtype.kind == "f" else 0
    return bool((rows >= 0).all() and np.allclose(total, 1, rtol=0, atol=tolerance))


def _largest(row: np.ndarray, names: Names | None) -> str:
    best = int(np.argmax(row))
    share = "" if row[best] > 0.995 else f" {row[best]:.0%}"
    return _scalar(best, names) + share


def _vector(row: np.ndarray, names: Names | None) -> str:
    """The names of the values above 0 (some data has -1 for "not"); without names, the numbers."""
    if names is None or len(names) != row.size:
        return ", ".join(_scalar(x, None) for x in row.tolist()) if row.size <= _SHORT else ""
    found = [str(name) for name, value in zip(names, row, strict=True) if value > 0]
    more = [f"+ {len(found) - _MOST_SET} more"] if len(found) > _MOST_SET else []
    return "\n".join([*found[:_MOST_SET], *more]) or "none"
