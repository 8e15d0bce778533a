"""The data of combined sources: one store for all parts.

    arrays in memory       one array, in which the parts follow each other: one gather reads a batch
    one stage around all   the stage is applied once, over a store of the sources inside it
    data on the host       each part reads its own rows of the batch
    anything else          each part reads the whole batch, and each row is taken from its part

Parts that are slices of one array share that array, and nothing is copied. Different arrays are
copied once, into one array. Parts of the last kind (a user's own source, or a part with its own
transform) cost one read per part.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...base.capture import any_traced, is_concrete
from ...base.errors import PipelineError
from ...base.pytree import pytree_dataclass, set_copy, set_fields, static_field
from ...base.spec import Spec
from ...device.masks import with_axes
from ...order.ordering import Sequential
from ...order.permutation import MAX_TRACED
from ...order.rows import Rows
from ...pipeline.host_source import HostIndexed
from ...pipeline.pipeline import IndexedPipeline, make_pipeline, parts_of
from ...pipeline.placed import CompiledStage
from ...pipeline.positional import IndexedSource, Positional
from ...pipeline.traits import Traits
from ...reading.element_batch import ElementBatch
from ...reading.readers.combined import StoreReader
from ...reading.readers.reader import Reader
from ..array import ArraySampleSource
from .over_members import OverMembers


@pytree_dataclass
class Store(OverMembers[Any]):
    """Sources one after another: an index into the store is a row of one of them."""

    bases: tuple[Any, ...]
    starts: tuple[int, ...] = static_field()
    spec: Spec = static_field()

    def __len__(self) -> int:
        return self.starts[-1] + len(self.bases[-1])

    def element_spec(self) -> Any:
        return self.spec.tree

    @property
    def _members(self) -> tuple[Any, ...]:
        return self.bases

    def _describe(self) -> Traits:
        merged, roots = self._merged(), [base._roots for base in self.bases]
        merged["light"] &= len(self.bases) == 1
        # `once`: no element of the data is in the store twice, not even in two forms.
        merged["once"] &= sum(map(len, roots)) == len(frozenset().union(*roots))
        return self._describe_as(**merged)

    def _route(self, rows: Rows) -> Rows:
        below = [base._route(each).without_key for base, each in self._each(rows)]
        return rows.replaced(below=tuple(below))

    def _fetch(self, rows: Rows) -> Rows:
        below = [base._fetch(each).without_key for base, each in self._below(rows)]
        return rows.replaced(below=tuple(below))

    def _read(self, rows: Rows) -> tuple[Any, Any]:
        """The values of these rows; each base has its own random key."""
        rows = self._route(rows) if rows.below is None else rows
        found: Any = None
        for number, (base, each) in enumerate(self._below(rows)):
            values, mask = base._read(each)
            if number == 0:
                found = (values, mask)
                continue
            here = rows.index >= np.int32(self.starts[number])
            found = _select(here, (values, mask), found)
        return found

    @cached_property
    def _reader(self) -> StoreReader:
        readers = tuple(base._reader for base in self.bases)
        return StoreReader(readers, self.starts, self.traits.random_stages > 0)

    def _narrow(self, parts: Any) -> Any:
        base = self.bases[0]._narrow(parts) if len(self.bases) == 1 else None
        return None if base is None else set_copy(self, bases=(base,))

    def _untouched(self, rows: Rows) -> Any:
        return self.bases[0]._untouched(rows.below[0]) if len(self.bases) == 1 else None

    def _below(self, rows: Rows) -> list[tuple[Any, Rows]]:
        """Each base with its rows, already routed."""
        one = len(self.bases) == 1
        pairs = enumerate(zip(self.bases, rows.below, strict=True))
        return [
            (base, each.replaced(key=rows.key if one else self._member_key(rows.key, number)))
            for number, (base, each) in pairs
        ]

    def _each(self, rows: Rows) -> list[tuple[Any, Rows]]:
        """Each base with rows for all lanes; in a lane of another base, a row that is not used."""
        if len(self.bases) == 1:
            return [(self.bases[0], rows)]
        xp = np if isinstance(rows.index, np.ndarray) else jnp
        pairs = []
        for base, start in zip(self.bases, self.starts, strict=True):
            index = rows.index - rows.index.dtype.type(start)
            inside = (index >= 0) & (index < len(base))
            pairs.append((base, rows.replaced(index=xp.where(inside, index, 0 * index))))
        return pairs


def _select(here: Any, there: tuple[Any, Any], other: tuple[Any, Any]) -> tuple[Any, Any]:
    def choose(a: Any, b: Any) -> Any:
        return jnp.where(here.reshape(here.shape + (1,) * (a.ndim - here.ndim)), a, b)

    values = jax.tree.map(choose, there[0], other[0])
    if there[1] is None and other[1] is None:
        return values, None
    full = jnp.ones(here.shape, jnp.bool_)
    a, b = (full if mask is None else mask for mask in (there[1], other[1]))
    a, b = with_axes(a, b.ndim), with_axes(b, a.ndim)  # one may be finer
    return values, choose(a, b)


@pytree_dataclass
class HostBases(OverMembers[Any], HostIndexed[Any]):
    """Sources on the host, one after another: each reads its own rows of a batch."""

    bases: tuple[Any, ...]
    starts: tuple[int, ...] = static_field()

    def __len__(self) -> int:
        return self.starts[-1] + len(self.bases[-1])

    @property
    def _members(self) -> tuple[Any, ...]:
        return self.bases

    def _describe(self) -> Traits:
        return self._describe_as(**{**self._merged(), "host": True, "by_python": True})

    def element_spec(self) -> Any:
        return self.bases[0].element_spec()

    @cached_property
    def _reader(self) -> StoreReader:
        readers = tuple(map(_routing_reader, self.bases))
        lengths = tuple(map(len, self.bases))
        return StoreReader(readers, self.starts, self.traits.random_stages > 0, lengths)


def _routing_reader(base: Any) -> Reader:
    """What reads a source whose rows have not been routed."""
    routed = type(parts_of(base)[0])._route is not Positional._route
    return _RoutingReader(base) if routed else base._reader


class _RoutingReader(Reader):
    """Routes rows, and reads them; it holds the source, and so needs JAX."""

    def __init__(self, source: Any) -> None:
        self.source, self.label = source, source._label

    @property
    def can_move(self) -> bool:
        return self.source._reader.can_move

    @property
    def labels(self) -> tuple[str, ...]:
        return self.source._reader.labels

    def read(self, rows: Rows) -> ElementBatch:
        return self.source._reader.read(self._routed(rows))

    def find(self, rows: Rows, lane: int, label: str) -> tuple[Rows, int] | None:
        return self.source._reader.find(self._routed(rows), lane, label)

    def _routed(self, rows: Rows) -> Rows:
        return self.source._route(rows).replaced(key=rows.key)


def make_store(bases: Sequence[IndexedSource[Any]]) -> tuple[Store, list[int]]:
    """A store that holds each of these sources once, and the row at which each begins."""
    kept: list[Any] = []
    places: dict[Any, int] = {}
    for base in bases:
        known = _identity(base)
        if known not in places:
            places[known] = len(kept)
            kept.append(base)
    *starts, total = [0, *itertools.accumulate(len(base) for base in kept)]
    if total > MAX_TRACED:
        raise PipelineError(
            f"the sources have {total} elements together, more than compiled code can count "
            f"({MAX_TRACED}); cut them into fewer: windows with a larger stride, say."
        )
    _check_devices(kept)
    spec = Spec(kept[0].element_spec())
    begins = [starts[places[_identity(base)]] for base in bases]
    if len(kept) == 1:
        return Store((kept[0],), (0,), spec), begins
    if (merged := _merged(kept)) is not None:
        return Store((merged,), (0,), spec), begins
    if (staged := _under_one_stage(kept)) is not None:
        source, places_below = staged
        return Store((source,), (0,), spec), [places_below[places[_identity(b)]] for b in bases]
    if all(base.traits.host and base.traits.by_python for base in kept):
        return Store((HostBases(tuple(kept), tuple(starts)),), (0,), spec), begins
    return Store(tuple(kept), tuple(starts), spec), begins


def _check_devices(bases: Sequence[Any]) -> None:
    """Refuses data on different devices: one program cannot read it."""
    found: dict[Any, int] = {}
    for number, base in enumerate(bases):
        for leaf in jax.tree.leaves(base):
            if is_concrete(leaf) and leaf.committed:
                found.setdefault(frozenset(leaf.devices()), number)
    if len(found) > 1:
        places = ", ".join(str(sorted(map(str, devices))) for devices in found)
        raise PipelineError(
            f"the sources' data was put onto different devices, {places}, and one program cannot "
            f"read all of it; put it onto the same with `jax.device_put`."
        )


def _under_one_stage(bases: list[Any]) -> tuple[IndexedSource[Any], list[int]] | None:
    """If all sources end with the same stage: that stage over one store, and where each begins."""
    if not all(isinstance(base, IndexedPipeline) for base in bases):
        return None
    parts = [parts_of(base) for base in bases]
    if any(not isinstance(stages[-1], CompiledStage) for _, stages in parts):
        return None
    if any(base.traits.random_stages for base in bases):
        return None
    flat = [jax.tree.flatten(stages[-1]) for _, stages in parts]
    first = ([id(leaf) for leaf in flat[0][0]], flat[0][1])
    if any(([id(leaf) for leaf in leaves], structure) != first for leaves, structure in flat):
        return None
    before = [make_pipeline(root, stages[:-1]) for root, stages in parts]
    if any(not each.traits.fixed or each.traits.keyed for each in before):
        return None
    if len({Spec(each.element_spec()) for each in before}) > 1:
        return None
    below, begins = make_store(before)
    return make_pipeline(below, parts[0][1][-1:]), begins


def _identity(base: Any) -> Any:
    """A value that is equal for sources that read the same rows of the same arrays.

    A source with random stages equals only itself: two of them must be augmented differently.
    """
    if base.traits.random_stages:
        return id(base)
    if isinstance(base, ArraySampleSource):
        leaves, structure = jax.tree.flatten(base.data)
        return (tuple(id(leaf) for leaf in leaves), structure, base.index_key)
    return id(base)


def _merged(bases: list[Any]) -> ArraySampleSource[Any] | None:
    """One source over the joined arrays of all; None if they cannot be joined."""
    if not all(isinstance(base, ArraySampleSource) and not base.index_key for base in bases):
        return None
    flat = [jax.tree.flatten(base.data) for base in bases]
    if any(structure != flat[0][1] for _, structure in flat):
        return None
    columns = list(zip(*(leaves for leaves, _ in flat), strict=True))
    if not all(_can_be_one(column) for column in columns):
        return None
    merged = object.__new__(ArraySampleSource)
    data = jax.tree.unflatten(flat[0][1], [_as_one(column) for column in columns])
    set_fields(merged, data=data, ordering=Sequential(), index_key=None)
    return merged


def _can_be_one(column: Sequence[Any]) -> bool:
    if any_traced(list(column)):
        return False
    first = column[0]
    return all(
        len(leaf.devices()) == 1
        and leaf.devices() == first.devices()
        and leaf.sharding.memory_kind == first.sharding.memory_kind
        and leaf.dtype == first.dtype
        and leaf.shape[1:] == first.shape[1:]
        for leaf in column
    )


def _as_one(column: Sequence[Any]) -> Any:
    first = column[0]
    if jnp.issubdtype(first.dtype, jax.dtypes.extended):  # random keys
        return jnp.concatenate(column)
    # Joined on the host: a program that joins a thousand arrays takes seconds to compile.
    whole = np.concatenate([np.asarray(leaf) for leaf in column])
    if any(leaf.committed for leaf in column) or first.sharding.memory_kind == "pinned_host":
        return jax.device_put(whole, first.sharding)
    return jnp.asarray(whole)
