"""What elements must look like: a structure, and for each leaf a shape and a dtype.

The first element, or the user, promises it; every element is checked against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base.errors import PipelineError, format_spec
from ..base.fitting import canonical, narrowed
from .leaves import NO_ARRAY, OBJECT, ArrayForm, as_array, form_of_leaf, is_leaf
from .read_context import read_context
from .structure import Structure, flatten

_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
_LOOKED_AT = (int, float, np.integer, list)  # types that `as_array` checks: does the number fit?


class Form:
    """The structure of an element, or of a batch, and the shapes and dtypes of its leaves."""

    def __init__(self, structure: Structure, leaves: Sequence[ArrayForm]) -> None:
        self.structure, self.leaves = structure, tuple(leaves)
        self.puts: dict[Any, Any] = {}  # what `columns` has compiled for elements of this form

    @property
    def tree(self) -> Any:
        return self.structure.unflatten(self.leaves)

    def name(self, place: int) -> str:
        """A leaf in an error message."""
        return f"`element{self.structure.names()[place]}`"

    def zeros(self) -> list[np.ndarray]:
        return [np.zeros(leaf.shape, leaf.dtype) for leaf in self.leaves]

    def rooms(self, n: int) -> list[np.ndarray]:
        """Memory for n elements."""
        empty = read_context().empty
        return [empty((n, *leaf.shape), leaf.dtype) for leaf in self.leaves]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Form):
            return NotImplemented
        return self.leaves == other.leaves and self.structure == other.structure

    def __hash__(self) -> int:
        return hash(self.leaves)

    def __repr__(self) -> str:
        return format_spec(self.tree)

    def __reduce__(self) -> tuple[Any, ...]:
        return Form, (self.structure, self.leaves)


def form_of_element(element: Any) -> Form:
    """The form of an element; Python objects have the dtype `object`."""
    try:
        leaves, structure = flatten(element, is_leaf)
    except ValueError:  # JAX cannot flatten it: keys that do not sort, say
        return Form(Structure(None), [ArrayForm((), OBJECT)])
    return Form(structure, [form_of_leaf(leaf) for leaf in leaves])


def form_of_arrays(leaves: Sequence[Any], structure: Structure, drop_axes: int = 0) -> Form:
    """The form of these arrays, without their first `drop_axes` axes."""
    return Form(structure, [ArrayForm(x.shape[drop_axes:], x.dtype) for x in leaves])


def check_form(form: Form, what: str, fix: str) -> None:
    """Refuses Python objects where arrays are needed."""
    for place, leaf in enumerate(form.leaves):
        if leaf.dtype == OBJECT:
            name = f"{what}: {form.name(place)}"
            words = (leaf.dtype.metadata or {}).get("words")
            if words and words.startswith(":"):  # the number that does not fit, and what to do
                raise PipelineError(f"{name}{words}")
            raise PipelineError(f"{name}{words or NO_ARRAY}; {fix}.")


def leaves_of(element: Any, form: Form) -> list[np.ndarray]:
    """The arrays of an element, or an error if it does not have this form."""
    pairs = zip(writable(element, form), form.leaves, strict=True)
    return [np.asarray(leaf, promised.dtype) for leaf, promised in pairs]


def writable(element: Any, form: Form) -> list[Any]:
    """`leaves_of`, but Python integers stay as they are: NumPy writes these into a batch faster."""
    try:
        leaves = form.structure.flatten_up_to(element)
    except (ValueError, TypeError, KeyError) as error:
        raise _changed(element, form) from error
    for place, promised in enumerate(form.leaves):
        leaf = leaves[place]
        if type(leaf) is np.ndarray:
            if leaf.dtype == promised.dtype and leaf.shape == promised.shape:
                continue  # the common case: nothing else to check
        elif type(leaf) is int and _holds(promised, leaf):
            continue
        array = array_for(leaf, promised, lambda at=place: form.name(at))
        if array is None:
            raise _changed(element, form)
        leaves[place] = array
    return leaves


def array_for(leaf: Any, promised: ArrayForm, name: Callable[[], str]) -> np.ndarray | None:
    """A leaf as an array; None if it has another shape or dtype. Refuses what does not fit."""
    try:
        array = as_array(leaf)
    except PipelineError as error:  # a number that does not fit
        raise PipelineError(f"{name()}: {error}") from None
    if array is None or array.shape != promised.shape:
        return None
    if canonical(array.dtype) != promised.dtype:
        return None
    return array if isinstance(leaf, _LOOKED_AT) else narrowed(array, promised.dtype, name)


def _holds(promised: ArrayForm, number: int) -> bool:
    """Whether a Python integer can be written where an int32 is promised."""
    if promised.dtype != _INT32 or promised.shape != () or not -(2**31) <= number < 2**31:
        return False
    return canonical(_INT64) == _INT32


def promised_leaves(made: Any, form: Form, who: str, known: str, fix: str = "") -> list[np.ndarray]:
    """A function's batch as arrays of this form, or an error that names both forms."""
    try:
        return leaves_of(made, form)
    except PipelineError as error:
        found = form_of_element(made)
        if found == form:  # a number that does not fit
            raise
        raise PipelineError(
            f"{who} {found}, but {form} {known}; all batches must have one shape and dtype. "
            f"{fix or 'Pad what it returns to a fixed length.'}"
        ) from error


def _changed(element: Any, form: Form) -> PipelineError:
    found = form_of_element(element)
    if element is None or form.structure.num_leaves == 0:
        return PipelineError(
            f"an element is {found}, where {form} was promised (by the first element). A dataset "
            f"cannot leave an element out by returning None; add a stage that leaves it out: "
            f"`HostFilterTransform(fn)`."
        )
    return PipelineError(
        f"an element is {found}, where {form} was promised (by `sample_spec`, or by the first "
        f"element); elements of a batch have one shape and dtype: "
        f"{_make_alike(element, found, form)}."
    )


def _make_alike(element: Any, found: Form, form: Form) -> str:
    """What to write, for the error about an element that is not like the others."""
    leaves = flatten(element, lambda x: x is None or is_leaf(x))[0]
    missing = [
        x is None or (isinstance(x, float | np.floating) and x != x and s.dtype.kind in "iub")
        for x, s in zip(leaves, form.leaves, strict=False)
    ]
    if len(leaves) == len(form.leaves) and any(missing):
        place = missing.index(True)
        return (
            f"{form.name(place)} is {leaves[place]}, a missing value; replace it in a "
            f"HostMapTransform (by -1, say), or leave such elements out: `HostFilterTransform(fn)`"
        )
    if found.structure != form.structure:
        return "give all of them the same keys, or parts, in a HostMapTransform"
    if [leaf.shape for leaf in found.leaves] == [leaf.shape for leaf in form.leaves]:
        return "make them alike in a HostMapTransform, by `np.float32(x)` or `np.int32(x)`"
    images = any(_is_image(leaf) for leaf in form.leaves)
    return (
        f"resize them{': `DecodeImageTransform(size=(224, 224))`, or' if images else ''} in a "
        f"HostMapTransform, or pass `BatchTransform(..., collate=pad_collate(max_length))`"
    )


def _is_image(leaf: ArrayForm) -> bool:
    return leaf.dtype == np.uint8 and len(leaf.shape) in (2, 3)
