"""Sources that Python reads, outside of compiled programs: files, datasets, functions, caches.

    outside of jit   rows as NumPy  --fetch-->  values as NumPy  --compiled stages-->  batch
    inside of jit    rows  --pure callback: the same fetch-->  values  --stages-->  batch

`_produce` gives Python objects, for the host stages above. `_fetch` gives arrays, between what
Python runs and what is compiled. Programs and JAX's caches never hold the data (`host_data`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import jax
import numpy as np

from ..base.errors import PipelineError, in_one_line
from ..base.spec import Spec
from ..host.element_spec import form_of
from ..host.host_data import HostData as HostData
from ..host.host_data import HostFunction as HostFunction
from ..host.host_data import living as living
from ..host.host_program import fetched_in_program
from ..order.rows import Rows, routed_at, rows_at
from ..reading.program import Program, Stacked
from ..reading.read_context import SKIPPED
from ..reading.readers.reader import Reader, TakeReader
from ..reading.stages import Filler
from .host_loop import Fetched, fetch_by, lower, weakly
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
        reader = self._reader
        if not isinstance(reader, TakeReader) or isinstance(reader, TreeReader):
            raise TypeError(f"{type(self).__name__} has no batched read")
        return reader.structure.unflatten(reader.take(indices))

    @cached_property
    def _reader(self) -> Reader:
        return TreeReader(self._label, self._spec, weakly(self._take_host))

    @cached_property
    def _spec(self) -> Spec:
        return Spec(self.element_spec())

    @cached_property
    def _program(self) -> Program:
        """What reads its elements and stacks them, as plain functions."""
        return lower(self, (), weakly(self._filler))  # it must not keep the source alive

    def _sample(self) -> Any:
        return first_element(self)

    def _fetch(self, rows: Rows) -> Rows:
        if not self.traits.host:
            return rows
        return fetch_by(self._program, self._spec, rows, self.traits.masks_on_host)

    def _read(self, rows: Rows) -> tuple[T_co, Any]:
        if rows.below is None and not self.traits.host:
            return super()._read(rows)
        if not isinstance(rows.below, Fetched):
            rows = fetched_in_program(self, rows)
        return rows.below.read(rows)

    def _narrow(self, parts: Any) -> Any:
        reader = self._reader.narrowed(parts) if self.traits.host else None
        return None if reader is None else Narrowed(self, reader, parts)

    def _untouched(self, rows: Rows) -> Any:
        return rows.below if isinstance(rows.below, Fetched) else None

    def take(self, indices: Any) -> T_co:
        return self._read(self._route(rows_at(indices)))[0]


class Narrowed:
    """A part of every element of a source: some indices of the inner axes of its arrays. No element
    is ever left out: `Pipeline._narrowed` sees to it."""

    def __init__(self, source: Any, reader: Reader, parts: Any) -> None:
        leaves = [
            _narrower(leaf, part) for leaf, part in zip(source._spec.leaves, parts, strict=True)
        ]
        self._spec = Spec(jax.tree.unflatten(source._spec.structure, leaves))
        self._masks = source.traits.masks_on_host
        stacked = Stacked(source._label, form_of(self._spec), Filler(None))
        self._program = Program(reader, stacked, (), form_of(self._spec))

    def _fetch(self, rows: Rows) -> Rows:
        return fetch_by(self._program, self._spec, rows, self._masks)


def _narrower(leaf: Any, part: Any) -> Any:
    if part is None:
        return leaf
    sizes = [n if kept is None else len(kept) for n, kept in zip(leaf.shape, part, strict=True)]
    return jax.ShapeDtypeStruct(tuple(sizes), leaf.dtype)


class TreeReader(TakeReader):
    """Calls a function that gives trees of arrays; only in this process."""

    def __init__(self, label: str, spec: Spec, take: Callable[[np.ndarray], Any]) -> None:
        self.label, self._take, self.structure = label, take, form_of(spec).structure

    @property
    def can_move(self) -> bool:
        return False

    def take(self, indices: np.ndarray) -> list[np.ndarray]:
        return jax.tree.leaves(self._take(indices))


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
