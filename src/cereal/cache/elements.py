"""Reads elements of a source by index, without a loader: for caches and statistics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from ..base.errors import UsageError
from ..base.spec import Spec
from ..order.rows import Rows, routed_at
from ..pipeline.execute import read_fetched, read_rows
from ..pipeline.positional import IndexedSource
from ..reading.read_context import SKIPPED

_MOST_BYTES = 16 * 2**20
_MOST_PROGRAMS = 4


def read_one(source: IndexedSource[Any], index: int, key: np.ndarray, epoch: int) -> Any:
    """The element at an index: as Python makes it; or as arrays, if compiled stages make it."""
    rows, traits = routed_at(source, np.array([index]), key, epoch), source.traits
    if not (traits.host and traits.by_python):
        return jax.tree.map(lambda x: x[0], read_rows(source, rows, masked=False)[0])
    found = source._produce(rows).element(0)
    if found is SKIPPED:
        why = "the iterator has ended" if traits.unknown_length else "it is filtered out"
        raise UsageError(f"there is no element {index}: {why}.")
    return found


def read_elements(
    source: IndexedSource[Any], indices: np.ndarray, sizes: set[int] | None = None
) -> tuple[Any, Any]:
    """The elements at these indices, stacked on the device, and their mask (None: all real).

    Python reads only these elements. Compiled stages need one program for each number of elements.
    `sizes` holds the numbers that have a program; if there are many, the elements are padded to one
    of these.
    """
    return read_fetched_elements(source, source._fetch(routed_at(source, indices)), sizes)


def read_fetched_elements(
    source: IndexedSource[Any], rows: Rows, sizes: set[int] | None = None
) -> tuple[Any, Any]:
    """The same, for rows that Python has read already."""
    n = len(rows.index)
    size = _program_size(n, set() if sizes is None else sizes)
    if size > n:
        rows = rows.map(lambda x: np.resize(x, (size, *x.shape[1:])) if x.ndim else x)
    values, mask = read_fetched(source, rows, masked=False)
    return jax.tree.map(lambda x: x[:n], (values, mask))


def _program_size(n: int, sizes: set[int]) -> int:
    if n not in sizes and len(sizes) >= _MOST_PROGRAMS:
        n = min((size for size in sizes if size >= n), default=1 << (n - 1).bit_length())
    sizes.add(n)
    return n


FEW = 4


def few_of(n: int, source: IndexedSource[Any]) -> np.ndarray:
    """A few of n indices: the first and some others, in order, always the same ones.

    If the source only iterates, the first few: to reach a late one, it would read all before it.
    """
    if n <= FEW or source._iterators is not None:
        return np.arange(min(n, FEW))
    others = np.random.default_rng(n).choice(n - 1, FEW - 1, replace=False)
    return np.sort(np.append(0, others + 1))


def few_true(which: np.ndarray, source: IndexedSource[Any]) -> np.ndarray:
    """A few of the indices at which this is True."""
    n = int(np.count_nonzero(which))
    found = few_of(n, source)
    return found if n == len(which) else np.flatnonzero(which)[found]


def chunks_of(source: IndexedSource[Any], indices: np.ndarray) -> Iterator[np.ndarray]:
    """The indices in chunks whose elements have a few megabytes."""
    size = Spec(source.element_spec()).nbytes
    most = 1 << max(4, (_MOST_BYTES // max(size, 1)).bit_length() - 1)
    for begin in range(0, len(indices), most):
        yield indices[begin : begin + most]
