"""Routes: from an index of a combined source to a row of data.

    MixSource([train, extra], weights=(3, 1))

    Mixed                     slot  ->  part, index in the part
    ├─ Permuted(90 %)         index ->  index in the source that was split
    │  └─ Run(0, 50,000)      index ->  row of the store
    └─ Run(50,000, 2,000)     index ->  row of the store

A route is arithmetic on indices and holds no data. It needs O(1) memory (except for lists of
indices), and computes any number of rows at once, in NumPy or in JAX. The data of all parts is in
one store, so reading is one gather, however many parts there are.

    here        the interface, and runs
    subset      some elements of a route: listed, shuffled once, a fold, repeated
    branches    several routes: one after another, or in turn
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..base.identity import Identity
from ..base.pytree import pytree_dataclass, static_field
from ..order.rows import Rows

Move = Callable[[int], int]


class Span(NamedTuple):
    """Places `first` to `last - 1` of a list of elements; their rows are among `low` to `high - 1`.

    `space` names the list: equal spaces are equal lists. With a `step`, the span has only every
    `step`-th row.
    """

    low: int
    high: int
    space: Identity
    first: int
    last: int
    step: int = 1

    def meets(self, other: Span) -> bool:
        """Whether the two may have an element in common."""
        if self.high <= other.low or other.high <= self.low:
            return False
        if self.space != other.space:
            return True
        if self.step == other.step and (self.first - other.first) % self.step:
            return False
        return self.first < other.last and other.first < self.last


Spans = tuple[Span, ...] | None


class RouteTraits(NamedTuple):
    """Properties of a route."""

    masks: bool = False  # some rows are padding
    random: bool = False  # the rows depend on the key
    fixed: bool = True  # an index stands for the same element in every epoch


class Route(ABC):
    """Where the elements of a source are in its store."""

    n: int
    """How many elements there are."""

    @abstractmethod
    def locate(self, rows: Rows) -> Rows:
        """The rows of the store. If the parts have their own epochs, these replace the epochs."""

    @abstractmethod
    def moved(self, move: Move, salt: int) -> Route:
        """The same route in another store, where row i of this store is row `move(i)`.

        `salt` depends on the route's place in the tree of sources. It makes two mixtures in one
        tree shuffle differently.
        """

    @property
    @abstractmethod
    def identity(self) -> Identity:
        """The part of a state's fingerprint that comes from the route; () if there is none."""

    @property
    @abstractmethod
    def contents(self) -> Identity:
        """The whole route as a tuple: equal ones have the same elements, in the same order."""

    @property
    def traits(self) -> RouteTraits:
        """What a source has from its route."""
        return RouteTraits()

    @property
    @abstractmethod
    def spans(self) -> Spans:
        """Which elements of the store it has; None if it may have an element several times."""

    @property
    @abstractmethod
    def reach(self) -> tuple[Span, ...]:
        """Where its elements lie in the store, also if it has some of them several times."""


@pytree_dataclass
class Run(Route):
    """start, start + step, start + 2 step, ..."""

    start: int = static_field()
    n: int = static_field()
    step: int = static_field(default=1)

    def locate(self, rows: Rows) -> Rows:
        if self.start == 0 and self.step == 1:
            return rows
        index = rows.index if self.step == 1 else rows.index * word(rows.index, self.step)
        return rows.replaced(index=index + word(rows.index, self.start))

    def moved(self, move: Move, salt: int) -> Route:
        del salt
        return Run(move(self.start), self.n, self.step)

    def part(self, start: int, n: int, step: int) -> Run:
        """Elements start, start + step, ... of this run."""
        return Run(self.start + start * self.step, n, self.step * step)

    @property
    def identity(self) -> Identity:
        return () if self.step == 1 else ("every {}", self.step)

    @property
    def spans(self) -> Spans:
        last = self.start + (self.n - 1) * self.step
        low, high = min(self.start, last), max(self.start, last) + 1
        return (Span(low, high, (), low, high, abs(self.step)),)

    @property
    def reach(self) -> tuple[Span, ...]:
        return self.spans or ()

    @property
    def contents(self) -> Identity:
        return ("run", self.start, self.n, self.step)


def disjoint(spans: Sequence[Spans]) -> Spans:
    """All spans together; None if two of them may have an element in common."""
    together: list[Span] = []
    for each in spans:
        if each is None:
            return None
        together += each
    together.sort()
    reach: list[Span] = []
    for span in together:
        reach = [earlier for earlier in reach if earlier.high > span.low]
        if any(span.meets(earlier) for earlier in reach):
            return None
        reach.append(span)
    return tuple(together)


def apart(reaches: Sequence[tuple[Span, ...]]) -> bool:
    """Whether no two of these (each is a tuple of spans) may have an element in common."""
    together = sorted((span, owner) for owner, each in enumerate(reaches) for span in each)
    before: list[tuple[Span, int]] = []
    for span, owner in together:
        before = [(earlier, whose) for earlier, whose in before if earlier.high > span.low]
        if any(whose != owner and span.meets(earlier) for earlier, whose in before):
            return False
        before.append((span, owner))
    return True


def word(index: Any, value: int) -> Any:
    """A number of the same type as an index."""
    return np.int64(value) if isinstance(index, np.ndarray) else np.int32(value)
