"""Elements on the host: Python objects one by one, or arrays that hold many of them.

    one by one   {"image": <PIL image>, "label": 3}, ...        what functions give and take
    stacked      {"image": uint8[n,28,28], "label": int32[n]}   what one vectorised read gives

Before batching, an element may be any Python object. Compiled stages need arrays of a fixed shape,
with a dtype that JAX has.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..base.errors import PipelineError
from ..base.fitting import canonical, check_fits, check_number, fitting, narrowed
from ..base.pytree import said
from ..base.spec import Spec, format_spec, is_numeric, named_places
from .read_context import SKIPPED, ReadContext, at_element, for_each, read_context, use_read_context

OBJECT = np.dtype(object)
_NO_ARRAY = " is a Python object and no array"
_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
_NUMBERS = (bool, int, float, complex)
_LOOKED_AT = (int, float, np.integer, list)  # types that `as_array` checks: does the number fit?


class ElementBatch:
    """What Python reads for some rows: arrays that hold all elements, or one element at a time.

    In the second case an element is read when it is asked for, and goes through all stages before
    the next one is read. So only one element is in memory besides the batch, and a function may
    return the same buffer every time.
    """

    def __init__(self, n: int, *, stacked: Any = None, one: Any = None, keep: Any = None) -> None:
        self.n, self.stacked = n, stacked
        self._one: Callable[[int], Any] | None = one
        # False where an element was filtered out or failed; None: all are there.
        self.keep: np.ndarray | None = keep

    @property
    def is_stacked(self) -> bool:
        return self._one is None

    def element(self, lane: int) -> Any:
        """The element of a lane, or SKIPPED if there is none."""
        if self.keep is not None and not self.keep[lane]:
            return SKIPPED
        if self._one is not None:
            return self._one(lane)
        return jax.tree.map(lambda x: x[lane], self.stacked)

    def mapped(self, stage: str, rows: Any, fn: Callable[[Any, int], Any]) -> ElementBatch:
        """`fn(element, lane)` of every element that is there."""

        def one(lane: int) -> Any:
            value = self.element(lane)
            if value is SKIPPED:
                return SKIPPED
            return at_element(stage, rows, lane, fn, value, lane)

        return ElementBatch(self.n, one=one)

    def listed(self, rows: Any) -> ElementBatch:
        """The same elements, all of them read into a list."""
        values = for_each(rows, self.element, self.n)
        keep = _kept(values)
        return ElementBatch(self.n, one=values.__getitem__, keep=keep)

    def stack(self, spec: Spec, stage: str, rows: Any, filler: Callable[[], Any]) -> ElementBatch:
        """The same elements as arrays; each element is checked against the spec.

        Where an element was left out, the element that `filler` returns is written instead.
        """
        if self.is_stacked:
            return self if self.keep is None else self._filled(self.stacked, self.keep, filler)
        out = [read_context().empty((self.n, *s.shape), s.dtype) for s in spec.leaves]

        def write(lane: int, value: Any) -> None:
            for room, leaf in zip(out, _writable(value, spec), strict=True):
                room[lane] = leaf

        def put(lane: int) -> Any:
            value = self.element(lane)
            if value is SKIPPED:
                return SKIPPED
            with contextlib.suppress(Exception):
                return write(lane, value)
            # It raised: run it again in `at_element`, which notes the place and asks `on_error`.
            again = at_element(stage, rows, lane, write, lane, value)
            if again is None or again is SKIPPED:
                return again
            return write(lane, again)  # the element that `on_error` returned instead

        keep = _kept(for_each(rows, put, self.n))
        return self._filled(jax.tree.unflatten(spec.structure, out), keep, filler)

    def _filled(
        self, stacked: Any, keep: np.ndarray | None, filler: Callable[[], Any]
    ) -> ElementBatch:
        if keep is not None and not keep.all():
            rooms, first = jax.tree.leaves(stacked), int(np.argmax(keep))
            try:
                with use_read_context(ReadContext()):
                    values: Any = leaves_of(filler(), Spec(jax.tree.map(lambda x: x[0], stacked)))
            except Exception:  # no filler, or one of another shape: repeat an element of the batch
                values = [room[first] if keep[first] else 0 for room in rooms]
            for room, value in zip(rooms, values, strict=True):
                room[~keep] = value
        return ElementBatch(self.n, stacked=stacked, keep=keep)


def _kept(values: list[Any]) -> np.ndarray | None:
    if not any(value is SKIPPED for value in values):
        return None
    return np.array([value is not SKIPPED for value in values])


def leaves_of(element: Any, spec: Spec) -> list[np.ndarray]:
    """The arrays of an element, or an error if it does not have this spec."""
    pairs = zip(_writable(element, spec), spec.leaves, strict=True)
    return [np.asarray(leaf, promised.dtype) for leaf, promised in pairs]


def _writable(element: Any, spec: Spec) -> list[Any]:
    """`leaves_of`, but Python integers stay as they are: NumPy writes these into a batch faster."""
    try:
        leaves = spec.structure.flatten_up_to(element)
    except (ValueError, TypeError, KeyError) as error:
        raise _changed(element, spec) from error
    for place, promised in enumerate(spec.leaves):
        leaf = leaves[place]
        if type(leaf) is np.ndarray:
            if leaf.dtype == promised.dtype and leaf.shape == promised.shape:
                continue  # the common case: nothing else to check
        elif type(leaf) is int and _holds(promised, leaf):
            continue
        try:
            array = as_array(leaf)
        except PipelineError as error:  # a number that does not fit
            raise PipelineError(f"{_name(spec, place)}: {error}") from None
        if array is None or array.shape != promised.shape:
            raise _changed(element, spec)
        if canonical(array.dtype) != promised.dtype:
            raise _changed(element, spec)
        if not isinstance(leaf, _LOOKED_AT):
            array = narrowed(array, promised.dtype, lambda at=place: _name(spec, at))
        leaves[place] = array
    return leaves


def _name(spec: Spec, place: int) -> str:
    return named_places(spec.tree, "element")[place][0]


def _holds(promised: Any, number: int) -> bool:
    """Whether a Python integer can be written where an int32 is promised."""
    if promised.dtype != _INT32 or promised.shape != () or not -(2**31) <= number < 2**31:
        return False
    return canonical(_INT64) == _INT32


def as_arrays(made: Any, spec: Spec) -> Any:
    """What a function returned, as a tree of arrays of exactly this spec."""
    return jax.tree.unflatten(spec.structure, leaves_of(made, spec))


def _changed(element: Any, spec: Spec) -> PipelineError:
    found = format_spec(spec_of_element(element))
    if element is None or spec.structure.num_leaves == 0:
        return PipelineError(
            f"an element is {found}, where {spec} was promised (by the first element). A dataset "
            f"cannot leave an element out by returning None; add a stage that leaves it out: "
            f"`HostFilterTransform(fn)`."
        )
    return PipelineError(
        f"an element is {found}, where {spec} was promised (by `sample_spec`, or by the first "
        f"element); elements of a batch have one shape and dtype: {_make_alike(element, spec)}."
    )


def _make_alike(element: Any, spec: Spec) -> str:
    """What to write, for the error about an element that is not like the others."""
    leaves = jax.tree.leaves(element, is_leaf=lambda x: x is None or is_leaf(x))
    missing = [
        x is None or (isinstance(x, float | np.floating) and x != x and s.dtype.kind in "iub")
        for x, s in zip(leaves, spec.leaves, strict=False)
    ]
    if len(leaves) == len(spec.leaves) and any(missing):
        place = missing.index(True)
        return (
            f"{_name(spec, place)} is {leaves[place]}, a missing value; replace it in a "
            f"HostMapTransform (by -1, say), or leave such elements out: `HostFilterTransform(fn)`"
        )
    found = Spec(spec_of_element(element))
    if found.structure != spec.structure:
        return "give all of them the same keys, or parts, in a HostMapTransform"
    if [leaf.shape for leaf in found.leaves] == [leaf.shape for leaf in spec.leaves]:
        return "make them alike in a HostMapTransform, by `np.float32(x)` or `np.int32(x)`"
    return (
        "resize them in a HostMapTransform, or pass `BatchTransform(..., "
        "collate=pad_collate(max_length))`"
    )


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
        return None
    if isinstance(leaf, float):
        check_number(leaf)
    elif type(leaf) is list:
        check_fits(array)
    return array if is_numeric(array.dtype) else None


def is_numbers(value: Any) -> bool:
    """Whether this is a number, a list of numbers, or a list of such lists."""
    while type(value) is list and value:
        value = value[0]
    return isinstance(value, _NUMBERS)


def is_leaf(value: Any) -> bool:
    """Whether this is a list of numbers, which counts as one array and not as a container."""
    return type(value) is list and is_numbers(value)


def spec_of_element(element: Any) -> Any:
    """The spec of an element; Python objects have the dtype `object`."""

    def look(leaf: Any) -> jax.ShapeDtypeStruct:
        try:
            array = as_array(leaf)
        except PipelineError as error:  # JAX cannot hold the number; a later stage may change it
            return _object(f": {error}")
        if array is None:
            kind = type(leaf).__name__
            return _object(said(lambda: f"{_NO_ARRAY}: {kind} ({leaf!r:.40})", _NO_ARRAY))
        return jax.ShapeDtypeStruct(array.shape, canonical(array.dtype))

    try:
        return jax.tree.map(look, element, is_leaf=is_leaf)
    except ValueError as error:
        if isinstance(error, PipelineError):
            raise
        return jax.ShapeDtypeStruct((), OBJECT)  # JAX cannot flatten it: keys that do not sort, say


def _object(words: str) -> jax.ShapeDtypeStruct:
    """The spec of a Python object. Its dtype carries words for an error; `==` ignores them."""
    return jax.ShapeDtypeStruct((), np.dtype(object, metadata={"words": words}))


def check_arrays(spec: Any, what: str, fix: str) -> None:
    """Refuses Python objects where arrays are needed."""
    for place, leaf in named_places(spec, "element"):
        if leaf.dtype == OBJECT:
            name = f"{what}: {place}"
            words = (leaf.dtype.metadata or {}).get("words")
            if words and words.startswith(":"):  # the number that does not fit, and what to do
                raise PipelineError(f"{name}{words}")
            raise PipelineError(f"{name}{words or _NO_ARRAY}; {fix}.")


def protected(value: Any) -> Any:
    """The same value, with new containers and read-only arrays: a function that writes into its
    argument cannot change the data."""
    if isinstance(value, np.ndarray):
        view = value.view()
        view.flags.writeable = False
        return view
    if isinstance(value, dict | list):
        fresh = copy.copy(value)  # an OrderedDict stays one
        for key in fresh if isinstance(value, dict) else range(len(fresh)):
            fresh[key] = protected(fresh[key])
        return fresh
    if isinstance(value, tuple):
        inner = [protected(each) for each in value]
        return type(value)(*inner) if hasattr(value, "_fields") else type(value)(inner)
    return value
