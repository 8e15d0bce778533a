"""The elements of a source that pass a test."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.core
import numpy as np

from ..core.atomic import write_atomically
from ..core.capture import staging
from ..core.digest import digest
from ..core.elements import chunks_of, read_elements
from ..core.errors import PipelineError, UsageError
from ..core.function import Function, as_decision, as_function
from ..core.paths import as_path
from ..core.source import Source
from .routed import check_part, count_of
from .slice import SliceSource

T = TypeVar("T")


def select(
    source: Source[T],
    fn: Callable[[Any], Any],
    *,
    cache: str | os.PathLike[str] | None = None,
    ordering: Any = None,
) -> SliceSource[T]:
    """A source of those elements for which `fn(element)` is True.

        0 1 2 3 4 5 6 7   --fn: even-->   0 2 4 6

    Reads the data once, compiled, when it is called; then it is an indexed source like others,
    with a length, and four bytes for every survivor. With `cache`, a folder, the outcome is kept
    there as a bit for each element, and found again as long as data and `fn` are the same. To keep
    elements in their place and only mask them, use `FilterTransform`.

    >>> import cereal
    >>> even = cereal.select(cereal.RangeSource(8), lambda x: x % 2 == 0)
    >>> [int(x) for x, mask in cereal.DataLoader(even)]
    [0, 2, 4, 6]
    """
    owner = "select"
    check_part(source, owner, "`source`")
    if not callable(fn):
        raise PipelineError(
            f"{owner}: `fn` must be callable, got {type(fn).__name__} ({fn!r:.60}); write "
            f"`select(source, lambda element: ...)`."
        )
    if staging() or any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(source)):
        raise UsageError(
            "select: it reads the data when it is called, and cannot inside a traced function; "
            "select outside of it, or mask with FilterTransform(fn)."
        )
    function = as_function(fn, owner)
    indexed: Any = source
    _check_stable(indexed)
    _check_decision(indexed, function)
    folder = None if cache is None else as_path(cache, "cache", owner)
    keep = _kept(indexed, function) if folder is None else _cached(indexed, function, folder)
    chosen = np.flatnonzero(keep)
    if not len(chosen):
        raise PipelineError(
            f"{owner}: no element of {count_of(source)} passes `{function.name}`; a source cannot "
            f"be empty."
        )
    return SliceSource(source, chosen, ordering=ordering)


def _check_stable(source: Any) -> None:
    if source.random_stages or not source.fixed:
        what = "has a random stage" if source.random_stages else "mixes sources"
        raise PipelineError(
            f"select: {source.label} {what}, so its elements change from epoch to epoch; select "
            f"first, or mask with FilterTransform(fn)."
        )


def _check_decision(source: Any, function: Function) -> None:
    try:
        jax.eval_shape(lambda x: as_decision(function(x), "select"), source.element_spec())
    except (TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
        if isinstance(error, PipelineError | UsageError):
            raise
        raise PipelineError(
            f"select: `{function.name}` failed on an element: {type(error).__name__}: "
            f"{str(error).strip().partition(chr(10))[0]}"
        ) from error


@jax.jit
def _decide(function: Function, values: Any) -> Any:
    return jax.vmap(lambda x: as_decision(function(x), "select"))(values)


def _kept(source: Any, function: Function) -> np.ndarray:
    """For every element, whether it is kept."""
    kept = []
    for chunk in chunks_of(source, np.arange(len(source))):
        values, mask = read_elements(source, chunk)
        keep = np.asarray(_decide(function, values))
        kept.append(keep if mask is None else keep & np.asarray(mask))
    return np.concatenate(kept)


def _cached(source: Any, function: Function, folder: Path) -> np.ndarray:
    n = len(source)
    path = folder / f"select-{digest(source, function)}.npy"
    if (bits := _bits_in(path)) is not None and bits.shape == (-(-n // 8),):
        return np.unpackbits(bits, count=n).astype(np.bool_)
    keep = _kept(source, function)
    write_atomically(path, lambda file: np.save(file, np.packbits(keep), allow_pickle=False))
    return keep


def _bits_in(path: Path) -> np.ndarray | None:
    """The bits in a file; None if there is none, or it is damaged."""
    try:
        bits = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return bits if isinstance(bits, np.ndarray) and bits.dtype == np.uint8 else None
