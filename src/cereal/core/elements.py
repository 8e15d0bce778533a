"""The elements of a source by index, outside of any loader: for passes over the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from .execute import read_fetched
from .positional import IndexedSource
from .rows import Rows, routed_at
from .spec import Spec

_MOST_BYTES = 16 * 2**20
_MOST_PROGRAMS = 4


def read_elements(
    source: IndexedSource[Any], indices: np.ndarray, sizes: set[int] | None = None
) -> tuple[Any, Any]:
    """The elements at these indices, stacked on the device, and their mask (None: all real).

    Python reads what is asked for. The compiled stages are run for as many elements, too, unless
    that were many programs: `sizes` remembers those that there are.
    """
    return read_fetched_elements(source, source._fetch(routed_at(source, indices)), sizes)


def read_fetched_elements(
    source: IndexedSource[Any], rows: Rows, sizes: set[int] | None = None
) -> tuple[Any, Any]:
    """The same of rows that Python has read."""
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
    """The first of n and some others, always the same ones, in order.

    What only iterates would be read to the end for a late one: of that, the first ones.
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
    """The indices in chunks of elements that fit a few megabytes."""
    size = Spec(source.element_spec()).nbytes
    most = 1 << max(4, (_MOST_BYTES // max(size, 1)).bit_length() - 1)
    for begin in range(0, len(indices), most):
        yield indices[begin : begin + most]
