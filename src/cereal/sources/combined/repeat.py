"""A source several times over."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from ...base.numbers import as_count
from ...base.pytree import pytree_dataclass, static_field
from ...order.ordering import Order
from ...pipeline.source import Source
from ...routes.route import Route
from ...routes.subset import Repeated
from .routed import Routed, adopt, count_of, inherited, set_routed
from .store import Store

T = TypeVar("T")


@pytree_dataclass
class RepeatSource(Routed[T], Generic[T]):
    """Each element of a source `times` times in an epoch.

        [a b c], 2   sequential   a b c a b c
                     shuffle      c a c b a b     (each twice, anywhere)

    Each repetition is augmented differently. You need no RepeatSource to train for several epochs:
    write `loader.iterate(state, epochs=10)`.

    >>> import cereal
    >>> twice = cereal.RepeatSource(cereal.RangeSource(3), 2)
    >>> [int(x) for x, mask in cereal.DataLoader(twice)]
    [0, 1, 2, 0, 1, 2]
    """

    store: Store
    path: Route
    ordering: Order
    parts: str = static_field(default="")

    def __init__(self, source: Source[T], times: int, *, ordering: Any = None) -> None:
        owner = "RepeatSource"
        store, path = adopt(source, owner)
        no_end = "leave the RepeatSource out and write `loader.iterate(state, epochs=None)`"
        number = as_count(times, "times", owner, hint=f"for no end, {no_end}")
        path = Repeated(path, number)
        order = inherited(ordering, [source], path.n, owner)
        set_routed(self, store, path, order, f"{number} times {count_of(source)}")
