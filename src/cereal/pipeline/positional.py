"""Sources in which every batch is a function of (key, position).

Users subclass `IndexedSource`. `Positional` is its base class: it is also the base of an indexed
source with stages around it.

A batch is made by these methods, in this order:

    _route(rows)     which rows of which data: arithmetic, in NumPy or JAX, for many steps at once
    _fetch(rows)     what Python reads of them, outside of programs
    _read(rows)      the values and their mask, in a program

An indexed source is also a dataset for torch and Grain: `len(source)`, `source[i]`.
"""

from __future__ import annotations

import operator
import weakref
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..base.errors import PipelineError
from ..base.spec import without_weak_types
from ..device.placement import joining
from ..host.host_program import fetched_in_program
from ..order.ordering import Order, as_order
from ..order.permutation import MAX_HOST, MAX_TRACED
from ..order.position import Remainder
from ..order.rows import Plan, Rows, narrow
from ..reading.element_batch import ElementBatch
from ..reading.readers.reader import Reader
from .execute import (
    elements_at,
    many_steps,
    refuse_as_dataset,
    routed_rows,
    run,
    run_many,
)
from .read_step import read_step
from .source import Mask, Source
from .state import Fingerprint, PipelineState, check_state, start_state
from .traits import Traits

T_co = TypeVar("T_co", covariant=True)


class Positional(Source[T_co]):
    """A source in which every step is a pure function of (key, position)."""

    @cached_property
    @abstractmethod
    def _order(self) -> Order:
        """In which order the data is visited."""

    def _route(self, rows: Rows) -> Rows:
        """The rows with all that the sources below need; computed by arithmetic, before reading.

        For rows of any number of axes, in NumPy or JAX. `_read` calls it if nobody did before.
        """
        return rows

    def _fetch(self, rows: Rows) -> Rows:
        """The routed rows (in NumPy) with what Python reads for them; outside of programs."""
        return rows

    @abstractmethod
    def _read(self, rows: Rows) -> tuple[T_co, Any]:
        """The values of these rows, and their mask (None: all real)."""

    def _next_rows(self, words: Any) -> tuple[Rows, Any]:
        """The rows of the next step, fetched, and the state's words after it; outside of programs.

        For sources that Python reads.
        """
        rows, words = routed_rows(self, words, 1, lanes=self._lanes_here)
        return self._fetch(rows[0]), words

    @cached_property
    def _share(self) -> Any:
        """What this process reads of batches that are spread over a mesh; None: all."""
        return None

    @property
    def _lanes_here(self) -> Any:
        """The numbers of the lanes that this process reads; None: all."""
        return None if self._share is None else self._share.lanes

    @property
    def _kept(self) -> Any:
        """For each array that Python reads, the parts of its inner axes; None: all of them."""
        return None

    def _untouched(self, rows: Rows) -> Any:
        """The fetched batch, if no compiled stage changes it; otherwise None."""
        del rows
        return None

    @property
    def _iterators(self) -> Any:
        """The iterators below, where elements come from something that only iterates."""
        return None

    @property
    def _service_number(self) -> int | None:
        """The number (`HostData`) of the service that answers callbacks of programs; or None."""
        return None

    @cached_property
    def _plan(self) -> Plan:
        """Which elements each step of this pipeline reads."""
        traits = self.traits
        lanes = traits.lanes if traits.read_lanes is None else traits.read_lanes
        return Plan(self._order, traits.length, lanes, traits.remainder, traits.part)

    @cached_property
    def _fingerprint(self) -> Fingerprint:
        """What must be the same in a state of this pipeline."""
        traits = self.traits
        length = MAX_TRACED if traits.length == MAX_HOST else traits.length  # as 0.1.0 wrote it
        order = ("{} of {}", traits.order, traits.path) if traits.path else traits.order
        return Fingerprint(length, order, traits.random_stages)

    @property
    def steps_per_epoch(self) -> int:  # type: ignore[override]
        """The number of steps in an epoch that starts at its beginning."""
        return self._plan.steps

    def init_state(self, key: Any) -> PipelineState:
        """The state at the first element of epoch 0, for a JAX key or an integer."""
        bookmark = None if self._iterators is None else self._iterators.no_bookmark
        placement = self.traits.placement
        return joining(start_state(key, self._fingerprint, bookmark), placement)

    def next(self, state: PipelineState) -> tuple[T_co, Mask, PipelineState]:
        """The next step's values, their mask, and the state after it; always compiled."""
        check_state(state, self._fingerprint)
        return run(self, state)

    def next_many(self, state: PipelineState, n: int) -> tuple[T_co, Mask, PipelineState]:
        """The next n steps' values, stacked; always compiled."""
        check_state(state, self._fingerprint)
        return run_many(self, state, n)

    def _step(self, state: PipelineState) -> tuple[T_co, Mask, PipelineState]:
        check_state(state, self._fingerprint)  # inside of other states, nobody did before
        return step_ending(self, state, None)

    def _step_many(self, state: PipelineState, n: int) -> tuple[T_co, Mask, PipelineState]:
        """n steps; read at once if a step is one element, otherwise one after another."""
        check_state(state, self._fingerprint)
        traits = self.traits
        if traits.lanes or traits.host or traits.callbacks:
            return many_steps(self, state, n)
        rows, words = self._plan.rows_for(state.words, n)
        values, mask = self._read(self._route(rows))
        return values, jnp.ones(n, jnp.bool_) if mask is None else mask, state.replaced(words)


