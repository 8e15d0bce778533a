"""Elements of several sources in turn, by weight."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from ...base.errors import PipelineError
from ...base.identity import in_words, listed
from ...base.numbers import as_whole
from ...base.pytree import pytree_dataclass, set_fields, static_field
from ...order.interleave import whole_parts
from ...order.mixing import Phase, make_mixing
from ...order.ordering import Order, Sequential, Shuffle, as_order
from ...pipeline.source import Source
from ...routes.branches import Mixed, make_branches
from ...routes.route import Route
from .routed import Routed, combine, counts_of, set_routed
from .store import Store

T = TypeVar("T")
_OWNER = "MixSource"


@pytree_dataclass
class MixSource(Routed[T], Generic[T]):
    """Elements of several sources in turn, in proportion to their weights.

        weights=(3, 1)    a a b a | a a b a | ...

    At any moment, the share of each source is right to within one element. (Weights that are not a
    ratio of small numbers are rounded to one in 100,000.) Each source has its own epochs: it gives
    every element once before it repeats one. By default a source keeps its own order;
    `ordering="shuffle"` shuffles each source, differently in each of its epochs.

    An epoch of the mixture ends when one source has been read once (`epoch="first"`), when all
    have (`epoch="all"`), or after a number of elements. The sources do not restart then: the next
    epoch continues where they are.

    Weights can change with time: `weights={0: (3, 1), 100_000: (1, 1)}` changes them after 100,000
    elements, counted from the beginning of the run. You can add later changes while a run goes on.

    >>> import cereal
    >>> mix = cereal.MixSource([cereal.RangeSource(6), cereal.RangeSource(100, 102)], (3, 1))
    >>> [int(x) for x, mask in cereal.DataLoader(mix)]
    [0, 1, 100, 2, 3, 4, 101]
    """

    store: Store
    path: Route
    ordering: Order
    parts: str = static_field(default="")
    walks: str = static_field(default="")

    def __init__(
        self,
        sources: Sequence[Source[T]],
        weights: Any = None,
        *,
        ordering: Any = None,
        epoch: int | str = "first",
    ) -> None:
        store, routes = combine(sources, _OWNER)
        phases = _schedule((1,) * len(sources) if weights is None else weights, len(sources))
        shuffled = [_is_shuffled(ordering, source, n) for n, source in enumerate(sources)]
        lengths = [route.n for route in routes]
        mixing = make_mixing(lengths, phases, shuffled, _epoch_rule(epoch), _OWNER)
        ratio = ":".join(map(str, phases[0].parts[:8])) + (":..." if len(sources) > 8 else "")
        walks = "shuffle" if all(shuffled) else "own" if any(shuffled) else "sequential"
        # The name holds only the first weights: a state stays valid if later ones are added.
        parts = sorted({route.identity for route in routes} - {()}, key=in_words)
        inside = (listed("[{}]", parts),) if parts else ()
        digest = f"{zlib.crc32(repr((lengths, phases[0].parts)).encode()):08x}"
        identity = (f"mix {{}} {{}} {{}}{' {}' * len(inside)}", walks, digest, ratio, *inside)
        path = Mixed(mixing, make_branches(routes), identity)
        more = f", then {len(phases) - 1} more weights" if len(phases) > 1 else ""
        set_routed(self, store, path, Sequential(), f"{ratio} of {counts_of(sources)}{more}")
        set_fields(self, walks=walks)

    @property
    def _label(self) -> str:
        return f"MixSource({self.parts}, ordering={self.walks})"


def _is_shuffled(ordering: Any, source: Any, number: int) -> bool:
    order = source._order if ordering is None else as_order(ordering, len(source), _OWNER)
    if isinstance(order, Sequential | Shuffle):
        return isinstance(order, Shuffle)
    whose = f"source {number} has" if ordering is None else "`ordering` is"
    raise PipelineError(
        f'{_OWNER}: {whose} {order.name}, but sources are mixed "sequential" or "shuffle"; write '
        f'`ordering="shuffle"`.'
    )


def _schedule(weights: Any, count: int) -> list[Phase]:
    if not isinstance(weights, Mapping):
        return [Phase(0, whole_parts(weights, count, _OWNER))]
    write = "write `weights={0: (3, 1), 100_000: (1, 1)}`"
    starts = sorted(start for start in map(as_whole, weights) if start is not None)
    if len(starts) < len(weights):
        raise PipelineError(
            f"{_OWNER}: a schedule has positions, counted in elements, as keys, got "
            f"{list(weights)!r:.60}; {write}."
        )
    if not starts or starts[0] != 0 or starts[-1] >= 1 << 31:
        raise PipelineError(
            f"{_OWNER}: a schedule begins at position 0 and changes before position 2^31, got "
            f"{starts}; {write}."
        )
    return [Phase(start, whole_parts(weights[start], count, _OWNER)) for start in starts]


def _epoch_rule(epoch: Any) -> int | str:
    if isinstance(epoch, str) and epoch in ("first", "all"):
        return epoch
    number = as_whole(epoch)
    if number is None or number < 1:
        raise PipelineError(
            f'{_OWNER}: `epoch` must be "first", "all" or a number of elements, got {epoch!r}.'
        )
    return number
