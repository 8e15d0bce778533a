"""Batches that a function makes of lists of elements; and one such function, which pads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base.errors import PipelineError
from ..base.fitting import canonical, narrowed
from .element_batch import ElementBatch
from .form import Form, check_form, promised_leaves
from .leaves import as_array, is_leaf, protected
from .read_context import SKIPPED, Pace, read_context
from .rows import Rows
from .stages import Filler, Leaves, made_batch
from .structure import flatten


@dataclasses.dataclass
class Collated:
    """A function makes the batch of the list of elements."""

    label: str
    fn: Any
    form: Form  # of a batch
    filler: Filler
    size: int
    stated: bool  # whether the user stated the form

    def __post_init__(self) -> None:
        self.pace = Pace()

    def collect(self, taken: ElementBatch, rows: Rows) -> tuple[Leaves, Any]:
        """The leaves of the batch, and which lanes are real (None: all)."""
        elements = taken.listed(rows, self.pace)
        keep = taken.keep
        if keep is not None and not keep.all():
            stand_in = self.filler()
            if stand_in is None:
                stand_in = next((e for e in elements if e is not SKIPPED), None)
            if stand_in is None:
                return self.form.zeros(), keep
            elements = [stand_in if e is SKIPPED else e for e in elements]
        make = lambda: (collated(self.fn, elements, self.label), keep)  # noqa: E731
        lanes = (len(rows.index),)
        return made_batch(self.label, self.form, lanes, rows, keep, make, self._leaves)

    def _leaves(self, made: Any) -> Leaves:
        return collated_leaves(made, self.form, self.label, self.size, self.stated)


def collated(fn: Any, elements: list[Any], label: str) -> Any:
    """Calls `collate` with the elements."""
    made = fn([protected(element) for element in elements])
    if made is None:
        raise PipelineError(f"{label}: `collate` returned None; did it forget to `return`?")
    return made


def collated_leaves(made: Any, form: Form, label: str, size: int, stated: bool) -> Leaves:
    """What `collate` returned, as arrays of this form."""
    check_form(form, label, "return arrays and numbers from `collate`")
    known = "by `spec=`" if stated else "for the first batch"
    fix = (
        f"Pad to a fixed length, by `collate=pad_collate(max_length=...)` or in your function, and "
        f"state what it returns: `BatchTransform({size}, collate=fn, spec=...)`, a tree of "
        f"`jax.ShapeDtypeStruct(shape, dtype)`."
    )
    return promised_leaves(made, form, f"{label}: `collate` returned", known, fix)


class PadCollate:
    """What `pad_collate` returns."""

    def __init__(self, most: int, value: Any, truncate: bool) -> None:
        self.most, self.value, self.truncate = most, value, truncate
        self.__name__ = f"pad_collate({most})"

    def __call__(self, elements: Sequence[Any]) -> Any:
        flat = [flatten(element, _is_leaf) for element in elements]
        structure = flat[0][1]
        for _, other in flat:
            if other != structure:
                raise PipelineError(
                    f"pad_collate: elements of one batch have different structures, {structure} "
                    f"and {other}; give all of them the same keys."
                )
        columns = zip(*(leaves for leaves, _ in flat), strict=True)
        padded = [self._pad([_array(leaf) for leaf in column]) for column in columns]
        values = structure.unflatten([values for values, _ in padded])
        ragged = structure.unflatten([lengths for _, lengths in padded])
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
