"""The elements of a source by index, outside of any loader: for passes over the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from .execute import read_rows
from .rows import Rows
from .source import IndexedSource

_MOST_BYTES = 16 * 2**20


def read_elements(source: IndexedSource[Any], indices: np.ndarray) -> tuple[Any, Any]:
    """The elements at these indices, stacked on the device, and their mask (None: all real).

    More are read than asked for, up to a power of two, so that few programs are compiled.
    """
    size = 1 << max(4, (len(indices) - 1).bit_length())
    padded = np.resize(indices.astype(np.int64), size)
    rows = Rows(np.zeros(2, np.uint32), np.zeros(size, np.uint32), padded, None)
    values, mask = read_rows(source, source.route(rows), masked=False)
    return jax.tree.map(lambda x: x[: len(indices)], (values, mask))


def chunks_of(source: IndexedSource[Any], indices: np.ndarray) -> Iterator[np.ndarray]:
    """The indices in chunks of elements that fit a few megabytes."""
    size = sum(s.size * s.dtype.itemsize for s in jax.tree.leaves(source.element_spec()))
    most = 1 << max(4, (_MOST_BYTES // max(size, 1)).bit_length() - 1)
    for begin in range(0, len(indices), most):
        yield indices[begin : begin + most]
