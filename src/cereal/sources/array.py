"""Arrays in memory."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import jax
import numpy as np

from ..core.array_trees import array_leaves, refuse_list
from ..core.errors import PipelineError
from ..core.fitting import check_fits
from ..core.ordering import Order, as_order
from ..core.positional import IndexedSource
from ..core.pytree import pytree_dataclass, set_fields, static_field
from ..core.rows import narrow
from ..core.spec import Spec, spec_of
from ..core.traits import Traits
from ..device.gather import take_rows
from ..device.storage import settle
from ..device.words import WordRows
from .arrays_on_host import ArraysOnHost, InMemory
from .index_key import check_index_key, with_index

T = TypeVar("T")


@pytree_dataclass
class ArraySampleSource(IndexedSource[T], Generic[T]):
    """A tree of arrays with one leading length: element i is row i of each.

        {"image": uint8[60000,28,28], "label": int32[60000]}
           --take [7, 3]-->  {"image": uint8[2,28,28], "label": int32[2]}

    `ordering` is "sequential", "shuffle" (a new order in every epoch, computed, not stored) or an
    array of indices. NumPy data goes to the default device once; a `jax.Array` stays where it
    is. `index_key="index"` adds each element's index to elements that are dicts.

    >>> import cereal, numpy as np
    >>> source = cereal.ArraySampleSource({"x": np.arange(6.0)}, ordering="sequential")
    >>> element, mask, state = source.next(source.init_state(0))
    >>> float(element["x"]), bool(mask)
    (0.0, True)
    """

    data: T
    ordering: Order
    index_key: str | None = static_field(default=None)

    def __init__(self, data: T, ordering: Any = "shuffle", *, index_key: str | None = None) -> None:
        owner = "ArraySampleSource"
        refuse_list(data, owner)
        n = one_length(data, owner)
        check_index_key(data, index_key, owner)
        set_fields(
            self,
            data=jax.tree.map(settle, data),
            ordering=as_order(ordering, n, owner),
            index_key=index_key,
        )

    def __len__(self) -> int:
        return jax.tree.leaves(self.data)[0].shape[0]  # words have as many rows

    def _describe(self) -> Traits:
        return self._describe_as(light=True, by_python=True)

    @property
    def _label(self) -> str:
        carried = f", index_key={self.index_key!r}" if self.index_key else ""
        return f"ArraySampleSource(ordering={self._order.name}{carried})"

    def element_spec(self) -> Any:
        index = jax.ShapeDtypeStruct((), np.int32)
        specs = jax.tree.map(lambda leaf: spec_of(leaf, drop_axes=1), self.data, is_leaf=_is_rows)
        return with_index(specs, index, self.index_key)

    def _as_host(self) -> ArraysOnHost:
        data = jax.tree.map(_as_numpy, self.data, is_leaf=_is_rows)
        spec = Spec(self.element_spec())
        return ArraysOnHost(InMemory(data), len(self), spec, self.index_key, self._order)

    def take(self, indices: jax.Array) -> T:
        values = jax.tree.map(lambda leaf: take_rows(leaf, indices), self.data, is_leaf=_is_rows)
        return with_index(values, narrow(indices), self.index_key)


def _is_rows(leaf: Any) -> bool:
    return isinstance(leaf, WordRows)


def _as_numpy(leaf: Any) -> np.ndarray:
    """As NumPy sees it: on the CPU without a copy."""
    if isinstance(leaf, WordRows):
        return np.asarray(leaf.words).view(leaf.dtype).reshape(leaf.shape)
    if not isinstance(leaf.dtype, np.dtype):
        raise PipelineError(
            "ArraySampleSource: random keys cannot be handed to a host stage; pass "
            "`jax.random.key_data(keys)` instead."
        )
    return np.asarray(leaf)


def leaf_name(path: Any) -> str:
    """How errors call a part of the data."""
    return f"`data{jax.tree_util.keystr(path)}`"


def one_length(data: Any, owner: str, *, files: bool = False) -> int:
    """The common length of all leaves; of arrays in `files` too, where they can be read there."""
    lengths: dict[str, int] = {}
    for name, leaf in array_leaves(data, owner, "data"):
        if isinstance(leaf, np.memmap) and not files:
            raise PipelineError(
                f"{owner}: {name} is a file mapped into memory; write `MemmapSource(data)` to read "
                f"it there, or `np.array(...)` around it to load it into memory."
            )
        if leaf.ndim == 0:
            raise PipelineError(
                f"{owner}: {name} has no axis to take elements from; give it one leading axis."
            )
        if isinstance(leaf, np.ndarray) and not isinstance(leaf, np.memmap):
            check_fits(leaf, f"{owner}: {name}")  # files are looked at as they are read
        lengths[name] = leaf.shape[0]
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise PipelineError(
            f"{owner}: all arrays must have one length, got {listed}; cut them to the same."
        )
    length = next(iter(lengths.values()))
    if length == 0:
        raise PipelineError(f"{owner}: `data` is empty: its arrays have length 0.")
    return length
