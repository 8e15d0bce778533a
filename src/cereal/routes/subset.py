"""Routes to some of the elements of another route."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from ..base.identity import TRACED, Identity
from ..base.pytree import pytree_dataclass, static_field
from ..order.permutation import permute, round_constants
from ..order.rows import Rows
from ..order.tables import look_up
from .route import Move, Route, RouteTraits, Span, Spans, word


@pytree_dataclass
class Around(Route):
    """A route that changes the index, and then asks the route inside."""

    inner: Route

    @property
    def traits(self) -> RouteTraits:
        return self.inner.traits

    @property
    def reach(self) -> tuple[Span, ...]:
        return self.spans or self.inner.reach

    def _spans(self, space: Identity, *places: tuple[int, int]) -> Spans:
        """Spans for these places (first, last) of the list of elements that `space` names."""
        inside = self.inner.spans
        if inside is None:
            return None
        low, high = min(span.low for span in inside), max(span.high for span in inside)
        return tuple(Span(low, high, space, first, last) for first, last in places)


def _value(digest: str, leaf: Any) -> Identity:
    """What tells a leaf from others: its digest; for a tracer, which has no value, its `id`."""
    return (digest, id(leaf) if digest == TRACED else 0)


@pytree_dataclass
class Table(Around):
    """Listed elements."""

    inner: Route
    indices: Any
    n: int = static_field()
    digest: str = static_field()
    once: bool = static_field()  # none is listed twice
    again: Any = None  # else: how often each was listed before

    def locate(self, rows: Rows) -> Rows:
        index = look_up(self.indices, rows.index)
        if self.again is not None and rows.draw is None:
            rows = rows.again(look_up(self.again, rows.index), self.n)
        return self.inner.locate(rows.replaced(index=index))

    def moved(self, move: Move, salt: int) -> Route:
        inner = self.inner.moved(move, salt)
        return Table(inner, self.indices, self.n, self.digest, self.once, self.again)

    @property
    def identity(self) -> Identity:
        return ("indices({}, {}) {}", self.n, self.digest, self.inner.identity)

    @property
    def spans(self) -> Spans:
        return self._spans(self.contents, (0, self.n)) if self.once else None

    @property
    def contents(self) -> Identity:
        return ("listed", _value(self.digest, self.indices), self.inner.contents)


@pytree_dataclass
class Stretch(Around):
    """Elements start, start + step, ... of a route that is not a run."""

    inner: Route
    start: int = static_field()
    n: int = static_field()
    step: int = static_field()

    def locate(self, rows: Rows) -> Rows:
        index = rows.index * word(rows.index, self.step) + word(rows.index, self.start)
        return self.inner.locate(rows.replaced(index=index))

    def moved(self, move: Move, salt: int) -> Route:
        return Stretch(self.inner.moved(move, salt), self.start, self.n, self.step)

    @property
    def identity(self) -> Identity:
        return ("from {} by {} of {}", self.start, self.step, self.inner.identity)

    @property
    def spans(self) -> Spans:
        last = self.start + (self.n - 1) * self.step
        places = min(self.start, last), max(self.start, last) + 1
        return self._spans(("order of", self.inner.contents), places)

    @property
    def contents(self) -> Identity:
        return ("stretch", self.start, self.n, self.step, self.inner.contents)


@pytree_dataclass
class Permuted(Around):
    """Elements first, first + 1, ... of a list that is shuffled once, the same in all epochs."""

    inner: Route
    words: Any  # the key of that shuffle
    first: int = static_field()
    n: int = static_field()
    digest: str = static_field()

    def locate(self, rows: Rows) -> Rows:
        position = rows.index + word(rows.index, self.first)
        index = shuffled_once(self.words, position, self.inner.n)
        return self.inner.locate(rows.replaced(index=index))

    def moved(self, move: Move, salt: int) -> Route:
        inner = self.inner.moved(move, salt)
        return Permuted(inner, self.words, self.first, self.n, self.digest)

    @property
    def identity(self) -> Identity:
        inner = self.inner.identity
        return ("split({}, {}, {}) {}", self.first, self.n, self.digest, inner)

    @property
    def spans(self) -> Spans:
        return self._spans(self._list, (self.first, self.first + self.n))

    @property
    def _list(self) -> Identity:
        return ("shuffled", _value(self.digest, self.words), self.inner.contents)

    @property
    def contents(self) -> Identity:
        return ("part", self.first, self.n, self._list)


@pytree_dataclass
class Fold(Around):
    """One of k folds, or all but one of them.

        11 elements, k = 3, fold = 1       0 1 2 3 | 4 5 6 7 | 8 9 10
                                           rest      fold      rest

    The fold's number may be traced. Then the length is that of the largest fold, and smaller folds
    are padded and masked.
    """

    inner: Route
    fold: Any
    k: int = static_field()
    rest: bool = static_field()
    n: int = static_field()
    padded: bool = static_field()
    digest: str = static_field()

    def locate(self, rows: Rows) -> Rows:
        host = isinstance(rows.index, np.ndarray)
        xp, fold = (np, np.asarray(self.fold, np.int64)) if host else (jnp, self.fold)
        total, k = self.inner.n, self.k
        least, extra = word(rows.index, total // k), word(rows.index, total % k)
        start = fold * least + xp.minimum(fold, extra)
        size = least + (fold < extra).astype(rows.index.dtype)
        size_here = word(rows.index, total) - size if self.rest else size
        index = rows.index
        if self.padded:
            real = index < size_here
            index = xp.where(real, index, word(index, 0))
            rows = rows.replaced(valid=real if rows.valid is None else rows.valid & real)
        index = xp.where(index < start, index, index + size) if self.rest else index + start
        return self.inner.locate(rows.replaced(index=index))

    def moved(self, move: Move, salt: int) -> Route:
        inner = self.inner.moved(move, salt)
        return Fold(inner, self.fold, self.k, self.rest, self.n, self.padded, self.digest)

    @property
    def traits(self) -> RouteTraits:
        inner = self.inner.traits
        return inner._replace(masks=self.padded or inner.masks)

    @property
    def identity(self) -> Identity:
        kind = "rest" if self.rest else "fold"
        return ("{}({} of {}) {}", kind, self.digest, self.k, self.inner.identity)

    @property
    def spans(self) -> Spans:
        space = ("order of", self.inner.contents)
        if self.digest == TRACED:
            return self._spans(self.contents, (0, self.n))
        fold, total = int(self.digest), self.inner.n
        least, extra = divmod(total, self.k)
        start = fold * least + min(fold, extra)
        end = start + least + (fold < extra)
        if not self.rest:
            return self._spans(space, (start, end))
        return self._spans(space, *((a, b) for a, b in ((0, start), (end, total)) if a < b))

    @property
    def contents(self) -> Identity:
        fold = _value(self.digest, self.fold)
        return ("fold", fold, self.k, self.rest, self.inner.contents)


@pytree_dataclass
class Repeated(Around):
    """All elements, several times; each time counts as an epoch of the route inside."""

    inner: Route
    times: int = static_field()

    @property
    def n(self) -> int:  # type: ignore[override]
        return self.inner.n * self.times

    def locate(self, rows: Rows) -> Rows:
        length = word(rows.index, self.inner.n)
        passes = (rows.index // length).astype(np.uint32)
        epoch = rows.epoch * np.uint32(self.times) + passes
        return self.inner.locate(rows.replaced(epoch=epoch, index=rows.index % length))

    def moved(self, move: Move, salt: int) -> Route:
        return Repeated(self.inner.moved(move, salt), self.times)

    @property
    def identity(self) -> Identity:
        return ("{} times {}", self.times, self.inner.identity)

    @property
    def spans(self) -> Spans:
        return self.inner.spans if self.times == 1 else None

    @property
    def contents(self) -> Identity:
        return ("times", self.times, self.inner.contents)


def shuffled_once(words: Any, position: Any, n: int) -> Any:
    """The index at each position of one shuffle of n elements, under a key of two words."""
    xp = np if isinstance(position, np.ndarray) else jnp
    words = xp.asarray(words)
    constants = round_constants((words[0], words[1]), xp.zeros(1, np.uint32), n)
    return permute(position, xp.zeros(position.shape, np.int32), constants, n)
