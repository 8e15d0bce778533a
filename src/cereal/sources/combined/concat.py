"""Sources one after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from ...base.pytree import pytree_dataclass, static_field
from ...order.ordering import Order
from ...pipeline.source import Source
from ...routes.branches import join
from ...routes.route import Route
from .routed import Routed, combine, counts_of, inherited, set_routed
from .store import Store

T = TypeVar("T")


@pytree_dataclass
class ConcatSource(Routed[T], Generic[T]):
    """The elements of several sources, one source after another.

        [a0 a1 a2], [b0 b1]  ->  a0 a1 a2 b0 b1

    All elements must have the same structure, shapes and dtypes. `ordering` is the order of the
    combined source; by default it is shuffled if one of the sources is shuffled.

    >>> import cereal
    >>> both = cereal.ConcatSource([cereal.RangeSource(3), cereal.RangeSource(10, 12)])
    >>> [int(x) for x, mask in cereal.DataLoader(both)]
    [0, 1, 2, 10, 11]
    """

    store: Store
    path: Route
    ordering: Order
    parts: str = static_field(default="")

    def __init__(self, sources: Sequence[Source[T]], *, ordering: Any = None) -> None:
        owner = "ConcatSource"
        store, routes = combine(sources, owner)
        path = join(routes, store.starts)
        order = inherited(ordering, sources, path.n, owner)
        set_routed(self, store, path, order, counts_of(sources))
