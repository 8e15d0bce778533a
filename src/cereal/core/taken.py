"""Elements as Python has them: a list of anything, or arrays that hold many.

    listed    [{"image": <PIL image>, "label": 3}, ...]      what functions give and take
    stacked   {"image": uint8[n,28,28], "label": int32[n]}   what one vectorised read gives

Before batching an element may be any Python object. At the seam it becomes arrays of a fixed shape
and dtype, in the types that JAX has.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .errors import PipelineError
from .reading import SKIPPED, for_each, reading
from .spec import Spec, format_spec

OBJECT = np.dtype(object)
_NUMBERS = (bool, int, float, complex)


class Taken:
    """What Python read for some rows."""

    def __init__(
        self,
        listed: list[Any] | None,
        stacked: Any = None,
        n: int = 0,
        keep: np.ndarray | None = None,
    ) -> None:
        self.stacked = stacked
        self.n = n if listed is None else len(listed)
        self.keep = keep  # None: all; False where an element was filtered out or failed
        self._listed = listed

    @property
    def is_listed(self) -> bool:
        return self._listed is not None

    def elements(self) -> list[Any]:
        """One by one; of arrays that hold many, views."""
        if self._listed is not None:
            return self._listed
        return [jax.tree.map(lambda x, i=i: x[i], self.stacked) for i in range(self.n)]

    def stack(self, spec: Spec, stage: str, rows: Any) -> Taken:
        """The same as arrays, each element checked against the spec.

        Elements that were left out are replaced by one that was not, or by zeros.
        """
        if self._listed is None:
            return self
        listed = self._listed
        out = [reading().empty((self.n, *s.shape), s.dtype) for s in spec.leaves]

        def write(lane: int) -> None:
            for room, leaf in zip(out, leaves_of(listed[lane], spec), strict=True):
                room[lane] = leaf

        done, keep = for_each(stage, rows, write, self.n, self.keep)
        for lane, value in enumerate(done):  # what `on_error` gave instead
            if value is not None and value is not SKIPPED:
                for room, leaf in zip(out, leaves_of(value, spec), strict=True):
                    room[lane] = leaf
        if keep is not None and not keep.all():
            kept = np.flatnonzero(keep)
            for room in out:
                room[~keep] = room[kept[0]] if kept.size else 0
        return Taken(None, jax.tree.unflatten(spec.structure, out), self.n, keep)


def leaves_of(element: Any, spec: Spec) -> list[np.ndarray]:
    """The arrays of an element, if it is as the spec says."""
    try:
        leaves = spec.structure.flatten_up_to(element)
    except (ValueError, TypeError, KeyError) as error:
        raise _changed(element, spec) from error
    arrays = []
    for leaf, promised in zip(leaves, spec.leaves, strict=True):
        array = as_array(leaf)
        if (
            array is None
            or array.shape != promised.shape
            or canonical(array.dtype) != promised.dtype
        ):
            raise _changed(element, spec)
        arrays.append(array)
    return arrays


def as_arrays(made: Any, spec: Spec) -> Any:
    """The same as a tree of arrays of exactly this spec."""
    pairs = zip(leaves_of(made, spec), spec.leaves, strict=True)
    arrays = [x if x.dtype == s.dtype else x.astype(s.dtype) for x, s in pairs]
    return jax.tree.unflatten(spec.structure, arrays)


def _changed(element: Any, spec: Spec) -> PipelineError:
    found = format_spec(spec_of_element(element))
    return PipelineError(
        f"an element is {found}, where {spec} was promised (by `sample_spec`, or by the first "
        f"element); elements of a batch have one shape and dtype: resize them in a "
        f"HostMapTransform, or pass `BatchTransform(..., collate=pad_collate(max_length))`."
    )


def as_array(leaf: Any) -> np.ndarray | None:
    """Arrays, tensors, images, numbers and lists of numbers as NumPy has them; None: no array."""
    if type(leaf) is np.ndarray:
        return leaf if _numeric(leaf.dtype) else None
    if isinstance(leaf, int | np.integer) and not isinstance(leaf, bool):
        return np.asarray(leaf, _fitting(int(leaf), getattr(leaf, "dtype", None)))
    if (
        isinstance(leaf, _NUMBERS)
        or is_numbers(leaf)
        or hasattr(leaf, "__array__")
        or hasattr(leaf, "__array_interface__")
    ):
        try:
            array = np.asarray(leaf)
        except ValueError:  # lists of different lengths
            return None
        if type(leaf) is list and array.dtype == np.int64 and array.size:
            for extreme in (array.min(), array.max()):
                _fitting(int(extreme), array.dtype)
        return array if _numeric(array.dtype) else None
    return None


def _fitting(value: int, dtype: Any) -> Any:
    dtype = np.dtype(np.int64) if dtype is None else dtype
    narrow = np.iinfo(canonical(dtype))
    if not narrow.min <= value <= narrow.max:
        raise PipelineError(
            f"the integer {value} does not fit {narrow.dtype}, which JAX has in its place; "
            f"switch 64-bit types on (`jax.config.update('jax_enable_x64', True)`), or map it to "
            f"smaller numbers."
        )
    return dtype


@functools.lru_cache(maxsize=256)
def _numeric(dtype: np.dtype[Any]) -> bool:
    return dtype == np.bool_ or jnp.issubdtype(dtype, jnp.number)


def canonical(dtype: Any) -> np.dtype[Any]:
    """The dtype that JAX has for it: 32 bits unless wide types are on, in native byte order."""
    config: Any = jax.config
    return _canonical(np.dtype(dtype), config.jax_enable_x64)


@functools.lru_cache(maxsize=256)
def _canonical(dtype: np.dtype[Any], wide: bool) -> np.dtype[Any]:
    del wide  # it decides, by way of the settings
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype.newbyteorder("=")))


def is_numbers(value: Any) -> bool:
    """Whether this is a list of numbers, or of such lists: an array, as Python writes it."""
    while type(value) is list and value:
        value = value[0]
    return isinstance(value, _NUMBERS)


def is_leaf(value: Any) -> bool:
    """Whether a list is one array, and no container."""
    return type(value) is list and is_numbers(value)


def spec_of_element(element: Any) -> Any:
    """What an element looks like; a Python object has the dtype `object`."""

    def look(leaf: Any) -> jax.ShapeDtypeStruct:
        array = as_array(leaf)
        if array is None:
            return jax.ShapeDtypeStruct((), OBJECT)
        return jax.ShapeDtypeStruct(array.shape, canonical(array.dtype))

    try:
        return jax.tree.map(look, element, is_leaf=is_leaf)
    except ValueError as error:
        if isinstance(error, PipelineError):
            raise
        return jax.ShapeDtypeStruct((), OBJECT)  # a dict whose keys cannot be sorted, say


def check_arrays(spec: Any, what: str, fix: str) -> None:
    """Refuses Python objects where arrays are needed."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(spec)[0]:
        if leaf.dtype == OBJECT:
            name = "element" + jax.tree_util.keystr(path)
            raise PipelineError(
                f"{what}: `{name}` is a Python object and no array (nor a number); {fix}."
            )


def protected(value: Any) -> Any:
    """The same with fresh containers and read-only arrays: a function that writes into its
    argument cannot change the data."""
    kind = type(value)
    if isinstance(value, np.ndarray):
        view = value.view()
        view.flags.writeable = False
        return view
    if kind is dict:
        return {key: protected(inner) for key, inner in value.items()}
    if kind is list:
        return [protected(inner) for inner in value]
    if isinstance(value, tuple):
        inner = [protected(each) for each in value]
        return kind(*inner) if hasattr(value, "_fields") else kind(inner)
    return value
