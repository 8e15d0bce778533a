"""Some of the elements of a source."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ...base.capture import is_traced
from ...base.errors import PipelineError
from ...base.identity import TRACED
from ...base.pytree import pytree_dataclass, static_field
from ...device.transfer import sent
from ...order.ordering import Order, check_indices, digest_of, is_once, times_before
from ...pipeline.source import Source
from ...routes.route import Route, Run
from ...routes.subset import Stretch, Table
from .routed import Routed, adopt, count_of, inherited, set_routed
from .store import Store

T = TypeVar("T")
_OWNER = "SliceSource"


@pytree_dataclass
class SliceSource(Routed[T], Generic[T]):
    """Some elements of a source: a `range` (or `slice`), or an array of indices.

        source              0 1 2 3 4 5 6 7
        range(2, 8, 2)          2   4   6
        [7, 7, 0]           7 7 0

    An index names an element of the source, not a place in the source's order: a slice of a
    shuffled source has the same elements in every epoch. A range takes no memory. `ordering` is
    the order of the slice; by default it is that of the source.

    >>> import cereal
    >>> some = cereal.SliceSource(cereal.RangeSource(100), range(10, 20, 3))
    >>> [int(x) for x, mask in cereal.DataLoader(some)]
    [10, 13, 16, 19]
    """

    store: Store
    path: Route
    ordering: Order
    parts: str = static_field(default="")

    def __init__(self, source: Source[T], where: Any, *, ordering: Any = None) -> None:
        store, path = adopt(source, _OWNER)
        path, words = _chosen(path, where)
        order = inherited(ordering, [source], path.n, _OWNER)
        set_routed(self, store, path, order, f"{words} of {count_of(source)}")


def make_slice(
    source: Any, store: Store, path: Route, ordering: Any, parts: str, owner: str
) -> Any:
    """A SliceSource that uses this route."""
    made = object.__new__(SliceSource)
    set_routed(made, store, path, inherited(ordering, [source], path.n, owner), parts)
    return made


def part_of(path: Route, chosen: range) -> Route:
    """A route to some elements of another route: those in a range."""
    if isinstance(path, Run):
        return path.part(chosen.start, len(chosen), chosen.step)
    if chosen == range(path.n):
        return path
    return Stretch(path, chosen.start, len(chosen), chosen.step)


def _chosen(path: Route, where: Any) -> tuple[Route, str]:
    if isinstance(where, slice):
        where = range(*where.indices(path.n))
    if isinstance(where, range):
        return _in_range(path, where)
    if is_traced(where):  # inside jit: the values cannot be looked at
        if where.ndim != 1 or not jnp.issubdtype(where.dtype, jnp.integer):
            raise PipelineError(
                f"{_OWNER}: an array of indices must be one axis of integers, got "
                f"{where.dtype}{list(where.shape)}."
            )
        n = where.shape[0]
        indices = where.astype(jnp.int32)
        table = Table(path, indices, n, TRACED, False, times_before(indices))
        return table, f"{n} indices"
    if isinstance(where, bool | int | np.integer) or not isinstance(
        where, jax.Array | np.ndarray | list | tuple
    ):
        raise PipelineError(
            f"{_OWNER}: `where` must be a range or an array of indices, got {where!r:.60}; write "
            f"`SliceSource(source, range(0, 100))`."
        )
    indices = check_indices(where, path.n, f"{_OWNER}: the array of indices")
    once, n = is_once(indices), len(indices)
    again = None if once else jnp.asarray(sent(times_before(indices)))
    table = Table(path, jnp.asarray(sent(indices)), n, digest_of(indices), once, again)
    return table, f"{len(indices)} indices"


def _in_range(path: Route, where: range) -> tuple[Route, str]:
    n = path.n
    if len(where) == 0:
        raise PipelineError(f"{_OWNER}: {where} of {n} elements is empty; choose at least one.")
    low, high = min(where[0], where[-1]), max(where[0], where[-1])
    if low < 0 or high >= n:
        raise PipelineError(
            f"{_OWNER}: {where} reaches from {low} to {high}, outside the source's range 0 to "
            f"{n - 1}; cut it to `{_within(where, n)}`."
        )
    step = f":{where.step}" if where.step != 1 else ""
    return part_of(path, where), f"{where.start}:{where.stop}{step}"


def _within(where: range, n: int) -> range:
    """The part of a range that lies in 0 to n - 1."""
    inside = [k for k in (0, len(where) - 1) if 0 <= where[k] < n]
    if len(inside) == 2 or not inside:
        return range(n)
    if where.step > 0:
        return range(max(where.start, 0), min(where.stop, n), where.step)
    return range(min(where.start, n - 1), max(where.stop, -1), where.step)
