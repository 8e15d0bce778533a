"""Sources made of other sources: a store of the data, a route to its rows, and an order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeVar

import jax
import numpy as np

from ...base.errors import PipelineError
from ...base.pytree import set_copy, set_fields
from ...base.spec import Spec
from ...order.ordering import Order, Sequential, Shuffle, as_order
from ...order.permutation import MAX_TRACED
from ...order.rows import Rows
from ...pipeline.positional import IndexedSource, Positional
from ...pipeline.source import Source
from ...pipeline.traits import Traits
from ...reading.readers.combined import RoutedReader
from ...routes.branches import part_salt
from ...routes.route import Route, Run
from ..dataset import is_dataset
from .over_members import OverMembers
from .store import Store, make_store

T_co = TypeVar("T_co", covariant=True)
_DRAWN = 4


class Routed(OverMembers[T_co]):
    """A source whose elements are rows of a store, found by a route.

    index  --path-->  row of the store  --store-->  element
    """

    store: Store
    path: Route
    ordering: Any
    parts: str  # for the drawing

    def __len__(self) -> int:
        return self.path.n

    def element_spec(self) -> Any:
        return self.store.element_spec()

    @property
    def _label(self) -> str:
        return f"{type(self).__name__}({self.parts}, ordering={self._order.name})"

    @property
    def _members(self) -> tuple[Any, ...]:
        return (self.store,)

    def _describe(self) -> Traits:
        merged, route = self._merged(), self.path.traits
        merged["masks"] |= route.masks
        merged["masks_on_host"] |= route.masks
        merged["keyed"] |= route.random
        merged["fixed"] &= route.fixed
        merged["once"] &= self.path.spans is not None
        return self._describe_as(path=self.path.identity, **merged)

    def _route(self, rows: Rows) -> Rows:
        return rows.replaced(below=self.store._route(self.path.locate(rows)).without_key)

    def _fetch(self, rows: Rows) -> Rows:
        below = self.store._fetch(rows.below.replaced(key=rows.key))
        return rows.replaced(below=below.without_key)

    @cached_property
    def _reader(self) -> RoutedReader:
        return RoutedReader(self.store._reader, self.path.traits.masks)

    def _narrow(self, parts: Any) -> Any:
        store = self.store._narrow(parts)
        return None if store is None else set_copy(self, store=store)

    def _untouched(self, rows: Rows) -> Any:
        return None if self.path.traits.masks else self.store._untouched(rows.below)

    def _read(self, rows: Rows) -> tuple[T_co, Any]:
        rows = self._route(rows) if rows.below is None else rows
        return self.store._read(rows.below.replaced(key=rows.key))


def set_routed(source: Any, store: Store, path: Route, ordering: Order, parts: str) -> None:
    """Sets the fields of a routed source; its constructor calls this."""
    if path.n > MAX_TRACED:
        raise PipelineError(
            f"{type(source).__name__}: it would have {path.n} elements, more than compiled code "
            f"can count ({MAX_TRACED})."
        )
    set_fields(source, store=store, path=path, ordering=ordering, parts=parts)


def adopt(source: Any, owner: str) -> tuple[Store, Route]:
    """The store and the route of one source."""
    check_part(source, owner, "`source`")
    if isinstance(source, Routed):
        return source.store, source.path
    store, _ = make_store([source])
    return store, Run(0, len(source))


def combine(sources: Sequence[Any], owner: str) -> tuple[Store, list[Route]]:
    """One store for several sources, and the route of each in it."""
    if isinstance(sources, Source) or not isinstance(sources, Sequence):
        raise PipelineError(
            f"{owner}: `sources` must be a list of sources, got {type(sources).__name__}; write "
            f"`{owner}([first, second])`."
        )
    if not sources:
        raise PipelineError(f"{owner}: the list of sources is empty; give it at least one.")
    for number, source in enumerate(sources):
        check_part(source, owner, f"source {number}")
    _check_specs(sources, owner)
    flat = [_flat(source) for source in sources]
    store, begins = make_store([base for bases, _, _ in flat for base in bases])
    routes, taken = [], 0
    for number, (bases, starts, path) in enumerate(flat):
        here, taken = begins[taken : taken + len(bases)], taken + len(bases)

        def move(row: int, starts: Any = starts, here: Any = here) -> int:
            base = int(np.searchsorted(np.asarray(starts), row, side="right")) - 1
            return here[base] + row - starts[base]

        routes.append(path.moved(move, part_salt(0, number)))
    return store, routes


def _flat(source: Any) -> tuple[tuple[Any, ...], tuple[int, ...], Route]:
    """The bases of a source, the rows at which they begin in its store, and its route."""
    if not isinstance(source, Routed):
        return (source,), (0,), Run(0, len(source))
    return source.store.bases, source.store.starts, source.path


def check_part(source: Any, owner: str, what: str) -> None:
    """Refuses a source that cannot be combined: not indexed, too long, or with a special order."""
    if isinstance(source, type):
        raise PipelineError(
            f"{owner}: {what} is the class {source.__name__}; write `{source.__name__}(...)`."
        )
    if not isinstance(source, Source):
        raise PipelineError(
            f"{owner}: {what} must be a source, got {type(source).__name__}; "
            f"{_instead(source, owner, what)}."
        )
    if not isinstance(source, IndexedSource):
        batched = isinstance(source, Positional)
        why = "has batches" if batched else "is a stream, which has no index"
        fix = "combine the sources first and batch them together" if batched else "use its steps"
        raise PipelineError(f"{owner}: {what}, {source._label}, {why}; {fix}.")
    if source._iterators is not None:
        raise PipelineError(
            f"{owner}: {what}, {source._label}, only iterates and cannot be read by index; combine "
            f"iterators before, in `make_iterator`, or write the data to files first, by `convert`."
        )
    _ = source.traits  # raises if the source is empty or too long
    if len(source) > MAX_TRACED:
        raise PipelineError(
            f"{owner}: {what}, {source._label}, has {len(source)} elements, and a source of more "
            f"than {MAX_TRACED} cannot be combined; choose elements in the function that reads "
            f"them."
        )
    if source.traits.callbacks:
        raise PipelineError(
            f"{owner}: {what} has a HostCallbackTransform, which runs once per batch; put it after "
            f"the BatchTransform."
        )
    if not source._order.plain:
        raise PipelineError(
            f"{owner}: {what} has the ordering {source._order.name}, which chooses among its "
            f"elements, and a combined source has an order of its own; build the source without "
            f"it, choose elements with `SliceSource(source, indices)`, and give the order to what "
            f"is outermost."
        )


def _instead(value: Any, owner: str, what: str) -> str:
    """What to write if the value is data and not a source."""
    if hasattr(value, "next_batch") and hasattr(value, "scan_epoch"):
        return "a loader is the end of a pipeline; give the source, and build loaders of the result"
    leaves = [] if isinstance(value, list) else jax.tree.leaves(value)
    arrays = bool(leaves) and all(isinstance(leaf, np.ndarray | jax.Array) for leaf in leaves)
    kind, made = "arrays", "ArraySampleSource(data)"
    if is_dataset(value) and not arrays:
        kind, made = "a dataset", 'DatasetSource(dataset, ordering="shuffle")'
    call = f"{owner}({made}, ...)" if what == "`source`" else made
    return f"for {kind} write `{call}`"


def _check_specs(sources: Sequence[Any], owner: str) -> None:
    first = Spec(sources[0].element_spec())
    for number, source in enumerate(sources):
        spec = Spec(source.element_spec())
        if spec != first:
            raise PipelineError(
                f"{owner}: the elements of source {number} are {spec}, those of source 0 are "
                f"{first}; make them alike with a MapTransform or a RenameTransform first."
            )


def inherited(ordering: Any, sources: Sequence[Any], n: int, owner: str) -> Order:
    """The order that `ordering=` asks for; by default shuffled if one of the sources is."""
    if ordering is not None:
        return as_order(ordering, n, owner)
    orders = [source._order for source in sources]
    if len(orders) == 1:
        return orders[0].over(n, owner)
    return Shuffle() if any(order.random for order in orders) else Sequential()


def count_of(source: Any) -> str:
    """A source in the drawing of another: its name and its length."""
    return f"{type(source).__name__}[{len(source)}]"


def counts_of(sources: Sequence[Any]) -> str:
    """Sources in the drawing of another: the first few, and how many more."""
    more = [f"{len(sources) - _DRAWN} more"] if len(sources) > _DRAWN else []
    return ", ".join([*map(count_of, sources[:_DRAWN]), *more])
