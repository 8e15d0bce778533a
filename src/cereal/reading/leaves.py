"""What Python has for an array: numbers, images, tensors, lists of numbers; and how to protect it.

Before batching, an element may be any Python object. Compiled stages need arrays of a fixed shape,
with a dtype that JAX has.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np

from ..base.errors import PipelineError, said
from ..base.fitting import canonical, check_fits, check_number, fitting, is_numeric

OBJECT = np.dtype(object)
NO_ARRAY = " is a Python object and no array"
_NUMBERS = (bool, int, float, complex)
_SCALARS = {
    np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64,
    np.float16, np.float32, np.float64, np.complex64, np.complex128,
}  # fmt: skip
_ndarray = np.ndarray
_IMAGES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8")  # how their files begin: JPEG, PNG, GIF
_NEVER_CHANGE = frozenset({*_NUMBERS, *_SCALARS, str, bytes, type(None)})


@dataclasses.dataclass(frozen=True)
class ArrayForm:
    """The shape and the dtype of an array."""

    shape: tuple[int, ...]
    dtype: Any


def as_array(leaf: Any) -> np.ndarray | None:
    """An array, tensor, image, number or list of numbers as a NumPy array; None for all else."""
    if type(leaf) is np.ndarray:
        return leaf if is_numeric(leaf.dtype) else None
    if isinstance(leaf, int | np.integer) and not isinstance(leaf, bool):
        return np.asarray(leaf, fitting(int(leaf), getattr(leaf, "dtype", None)))
    has_array = hasattr(leaf, "__array__") or hasattr(leaf, "__array_interface__")
    if not is_numbers(leaf) and not has_array:
        return None
    try:
        array = np.asarray(leaf)
    except (ValueError, TypeError, RuntimeError):  # ragged lists; bfloat16 tensors; gradients
        array = array_of_tensor(leaf)
        if array is None:
            return None
    if isinstance(leaf, float):
        check_number(leaf)
    elif type(leaf) is list:
        check_fits(array)
    return array if is_numeric(array.dtype) else None


def array_of_tensor(leaf: Any) -> np.ndarray | None:
    """The values of a torch tensor that has gradients or a type that NumPy does not have.

    Refuses a tensor on another device, and says what to write; None for all that is no tensor.
    """
    if "torch" not in {cls.__module__.partition(".")[0] for cls in type(leaf).__mro__}:
        return None
    from .bridges.tensors import as_numpy, is_tensor

    return as_numpy(leaf) if is_tensor(leaf) else None


def is_numbers(value: Any) -> bool:
    """Whether this is a number, a list of numbers, or a list of such lists."""
    while type(value) is list and value:
        value = value[0]
    return isinstance(value, _NUMBERS)


def is_leaf(value: Any) -> bool:
    """Whether this is a list of numbers, which counts as one array and not as a container."""
    return type(value) is list and is_numbers(value)


def form_of_leaf(leaf: Any) -> ArrayForm:
    """The shape and dtype of a leaf of an element; a Python object has the dtype `object`."""
    try:
        array = as_array(leaf)
    except PipelineError as error:  # JAX cannot hold the number; a later stage may change it
        return _object(f": {error}")
    if array is None:
        kind, hint = type(leaf).__name__, _hint(leaf)
        return _object(said(lambda: f"{NO_ARRAY}: {kind} ({leaf!r:.40}){hint}", NO_ARRAY))
    return ArrayForm(array.shape, canonical(array.dtype))


def _hint(leaf: Any) -> str:
    if isinstance(leaf, bytes) and leaf.startswith(_IMAGES):
        return ", an encoded image: add `DecodeImageTransform(size=(224, 224))`"
    return ""


def _object(words: str) -> ArrayForm:
    """The form of a Python object. Its dtype carries words for an error; `==` ignores them."""
    return ArrayForm((), np.dtype(object, metadata={"words": words}))


def protected(value: Any) -> Any:
    """The same value, with new containers and read-only arrays: a function that writes into its
    argument cannot change the data."""
    kind = type(value)
    if kind is dict:
        fresh = value.copy()
        for key, inner in value.items():
            kind = type(inner)
            if kind is _ndarray:  # the same as below, without a call
                fresh[key] = view = inner.view()
                view.setflags(False)  # type: ignore[call-arg]
            elif kind not in _NEVER_CHANGE:
                fresh[key] = protected(inner)
        return fresh
    if kind in _NEVER_CHANGE:
        return value
    if isinstance(value, np.ndarray):
        view = value.view()
        view.setflags(write=False)
        return view
    if isinstance(value, dict | list):
        fresh = copy.copy(value)  # an OrderedDict stays one
        for key in fresh if isinstance(value, dict) else range(len(fresh)):
            fresh[key] = protected(fresh[key])
        return fresh
    if isinstance(value, tuple):
        inner = [protected(each) for each in value]
        return kind(*inner) if hasattr(value, "_fields") else kind(inner)
    return value