def step_ending(
    source: Positional[T_co], state: PipelineState, remainder: Remainder | None
) -> tuple[T_co, Mask, PipelineState]:
    """One step, as it is traced; `remainder` replaces the pipeline's rule for an epoch's end."""
    rows, words = source._plan.ending(remainder).rows_for(state.words, 1)
    rows = source._route(rows)[0]
    if source.traits.host:
        position = None if remainder else (state.words, state.bookmark)
        rows = fetched_in_program(source, rows, position)
    values, mask = read_step(source, rows)
    return values, mask, state.replaced(words)


class IndexedSource(Positional[T_co]):
    """Data with a length and a batched read by index. A subclass needs only these methods.

    `take` gets the indices of a whole batch, because one vectorised read of 128 rows costs as much
    as one row in a Python loop. A source with a field `ordering` can shuffle.

    `source[3]` is element 3 of the data, in NumPy. So every indexed source is a dataset of torch
    and of Grain, whose loaders choose the order: `torch.utils.data.DataLoader(source)`,
    `grain.MapDataset.source(source)`.

    >>> import cereal, jax, jax.numpy as jnp
    >>> @cereal.pytree_dataclass
    ... class Squares(cereal.IndexedSource[jax.Array]):
    ...     n: int = cereal.static_field()
    ...     ordering: str = cereal.static_field(default="sequential")
    ...     def __len__(self):
    ...         return self.n
    ...     def element_spec(self):
    ...         return jax.ShapeDtypeStruct((), jnp.int32)
    ...     def take(self, indices):
    ...         return indices ** 2
    >>> for batch, mask in cereal.DataLoader([Squares(6), cereal.BatchTransform(3)]):
    ...     print(batch)
    [0 1 4]
    [ 9 16 25]
    >>> int(Squares(6)[3])
    9
    """

    ordering: Any = "sequential"
    __iter__: Any = None  # elements come in an order, from a state: a loop is over a loader

    @abstractmethod
    def __len__(self) -> int:
        """The number of elements."""

    @abstractmethod
    def take(self, indices: jax.Array) -> T_co:
        """The elements at these indices (one axis of int32), stacked."""

    def __getitem__(self, index: Any) -> Any:
        """Element `index` of the data, as Python has it: arrays of NumPy, numbers, any objects.

        A negative index counts from the end. Whatever the order of the source, `source[0]` is the
        first element of the data.
        """
        try:
            at = operator.index(index)
        except TypeError:
            raise TypeError(
                f"`source[i]` takes an integer, got {type(index).__name__}; for a part of a "
                f"source write `SliceSource(source, range(0, 10))`, and to read several elements "
                f"`source.__getitems__([0, 7])`."
            ) from None
        return self.__getitems__([at])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The elements at these indices, read at once; torch's loader calls it for a batch."""
        refuse_as_dataset(self)
        n, chosen = len(self), np.asarray(indices, np.int64)
        wrong = chosen[(chosen < -n) | (chosen >= n)]
        if wrong.size:
            raise IndexError(f"{self._label}: index {wrong[0]} is out of range, of {n} elements.")
        return elements_at(self, np.where(chosen < 0, chosen + n, chosen)) if chosen.size else []

    @cached_property
    def _by_numpy(self) -> Any:
        """The same source, read by NumPy where its data is in memory."""
        return read_by_numpy(self)

    @cached_property
    def _order(self) -> Order:
        return as_order(self.ordering, len(self), type(self).__name__)

    def _describe(self) -> Traits:
        return self._describe_as()

    def _describe_as(self, *, wide: bool = False, **known: Any) -> Traits:
        """The traits of an indexed source: those that are passed, and those that its order gives.

        `wide`: it can read positions of more than 31 bits, which NumPy computes.
        """
        order = self._order
        random = order.random or known.get("keyed", False) or known.get("varies", False)
        known = {"length": _length(self, order, wide), "order": order.identity, **known}
        return Traits(random=random, **known)

    @property
    def _roots(self) -> frozenset[int]:
        """The `id`s of the data that it reads. Two sources with a common one may share elements."""
        return frozenset([id(self), *(id(leaf) for leaf in jax.tree.leaves(self))])

    @property
    def _members(self) -> Sequence[IndexedSource[Any]]:
        """The sources that it reads, if it is made of others."""
        return ()

    def _narrow(self, parts: Any) -> Any:
        """A source whose `_fetch` reads only these indices of the inner axes of each array, from
        the same routed rows; None if it can only read whole elements."""
        del parts
        return None

    def _as_host(self) -> IndexedSource[T_co]:
        """The same data for host stages: read by NumPy."""
        return self

    @cached_property
    def _reader(self) -> Reader:
        """What reads its elements in Python, also in another process."""
        if type(self)._produce is IndexedSource._produce:
            raise TypeError(f"{self._label} is read by compiled code")
        return SourceReader(self)

    def _produce(self, rows: Rows) -> ElementBatch:
        """The elements of routed rows (in NumPy, one axis)."""
        return self._reader.read(rows)

    def _sample(self) -> Any:
        """One element, as Python reads it; an example for the stages above."""
        raise TypeError(f"{self._label} is read by compiled code")

    def _filler(self) -> Any:
        """The element to use where one was left out of a batch. Always the same, valid input."""
        return self._sample()

    def _read(self, rows: Rows) -> tuple[T_co, Any]:
        """Reads rows of one axis, or a single row."""
        if rows.index.ndim == 1:
            return without_weak_types(self.take(narrow(rows.index))), rows.valid
        values, mask = self._read(rows.reshape(1))
        return jax.tree.map(lambda x: x[0], values), None if mask is None else mask[0]


