"""Arrays in memory."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import jax
import numpy as np

from ..base.errors import PipelineError
from ..base.fitting import check_fits
from ..base.pytree import pytree_dataclass, set_fields, static_field
from ..base.spec import Spec, spec_of
from ..device.gather import take_rows
from ..device.storage import settle
from ..device.words import WordRows
from ..order.ordering import Order, as_order
from ..order.rows import narrow
from ..pipeline.positional import IndexedSource
from ..pipeline.traits import Traits
from .array_trees import array_leaves, refuse_list, without_tensors
from .arrays_on_host import ArraysOnHost, InMemory
from .index_key import check_index_key, with_index

T = TypeVar("T")


@pytree_dataclass
class ArraySampleSource(IndexedSource[T], Generic[T]):
    """Arrays in memory, all of one length: element i is row i of every array.

        {"image": uint8[60000,28,28], "label": int32[60000]}
           --take [7, 3]-->  {"image": uint8[2,28,28], "label": int32[2]}

    `data` is an array, or a tree of arrays (a dict, a tuple, ...). NumPy arrays are copied to the
    default device once; a `jax.Array` stays where it is. `ordering` is "sequential", "shuffle" (a
    new order in every epoch, which takes no memory) or an array of indices. If elements are dicts,
    `index_key="index"` adds the index of each element to it, under that key.

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
        data = without_tensors(data, owner, "data")
        n = one_length(data, owner)
        check_index_key(data, index_key, owner)
        set_fields(
            self,
            data=jax.tree.map(settle, data),
            ordering=as_order(ordering, n, owner),
            index_key=index_key,
        )

    def __len__(self) -> int:
        return jax.tree.leaves(self.data)[0].shape[0]  # also true of rows kept as words

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
    """The data as a NumPy array; on the CPU nothing is copied."""
    if isinstance(leaf, WordRows):
        return np.asarray(leaf.words).view(leaf.dtype).reshape(leaf.shape)
    if not isinstance(leaf.dtype, np.dtype):
        raise PipelineError(
            "ArraySampleSource: random keys cannot be handed to a host stage; pass "
            "`jax.random.key_data(keys)` instead."
        )
    return np.asarray(leaf)


def leaf_name(path: Any) -> str:
    """The name of a part of the data in error messages."""
    return f"`data{jax.tree_util.keystr(path)}`"


def one_length(data: Any, owner: str, *, files: bool = False, fix: str = "") -> int:
    """The one length that all arrays have; `files=True` also accepts arrays that lie in files.

    `fix` is what else to do if lengths differ.
    """
    lengths: dict[str, int] = {}
    for name, leaf in array_leaves(data, owner, "data"):
        if isinstance(leaf, np.memmap) and not files:
            raise PipelineError(
                f"{owner}: {name} is a file mapped into memory; write `MemmapSource(data)` to read "
                f"it there, or `np.array(...)` around it to load it into memory."
            )
        if leaf.ndim == 0:
            raise PipelineError(
                f"{owner}: {name} has no axis to take elements from; give it one leading axis{fix}."
            )
        if isinstance(leaf, np.ndarray) and not isinstance(leaf, np.memmap):
            check_fits(leaf, f"{owner}: {name}")  # arrays in files are checked when they are read
        lengths[name] = leaf.shape[0]
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise PipelineError(
            f"{owner}: all arrays must have one length, got {listed}; cut them to the same{fix}."
        )
    length = next(iter(lengths.values()))
    if length == 0:
        raise PipelineError(f"{owner}: `data` is empty: its arrays have length 0.")
    return length
