"""64-bit numbers become 32-bit numbers in JAX: those that do not fit are refused.

    int64    [7, 2**40]      refused: int32 would have 0 in its place
    uint64   [2**32]         refused
    float64  [1e300]         refused: float32 would have inf in its place
    float64  [nan, inf]      taken as they are; a number may also be rounded

With `jax_enable_x64` nothing is cast or checked. Arrays in memory are checked once, when a source
is built. What files hold and what functions return is checked when it is cast.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import PipelineError

_INT64, _FLOAT64 = np.dtype(np.int64), np.dtype(np.float64)
_FEW, _MANY = 16, 1 << 13
# From NumPy 2.4 on, a cast can itself refuse values that change. It is the quickest check, unless
# there are many numbers.
_SAME_VALUE: Any = (
    {"casting": "same_value"} if np.lib.NumpyVersion(np.__version__) >= "2.4.0" else {}
)
_NARROW: dict[Any, Any] = {
    np.dtype(np.int64): np.dtype(np.int32),
    np.dtype(np.uint64): np.dtype(np.uint32),
    np.dtype(np.float64): np.dtype(np.float32),
    np.dtype(np.complex128): np.dtype(np.complex64),
}
_WIDE = frozenset(_NARROW)
# The least float64 that is rounded to infinity in 32 bits: halfway to the next power of two.
_TOO_LARGE = float(2**128 - 2**103)
_CHUNK = 1 << 16  # numbers checked at once: intermediate arrays then fit the processor's cache

Name = str | Callable[[], str]


def _as_jax_says() -> bool:
    import jax

    config: Any = jax.config
    return config.jax_enable_x64


_wide_types: Callable[[], bool] = _as_jax_says


def set_wide_types(answer: Callable[[], bool] | None) -> None:
    """Replaces the function that says whether 64-bit types are on; None: JAX's setting says so.

    A process that has no JAX is told by the one that started it.
    """
    global _wide_types
    _wide_types = _as_jax_says if answer is None else answer


def canonical(dtype: Any) -> Any:
    """The dtype that JAX uses for it: 32 bits unless `jax_enable_x64` is on, in native byte order.

    Types that are JAX's own, such as that of random keys, stay as they are.
    """
    if not isinstance(dtype, np.dtype):
        try:
            dtype = np.dtype(dtype)
        except TypeError:
            return dtype
    if dtype.kind == "O":
        return dtype  # it may carry words, which the cache below would confuse
    return _canonical(dtype, _wide_types())


@functools.lru_cache(maxsize=256)
def _canonical(dtype: np.dtype[Any], wide: bool) -> np.dtype[Any]:
    """As `jax.dtypes.canonicalize_dtype`, without JAX.

    The bet: JAX has other types for four, and uses the rest unchanged. If it is lost, elements are
    given the wrong type. `tests/base/test_fitting.py`, `test_every_dtype_is_the_one_that_jax_uses`,
    fails first.
    """
    dtype = dtype.newbyteorder("=")
    return dtype if wide else _NARROW.get(dtype, dtype)


@functools.lru_cache(maxsize=256)
def is_numeric(dtype: np.dtype[Any]) -> bool:
    """Whether JAX has such numbers. (It has no spans of time, which NumPy counts as integers.)"""
    return dtype.kind in "biufc" or (dtype.kind == "V" and dtype.type.__module__ == "ml_dtypes")


@functools.lru_cache(maxsize=16)
def _limits(dtype: np.dtype[Any]) -> Any:
    return np.iinfo(dtype)


def fitting(value: int, dtype: Any) -> Any:
    """The dtype of an integer (int64 if `dtype` is None), or an error if JAX cannot hold it."""
    dtype = _INT64 if dtype is None else dtype
    narrow = _limits(canonical(dtype))
    if not narrow.min <= value <= narrow.max:
        raise _does_not_fit(value, narrow.dtype, "")
    return dtype


def check_fits(array: Any, name: Name = "") -> None:
    """Refuses a NumPy array with a number that the type that JAX uses for it cannot hold.

    `name` says in the error where the array is.
    """
    dtype = array.dtype
    if dtype.itemsize < 8 or dtype.newbyteorder("=") not in _WIDE:
        return
    narrow = canonical(dtype)
    if narrow.itemsize < dtype.itemsize and array.size and not _fits(array, narrow):
        raise _does_not_fit(_first_wrong(array, narrow), narrow, name)


def check_number(value: float) -> None:
    """Refuses a float that the type that JAX uses for it cannot hold."""
    if -_TOO_LARGE < value < _TOO_LARGE:
        return
    narrow = canonical(_FLOAT64)
    if narrow != _FLOAT64 and math.isfinite(value):
        raise _does_not_fit(float(value), narrow, "")


def narrowed(array: np.ndarray, dtype: np.dtype[Any], name: Name = "") -> np.ndarray:
    """The array cast to `dtype`, its canonical dtype; or an error if a number does not fit."""
    given = array.dtype
    if given == dtype:
        return array
    try:
        if given.kind in "fc" and array.size > _FEW:
            with np.errstate(over="raise"):  # the processor reports overflow: no second pass
                return array.astype(dtype)
        # (NumPy 2.4 does not check numbers whose bytes it has to swap.)
        if given.kind in "iu" and array.size < _MANY and _SAME_VALUE and given.isnative:
            return array.astype(dtype, **_SAME_VALUE)
    except (FloatingPointError, ValueError):
        raise _does_not_fit(_first_wrong(array, dtype), dtype, name) from None
    if given.itemsize > dtype.itemsize and array.size and not _fits(array, dtype):
        raise _does_not_fit(_first_wrong(array, dtype), dtype, name)
    return array.astype(dtype)


def _fits(array: Any, narrow: np.dtype[Any]) -> bool:
    if narrow.kind == "c":
        return all(_fits(part, np.dtype(np.float32)) for part in (array.real, array.imag))
    if array.size <= _FEW:  # Python is quicker here: a call of NumPy costs a microsecond
        values = array.reshape(-1).tolist()
        least, most = min(values), max(values)
    elif narrow.kind in "iu" and (together := int(np.bitwise_or.reduce(array, axis=None))) >= 0:
        # The bitwise "or" of all numbers takes half the time of a minimum and a maximum. It is at
        # least as large as every number. The limit is 2^k - 1, so the "or" exceeds it if, and only
        # if, some number does.
        least, most = 0, together
    else:
        least, most = array.min(), array.max()
    if narrow.kind in "iu":
        limits = _limits(narrow)
        return bool(limits.min <= least and most <= limits.max)
    # If these extremes do not fit, they may be infinities or NaN, which are allowed.
    fits = least > -_TOO_LARGE and most < _TOO_LARGE
    return bool(fits) or _first_wrong(array, narrow) is None


def _right(array: Any, narrow: np.dtype[Any]) -> Any:
    """True for each number of an array that fits."""
    if narrow.kind in "iu":
        limits = _limits(narrow)
        return (array >= limits.min) & (array <= limits.max)
    if narrow.kind == "c":
        return _right(array.real, np.dtype(np.float32)) & _right(array.imag, np.dtype(np.float32))
    return (np.abs(array) < _TOO_LARGE) | ~np.isfinite(array)


def _first_wrong(array: np.ndarray, narrow: np.dtype[Any]) -> Any:
    """The first number that does not fit; None if all fit."""
    flat = array.reshape(-1)
    for begin in range(0, flat.size, _CHUNK):
        part = flat[begin : begin + _CHUNK]
        wrong = np.flatnonzero(~_right(part, narrow))
        if len(wrong):
            return part[wrong[0]].item()
    return None


def _does_not_fit(value: Any, narrow: np.dtype[Any], name: Name) -> PipelineError:
    name = name if isinstance(name, str) else name()
    what, why = ("integer", "") if narrow.kind in "iu" else ("number", ": it would become inf")
    return PipelineError(
        f"{name}{': ' if name else ''}the {what} {value} does not fit {narrow}, which JAX uses "
        f"instead{why}; switch 64-bit types on (`jax.config.update('jax_enable_x64', True)`), or "
        f"map it to smaller numbers."
    )
