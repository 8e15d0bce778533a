"""Sources that Python reads, outside of compiled programs: files, datasets, functions, caches.

    outside of jit   rows as NumPy  --fetch-->  values as NumPy  --compiled stages-->  batch
    inside of jit    rows  --pure callback: the same fetch-->  values  --stages-->  batch

`produce` gives elements as Python has them, for the host stages above; `fetch` gives them as
arrays, at the seam. The program never holds the data, and JAX's caches do not either (`host_data`).
"""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import numpy as np

from .errors import PipelineError
from .host_data import HostData as HostData
from .host_data import HostFunction as HostFunction
from .host_data import living as living
from .host_program import fetched_in_program
from .positional import IndexedSource, Positional
from .pytree import pytree_dataclass
from .reading import SKIPPED, at_element, raise_it, reading
from .rows import Rows, routed_at, rows_at
from .spec import Spec
from .taken import Taken

T_co = TypeVar("T_co", covariant=True)
_TRIES = 8
_MANY_TRIES = 1000


@pytree_dataclass
class Fetched:
    """What Python read for some rows, in `Rows.below`."""

    values: Any
    mask: Any  # None: all real


class HostNode(Positional[T_co]):
    """A source or stage that Python runs; what it gives passes the seam as arrays."""

    @property
    def host(self) -> bool:
        return True

    @property
    def produces(self) -> bool:
        return True

    def read(self, rows: Rows) -> tuple[T_co, Any]:
        found = rows.below
        if not isinstance(found, Fetched):
            found = fetched_in_program(self, rows).below
        if found.mask is None:
            return found.values, rows.valid
        return found.values, found.mask if rows.valid is None else rows.valid & found.mask

    def passes(self, rows: Rows) -> Any:
        """What was fetched, since no compiled stage changes it."""
        return rows.below if isinstance(rows.below, Fetched) else None

    def _promised(self, shape: tuple[int, ...], spec: Any) -> Fetched:
        """What fetching would give, for rows of this shape that have no values."""
        extra = shape[: len(shape) - len(self.lanes)]  # of one element, all axes
        values = jax.tree.map(lambda s: jax.ShapeDtypeStruct((*extra, *s.shape), s.dtype), spec)
        masked = self.masks_on_host or reading().masked
        return Fetched(values, jax.ShapeDtypeStruct(shape, np.bool_) if masked else None)

    def _mask(self, keep: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray | None:
        if not (self.masks_on_host or reading().masked):
            return None
        return np.ones(shape, np.bool_) if keep is None else keep.reshape(shape)


class HostIndexed(HostNode[T_co], IndexedSource[T_co]):
    """An indexed source that Python reads: by a batched read in NumPy, or element by element."""

    def take_host(self, indices: np.ndarray) -> Any:
        """The elements at these indices (one axis), stacked: a tree of fresh NumPy arrays."""
        raise TypeError(f"{type(self).__name__} has no batched read")

    @property
    def wide(self) -> bool:
        return self.host

    @property
    def quick(self) -> bool:
        """Whether reading is one vectorised call in memory, not worth a worker."""
        return True

    def produce(self, rows: Rows) -> Taken:
        """The elements of these rows (one axis), as Python has them."""
        indices, here, label = rows.index, reading(), self.label
        with here.at(label, rows):
            try:
                if here.doomed:
                    here.check_doomed()
                return Taken(len(indices), stacked=self.take_host(indices))
            except Exception as error:
                failed = error

        def read(lane: int) -> Any:
            return jax.tree.map(lambda x: x[0], self.take_host(indices[lane : lane + 1]))

        def one(lane: int) -> Any:  # finds out which element it is
            return at_element(label, rows, lane, lambda: read(lane))

        return one_by_one(one, len(indices), failed)

    def sample(self) -> Any:
        return first_element(self)

    def fetch(self, rows: Rows) -> Rows:
        if not self.host:
            return rows
        shape = rows.index.shape
        if isinstance(rows.index, jax.ShapeDtypeStruct):
            return rows.replaced(below=self._promised(shape, self.element_spec()))
        flat = rows if len(shape) == 1 else rows.reshape(-1)
        taken = self.produce(flat)
        if not taken.is_stacked or taken.keep is not None:
            taken = taken.stack(Spec(self.element_spec()), self.label, flat, self.filler)
        values = taken.stacked
        if len(shape) != 1:
            values = jax.tree.map(lambda x: x.reshape((*shape, *x.shape[1:])), values)
        return rows.replaced(below=Fetched(values, self._mask(taken.keep, shape)))

    def read(self, rows: Rows) -> tuple[T_co, Any]:
        if rows.below is None and not self.host:
            return IndexedSource.read(self, rows)
        return super().read(rows)

    def take(self, indices: Any) -> T_co:
        return self.read(self.route(rows_at(indices)))[0]


def one_by_one(one: Any, n: int, failed: Exception) -> Taken:
    """Elements that could not be read together; if each can be read alone, the error is raised,
    unless the policy is to go on."""
    if reading().on_error is raise_it:
        for lane in range(n if n > 1 else 0):
            one(lane)
        raise failed
    return Taken(n, one=one)


def first_element(source: Any, wanted: Any = None, otherwise: Any = None) -> Any:
    """An element, to see what elements look like: the first that can be read.

    With `wanted`, the first of some that it is true of, or `otherwise`.
    """
    first: Exception | None = None
    tries = _TRIES if wanted is None else _MANY_TRIES
    for index in range(min(tries, len(source))):
        try:
            rows = routed_at(source, np.array([index]))
            found = source.produce(rows).element(0)
            if found is not SKIPPED and (wanted is None or wanted(found)):
                return found
        except Exception as error:
            first = first or error
    if wanted is not None:
        return otherwise
    if first is None:
        raise PipelineError(f"{source.label}: all of its first {tries} elements are left out.")
    message = str(first).strip().partition("\n")[0]
    hint = "; for what only iterates, write `IterableSource(lambda: iter(...))`"
    raise PipelineError(
        f"{source.label} failed on its first elements: {type(first).__name__}: {message}"
        f"{hint if isinstance(first, NotImplementedError) else ''}"
    ) from first
