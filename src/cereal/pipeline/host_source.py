"""Sources that Python reads, outside of compiled programs: files, datasets, functions, caches.

    outside of jit   rows as NumPy  --fetch-->  values as NumPy  --compiled stages-->  batch
    inside of jit    rows  --pure callback: the same fetch-->  values  --stages-->  batch

`_produce` gives Python objects, for the host stages above. `_fetch` gives arrays, between what
Python runs and what is compiled. Programs and JAX's caches never hold the data (`host_data`).
"""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import numpy as np

from ..base.errors import PipelineError, in_one_line
from ..host.element_batch import ElementBatch
from ..host.host_data import HostData as HostData
from ..host.host_data import HostFunction as HostFunction
from ..host.host_data import living as living
from ..host.host_program import fetched_in_program
from ..host.read_context import SKIPPED, at_element, raise_it, read_context
from ..order.rows import Rows, routed_at, rows_at
from .host_loop import Fetched, fetch_by
from .positional import IndexedSource
from .traits import Traits

T_co = TypeVar("T_co", covariant=True)
_TRIES = 8
_MANY_TRIES = 1000


class HostIndexed(IndexedSource[T_co]):
    """An indexed source that Python reads: a batch at once with NumPy, or element by element."""

    def _describe(self) -> Traits:
        return self._describe_as(host=True, by_python=True, wide=True)

    def _take_host(self, indices: np.ndarray) -> Any:
        """The elements at these indices (one axis), stacked: a tree of fresh NumPy arrays."""
        raise TypeError(f"{type(self).__name__} has no batched read")

    def _produce(self, rows: Rows) -> ElementBatch:
        """The elements of these rows (one axis), as Python reads them."""
        indices, here, label = rows.index, read_context(), self._label
        with here.at(label, rows):
            try:
                if here.known_to_hang:
                    here.check_known_to_hang()
                return ElementBatch(len(indices), stacked=self._take_host(indices))
            except Exception as error:
                failed = error

        def read(lane: int) -> Any:
            return jax.tree.map(lambda x: x[0], self._take_host(indices[lane : lane + 1]))

        def one(lane: int) -> Any:  # finds out which element failed
            return at_element(label, rows, lane, read, lane)

        return one_by_one(one, len(indices), failed)

    def _sample(self) -> Any:
        return first_element(self)

    def _fetch(self, rows: Rows) -> Rows:
        traits = self.traits
        return fetch_by(self, (), rows, traits.masks_on_host) if traits.host else rows

    def _read(self, rows: Rows) -> tuple[T_co, Any]:
        if rows.below is None and not self.traits.host:
            return super()._read(rows)
        if not isinstance(rows.below, Fetched):
            rows = fetched_in_program(self, rows)
        return rows.below.read(rows)

    def _untouched(self, rows: Rows) -> Any:
        return rows.below if isinstance(rows.below, Fetched) else None

    def take(self, indices: Any) -> T_co:
        return self._read(self._route(rows_at(indices)))[0]


def one_by_one(one: Any, n: int, failed: Exception) -> ElementBatch:
    """Elements one by one, after reading them together has `failed`.

    If errors are raised: the first element that fails raises its own; if none does, `failed` is
    raised.
    """
    if read_context().on_error is raise_it:
        for lane in range(n if n > 1 else 0):
            one(lane)
        raise failed
    return ElementBatch(n, one=one)


def first_element(source: Any, wanted: Any = None, otherwise: Any = None) -> Any:
    """The first element that can be read, to find the spec of elements.

    With `wanted`: the first element for which it is true, or `otherwise` if there is none.
    """
    first: Exception | None = None
    tries = _TRIES if wanted is None else _MANY_TRIES
    for index in range(min(tries, len(source))):
        try:
            rows = routed_at(source, np.array([index]))
            found = source._produce(rows).element(0)
            if found is not SKIPPED and (wanted is None or wanted(found)):
                return found
        except Exception as error:
            first = first or error
    if wanted is not None:
        return otherwise
    if first is None:
        raise PipelineError(f"{source._label}: all of its first {tries} elements are left out.")
    hint = "; if it can only be iterated, write `IterableSource(lambda: iter(...))`"
    raise PipelineError(
        f"{source._label} failed on its first elements: {in_one_line(first)}"
        f"{hint if isinstance(first, NotImplementedError) else ''}"
    ) from first
