"""The elements of a source that pass a test."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from ...base.atomic import write_atomically
from ...base.capture import any_traced, staging
from ...base.errors import PipelineError, UsageError
from ...base.paths import as_path
from ...cache.elements import chunks_of, few_true, read_elements
from ...cache.name import Named, check_version, name_of
from ...functions.compiled import TracedAgain
from ...functions.function import Function, as_decision, as_function
from ...functions.traced_stage import current
from ...pipeline.source import Source
from .routed import check_part, count_of
from .slice import SliceSource

T = TypeVar("T")
Decide = Callable[[Any], Any]


def select(
    source: Source[T],
    fn: Callable[[Any], Any],
    *,
    cache: str | os.PathLike[str] | None = None,
    version: int | str | None = None,
    ordering: Any = None,
) -> SliceSource[T]:
    """A source of only those elements for which `fn(element)` is True.

        0 1 2 3 4 5 6 7   --fn: even-->   0 2 4 6

    `select` reads all data once, when you call it; `fn` is compiled. The result is an indexed
    source with a length; it stores four bytes for every element that passes.

    `cache`, a folder, keeps the result in a file, one bit for each element. The next call with the
    same data and the same `fn` finds it, decides a few elements again, and raises if the file says
    otherwise. `version`, a number or a word, is part of the file's name: change it to select again.
    To keep all elements in their places and only mask some, use `FilterTransform`.

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
    if staging() or any_traced(source):
        raise UsageError(
            "select: it reads the data when it is called, which a traced function cannot do; "
            "select outside of it, or mask with FilterTransform(fn)."
        )
    function = as_function(fn, owner)
    indexed: Any = current(source, None)
    _check_stable(indexed)
    _check_decision(indexed, function)
    check_version(version, owner)
    if cache is None and version is not None:
        raise PipelineError(
            f"{owner}: `version={version!r}` is part of the name of a file, and there is none "
            f"without `cache=folder`; leave it out, or pass a folder."
        )
    # `fn` is traced in every call of `select`, since it may refer to values that change.
    decide = TracedAgain(jax.vmap(lambda x: as_decision(function(x), owner)))
    if cache is None:
        keep = _kept(indexed, decide)
    else:
        folder, line = as_path(cache, "cache", owner), "select(source, fn, cache=folder, version=1)"
        keep = _cached(indexed, function, decide, Named(str(folder), version, owner, line))
    chosen = np.flatnonzero(keep)
    if not len(chosen):
        raise PipelineError(
            f"{owner}: no element of {count_of(source)} passes `{function.name}`; a source cannot "
            f"be empty."
        )
    return SliceSource(source, chosen, ordering=ordering)


def _check_stable(source: Any) -> None:
    traits = source.traits
    if traits.random_stages or traits.varies or not traits.fixed:
        what = "has a random stage" if traits.random_stages else "mixes sources"
        what = "reads data that depends on the epoch" if traits.varies else what
        raise PipelineError(
            f"select: {source._label} {what}, so its elements change from epoch to epoch; select "
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


def _kept(source: Any, decide: Decide) -> np.ndarray:
    """An array of True and False: whether each element is kept."""
    chunks = chunks_of(source, np.arange(len(source)))
    return np.concatenate([_kept_of(source, decide, chunk) for chunk in chunks])


def _kept_of(source: Any, decide: Decide, indices: np.ndarray) -> np.ndarray:
    values, mask = read_elements(source, indices)
    keep = np.asarray(decide(values))
    if mask is None:
        return keep
    return keep & np.asarray(mask).reshape(len(keep), -1).any(axis=1)  # any part of it is real


def _cached(source: Any, function: Function, decide: Decide, named: Named) -> np.ndarray:
    n = len(source)
    path = Path(named.folder or "").expanduser() / f"select-{name_of(source, named, function)}.npy"
    if (bits := _bits_in(path)) is not None and bits.shape == (-(-n // 8),):
        keep = np.unpackbits(bits, count=n).astype(np.bool_)
        _check_again(source, function, decide, keep, path)
        return keep
    keep = _kept(source, decide)
    write_atomically(path, lambda file: np.save(file, np.packbits(keep), allow_pickle=False))
    return keep


def _check_again(
    source: Any, function: Function, decide: Decide, keep: np.ndarray, path: Path
) -> None:
    """Decides a few kept and a few left-out elements again: a digest may miss a change of code."""
    some = [few_true(each, source) for each in (keep, ~keep)]
    indices = np.unique(np.concatenate(some))
    for index in indices[_kept_of(source, decide, indices) != keep[indices]]:
        # A program for fewer elements may round differently: decide the whole chunk, as before.
        chunk = next(x for x in chunks_of(source, np.arange(len(source))) if x[-1] >= index)
        found = [_kept_of(source, decide, chunk)[index - chunk[0]] for _ in range(2)]
        if found[0] != found[1]:
            why = f"`{function.name}`, or what it looks at, is not deterministic; select without"
            raise PipelineError(f"select: {why} `cache=`, and delete {path}.")
        if found[0] != keep[index]:
            raise PipelineError(
                f"select: element {index} is {'kept' if keep[index] else 'left out'} by {path}, "
                f"and `{function.name}` says the opposite now. Code or data changed in a way that "
                f"the file's name, a digest of them, does not show; or it is not deterministic. "
                f"Write `select(..., cache=folder, version=...)` with another version whenever "
                f"that code changes, or delete the file."
            )


def _bits_in(path: Path) -> np.ndarray | None:
    """The bits in a file; None if the file does not exist or is damaged."""
    try:
        bits = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return bits if isinstance(bits, np.ndarray) and bits.dtype == np.uint8 else None
