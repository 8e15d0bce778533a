"""Batches of elements with different lengths, which cannot simply be stacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ..base.errors import PipelineError
from ..base.fitting import canonical, narrowed
from ..base.numbers import as_count
from ..host.element_batch import as_array, is_leaf
from ..host.read_context import read_context


def pad_collate(
    max_length: int, *, value: Any = 0, truncate: bool = True
) -> Callable[[Sequence[Any]], Any]:
    """A `collate=` function for elements of different lengths: pads them to `max_length`.

        [5, 7], [1, 2, 3]   --max_length=4-->   {"values": [[5, 7, 0, 0], [1, 2, 3, 0]],
                                                 "lengths": [2, 3]}

    If elements are dicts, the batch has the same keys, and `lengths`. If several entries have
    different lengths, `lengths` is a dict with an array for each of them. Numbers are stacked.
    Longer elements are cut off at `max_length`; with `truncate=False` they are an error. `value`
    fills the padding.

    >>> import cereal
    >>> texts = [[5, 7], [1, 2, 3]]
    >>> batches = cereal.BatchTransform(2, collate=cereal.pad_collate(max_length=4))
    >>> batch, mask = next(iter(cereal.DataLoader([texts, batches])))
    >>> batch["values"].tolist(), batch["lengths"].tolist()
    ([[5, 7, 0, 0], [1, 2, 3, 0]], [2, 3])
    """
    return PadCollate(as_count(max_length, "max_length", "pad_collate"), value, truncate)


class PadCollate:
    """What `pad_collate` returns."""

    def __init__(self, most: int, value: Any, truncate: bool) -> None:
        self.most, self.value, self.truncate = most, value, truncate
        self.__name__ = f"pad_collate({most})"

    def __call__(self, elements: Sequence[Any]) -> Any:
        flat = [jax.tree.flatten(element, is_leaf=_is_leaf) for element in elements]
        structure = flat[0][1]
        for _, other in flat:
            if other != structure:
                raise PipelineError(
                    f"pad_collate: elements of one batch have different structures, {structure} "
                    f"and {other}; give all of them the same keys."
                )
        columns = zip(*(leaves for leaves, _ in flat), strict=True)
        padded = [self._pad([_array(leaf) for leaf in column]) for column in columns]
        values = jax.tree.unflatten(structure, [values for values, _ in padded])
        ragged = jax.tree.unflatten(structure, [lengths for _, lengths in padded])
        if isinstance(values, dict):
            found = _present(ragged)
            if "lengths" in values or not found:
                return values
            only = next(iter(found.values()))
            single = len(found) == 1 and isinstance(only, np.ndarray)
            return {**values, "lengths": only if single else found}
        if isinstance(values, np.ndarray) and ragged is not None:
            return {"values": values, "lengths": ragged}
        return values

    def _fill(self, dtype: Any) -> Any:
        try:
            with np.errstate(invalid="ignore"):  # converting NaN to an integer gives some number
                value = np.asarray(self.value).astype(dtype)
            missing = bool(self.value != self.value) and bool(value != value)
            fits = bool(value == self.value) or missing
        except (ValueError, TypeError, OverflowError):
            fits, value = False, None
        if not fits:
            raise PipelineError(
                f"pad_collate: value={self.value!r} cannot be stored as {np.dtype(dtype)}, the "
                f"dtype of the elements; choose another value."
            )
        return value

    def _pad(self, arrays: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray | None]:
        numbers = [array for array in arrays if array.size] or arrays
        wide = np.result_type(*(array.dtype for array in numbers))
        dtype = canonical(wide)
        if all(array.ndim == 0 for array in arrays):
            return narrowed(np.stack(arrays).astype(wide), dtype, "pad_collate"), None
        if any(array.ndim == 0 for array in arrays):
            raise PipelineError(
                "pad_collate: an element has a number where another one has a list; give all of "
                "them lists."
            )
        rest = numbers[0].shape[1:]
        out = read_context().empty((len(arrays), self.most, *rest), dtype)
        out[:] = self._fill(dtype)
        lengths = np.zeros(len(arrays), np.int32)
        for lane, array in enumerate(arrays):
            if array.size and array.shape[1:] != rest:
                raise PipelineError(
                    f"pad_collate: elements of shapes {array.shape} and {numbers[0].shape} differ "
                    f"in more than their first axis; only that one is padded."
                )
            if len(array) > self.most and not self.truncate:
                raise PipelineError(
                    f"pad_collate: an element has length {len(array)}, more than "
                    f"max_length={self.most}; raise it, or pass `truncate=True`."
                )
            length = lengths[lane] = min(len(array), self.most)
            if length:
                part = array[:length].astype(wide, copy=False)
                out[lane, :length] = narrowed(part, dtype, "pad_collate")
        return out, lengths


def _present(tree: dict[str, Any]) -> dict[str, Any]:
    """A tree of dicts without the entries that are None."""
    found = {key: _present(v) or None if isinstance(v, dict) else v for key, v in tree.items()}
    return {key: value for key, value in found.items() if value is not None}


def _is_leaf(value: Any) -> bool:
    return is_leaf(value) or (type(value) is list and not value)


def _array(leaf: Any) -> np.ndarray:
    array = np.zeros(0, np.int32) if type(leaf) is list and not leaf else as_array(leaf)
    if array is None:
        raise PipelineError(
            f"pad_collate: an element has a {type(leaf).__name__} ({leaf!r:.40}), which is no "
            f"array; turn it into numbers in a HostMapTransform."
        )
    return array
