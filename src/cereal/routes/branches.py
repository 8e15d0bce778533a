"""Routes through several parts: one after another, or in turn."""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..base.identity import Identity, listed
from ..base.pytree import pytree_dataclass, static_field
from ..device.transfer import sent
from ..order.mixing import Mixing
from ..order.rows import Rows
from ..order.tables import count_up_to, look_up
from .route import Move, Route, RouteTraits, Run, Span, Spans, apart, disjoint, word


class Known:
    """A table of whole numbers as a static field. It is hashed once: JAX asks at every call."""

    __slots__ = ("_bytes", "_hash", "table")

    def __init__(self, table: np.ndarray) -> None:
        self.table, self._bytes = table, table.tobytes()
        self._hash = hash(self._bytes)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Known) and self._bytes == other._bytes

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Known, (self.table,)  # hashes of bytes differ between processes


@pytree_dataclass
class Branches:
    """The routes of several parts. Runs are read from one table, other routes one by one."""

    runs: Any  # [parts, 3]: start, step, length
    others: tuple[Route, ...]
    numbers: tuple[int, ...] = static_field()  # of the others
    straight: bool = static_field()  # all steps are 1
    known: Known = static_field()  # the same runs, with values that are known under a trace too
    apart: bool = static_field(default=True)  # no element is in two of the parts

    def locate(self, part: Any, rows: Rows) -> Rows:
        """The rows of the store; each lane has a part, and an index in that part."""
        xp = np if isinstance(rows.index, np.ndarray) else jnp
        if not self.apart and rows.draw is None:
            rows = rows.again(part, self.runs.shape[0])
        found = rows
        if len(self.others) < self.runs.shape[0]:
            start, step, _ = look_up(self.runs, part)
            index = rows.index if self.straight else rows.index * step
            found = rows.replaced(index=index + start)
        for number, route in zip(self.numbers, self.others, strict=True):
            here = part.astype(xp.int32) == np.int32(number)
            inside = xp.where(here, rows.index, word(rows.index, 0))
            found = _select(xp, here, route.locate(rows.replaced(index=inside)), found)
        return found

    def moved(self, move: Move, salt: int) -> Branches:
        pairs = enumerate(self.routes)
        return make_branches([route.moved(move, part_salt(salt, n)) for n, route in pairs])

    @property
    def routes(self) -> list[Route]:
        """The routes of all parts."""
        others = dict(zip(self.numbers, self.others, strict=True))
        runs = self.known.table.tolist()
        return [
            others.get(number) or Run(start, n, step)
            for number, (start, step, n) in enumerate(runs)
        ]

    @property
    def traits(self) -> RouteTraits:
        """What the routes are together."""
        found = [route.traits for route in self.others]
        return RouteTraits(
            any(each.masks for each in found),
            any(each.random for each in found),
            all(each.fixed for each in found),
        )


def part_salt(salt: int, number: int) -> int:
    """The salt of part `number` of a source. Every place in a tree of sources has another one."""
    return zlib.crc32(f"{salt} {number}".encode())


def make_branches(routes: Sequence[Route]) -> Branches:
    """Branches to these routes, which lie in one store."""
    runs = [(r.start, r.step, r.n) if isinstance(r, Run) else (0, 1, r.n) for r in routes]
    numbers = tuple(n for n, route in enumerate(routes) if not isinstance(route, Run))
    table = np.array(runs, np.int32)
    others = tuple(routes[number] for number in numbers)
    straight = bool((table[:, 1] == 1).all())
    separate = apart([route.reach for route in routes])
    return Branches(jnp.asarray(sent(table)), others, numbers, straight, Known(table), separate)


class _OverBranches(Route):
    """A route through several parts. Its traits and its reach are those of the parts."""

    branches: Branches
    identity: Identity  # type: ignore[assignment,override]

    @property
    def traits(self) -> RouteTraits:
        return self.branches.traits

    @property
    def reach(self) -> tuple[Span, ...]:
        return tuple(span for route in self.branches.routes for span in route.reach)


@pytree_dataclass
class Joined(_OverBranches):
    """One part after another."""

    branches: Branches
    starts: Any  # the index at which each part begins
    n: int = static_field()
    identity: Identity = static_field(default=())  # type: ignore[assignment]

    def locate(self, rows: Rows) -> Rows:
        part = count_up_to(self.starts, rows.index) - 1
        inside = rows.index - look_up(self.starts, part)
        return self.branches.locate(part, rows.replaced(index=inside))

    def moved(self, move: Move, salt: int) -> Route:
        return Joined(self.branches.moved(move, salt), self.starts, self.n, self.identity)

    @property
    def spans(self) -> Spans:
        return disjoint([route.spans for route in self.branches.routes])

    @property
    def contents(self) -> Identity:
        return ("joined", *(route.contents for route in self.branches.routes))


def join(routes: Sequence[Route], borders: Sequence[int] = ()) -> Route:
    """One route after another; a single run if they follow each other in the store.

    `borders` are the rows at which another source begins. Routes are not joined to one run across a
    border, because in another store that source may begin elsewhere.
    """
    runs = [route for route in routes if isinstance(route, Run) and route.step == 1]
    follows = [
        a.start + a.n == b.start and b.start not in borders for a, b in itertools.pairwise(runs)
    ]
    if len(runs) == len(routes) and all(follows):
        return Run(runs[0].start, sum(run.n for run in runs))
    starts = np.cumsum([0, *(route.n for route in routes)])
    parts = [route.identity for route in routes]
    return Joined(
        make_branches(routes),
        jnp.asarray(sent(starts[:-1].astype(np.int32))),
        int(starts[-1]),
        listed("joined({})", parts) if any(parts) else (),
    )


@pytree_dataclass
class Mixed(_OverBranches):
    """Parts in turn; each goes through its own epochs."""

    mixing: Mixing
    branches: Branches
    identity: Identity = static_field(default=())  # type: ignore[assignment]

    @property
    def n(self) -> int:  # type: ignore[override]
        return self.mixing.length

    def locate(self, rows: Rows) -> Rows:
        part, epoch, index = self.mixing.walk(rows.key, rows.epoch, rows.index)
        return self.branches.locate(part, rows.replaced(epoch=epoch, index=index))

    def moved(self, move: Move, salt: int) -> Route:
        mixing = dataclasses.replace(self.mixing, salt=salt)
        return Mixed(mixing, self.branches.moved(move, salt), self.identity)

    @property
    def traits(self) -> RouteTraits:
        inside = self.branches.traits
        random = self.mixing.shuffled != "none" or inside.random
        return RouteTraits(inside.masks, random, fixed=False)

    @property
    def spans(self) -> Spans:
        return None

    @property
    def contents(self) -> Identity:
        parts = (route.contents for route in self.branches.routes)
        return ("mixed", self.identity, *parts)


def _select(xp: Any, here: Any, there: Rows, other: Rows) -> Rows:
    """The rows of `there` where `here` is True, otherwise those of `other`."""
    valid = None
    if there.valid is not None or other.valid is not None:
        full = xp.ones(here.shape, np.bool_)
        a, b = (full if v is None else v for v in (there.valid, other.valid))
        valid = xp.where(here, a, b)
    high = None
    if there.high is not None or other.high is not None:
        zero = xp.zeros(here.shape, np.uint32)
        a, b = (zero if v is None else v for v in (there.high, other.high))
        high = xp.where(here, a, b)
    return other.replaced(
        epoch=xp.where(here, there.epoch, other.epoch),
        index=xp.where(here, there.index, other.index),
        valid=valid,
        high=high,
    )
