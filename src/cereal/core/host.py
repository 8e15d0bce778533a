"""Sources that Python reads, outside of compiled programs: files, and caches of other sources.

    outside of jit   rows as NumPy  --fetch-->  values as NumPy  --compiled stages-->  batch
    inside of jit    rows  --pure callback: the same fetch-->  values  --stages-->  batch

The program never holds the data, and JAX's caches do not either: what is static in the pytree is
a number, under which the living data is found.
"""

from __future__ import annotations

import itertools
import weakref
from abc import abstractmethod
from typing import Any, TypeVar

import jax
import numpy as np

from .errors import CerealError
from .rows import Rows
from .source import IndexedSource
from .spec import Spec

T_co = TypeVar("T_co", covariant=True)
_numbers = itertools.count()
_living: weakref.WeakValueDictionary[int, HostData] = weakref.WeakValueDictionary()


class HostData:
    """Data on the host, as part of a pytree without leaves.

    A subclass holds the data; copies of a pytree share it. It lives as long as a source that
    has it, however many compiled programs know its number.
    """

    def __init__(self) -> None:
        self.number = next(_numbers)
        _living[self.number] = self

    def digest_of(self) -> Any:
        """What tells this data from other data, in any process; for the names of caches."""
        raise TypeError(f"{type(self).__name__} has no digest")

    def __init_subclass__(cls) -> None:
        jax.tree_util.register_pytree_node(
            cls, lambda data: ((), data.number), lambda number, _: living(number)
        )


def living(number: int) -> Any:
    """The data of this number."""
    try:
        return _living[number]
    except KeyError:
        raise CerealError(
            "the data of a source on the host is gone: all sources and loaders that held it were "
            "deleted while a compiled program still reads it; keep the loader."
        ) from None


class HostIndexed(IndexedSource[T_co]):
    """An indexed source with a batched read in NumPy."""

    @abstractmethod
    def take_host(self, indices: np.ndarray) -> Any:
        """The elements at these indices (one axis), stacked: a tree of fresh NumPy arrays."""

    @abstractmethod
    def reader(self) -> Any:
        """`take_host` as a function that does not hold the data; for compiled programs."""

    @property
    def host(self) -> bool:
        return True

    def fetch(self, rows: Rows) -> Rows:
        if not self.host:
            return rows
        values = self.take_host(rows.index.reshape(-1))
        shape = rows.index.shape
        return rows.replaced(
            below=jax.tree.map(lambda x: x.reshape((*shape, *x.shape[1:])), values)
        )

    def read(self, rows: Rows) -> tuple[T_co, Any]:
        if rows.below is not None:
            return rows.below, rows.valid
        return super().read(rows)

    def take(self, indices: Any) -> T_co:
        shape, spec = indices.shape, Spec(self.element_spec())
        reader = self.reader()

        def call(indices: Any) -> Any:
            flat = np.asarray(indices).reshape(-1)
            values = reader(flat)
            # Under vmap the callback gets all lanes at once.
            return jax.tree.map(lambda x: x.reshape((*indices.shape, *x.shape[1:])), values)

        result = jax.tree.map(
            lambda s: jax.ShapeDtypeStruct((*shape, *s.shape), s.dtype), spec.tree
        )
        return jax.pure_callback(call, result, indices, vmap_method="expand_dims")