def read_by_numpy(source: Any) -> Any:
    """The source as host stages read it: data on a device is copied to the host, and is not a leaf
    of the pytree any more."""
    return jax.tree.map(
        lambda x: x._as_host() if isinstance(x, IndexedSource) else x, source, is_leaf=_in_memory
    )


def _in_memory(node: Any) -> bool:
    if not isinstance(node, IndexedSource) or node._members:
        return False
    return node.traits.by_python and not node.traits.host


class SourceReader(Reader):
    """Reads a source that has no reader of its own; it refers to the source, and so needs JAX."""

    def __init__(self, source: Any, *, owned: bool = False) -> None:
        self.label = source._label
        self._source = (lambda: source) if owned else weakref.ref(source)  # the source holds it

    def read(self, rows: Rows) -> ElementBatch:
        source: Any = self._source()
        return source._produce(rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(SourceReader, owned=True), (self._source(),)


def _length(source: IndexedSource[Any], order: Order, wide: bool) -> int:
    """The number of elements in an epoch, or an error if there are none or too many."""
    n, owner = len(source), type(source).__name__
    if n < 1:
        raise PipelineError(f"{owner}: it is empty, its `len` is {n}.")
    most = MAX_HOST if wide and order.wide else MAX_TRACED
    if n > most and wide and not order.wide:
        raise PipelineError(
            f"{owner}: {n} elements are more than the order {order.name} can count ({most}); pass "
            f'`ordering="shuffle"` or `ordering="sequential"`.'
        )
    if n > most:
        what = "can be counted" if wide else "compiled code can count"
        raise PipelineError(f"{owner}: {n} elements are more than {what} ({most}).")
    length = order.length(n)
    if length > most:
        raise PipelineError(
            f"{owner}: its order {order.name} has {length} elements in an epoch, which is more "
            f"than compiled code can count ({MAX_TRACED})."
        )
    return length
