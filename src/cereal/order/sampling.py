"""Orders that draw elements: some more often than others, some not at all."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from ..base.capture import is_traced
from ..base.errors import PipelineError
from ..base.identity import Identity
from ..base.numbers import as_count
from ..base.pytree import pytree_dataclass, set_fields, static_field
from ..device.transfer import sent
from .lane_permutation import permute_lanes
from .mixing import MOST_SLOTS_IN_EPOCH, Mixing, Phase, make_mixing
from .ordering import Order, Visit, digest_of
from .tables import count_up_to, look_up
from .threefry import DRAW, MIX, key_for, threefry
from .weighted_order import finish_order, slowness_of
from .words64 import high_word, plus

MOST_DRAWS = MOST_SLOTS_IN_EPOCH - 1


@pytree_dataclass
class Bootstrap(Order):
    """Draws n of n elements with replacement, anew in every epoch.

        0 1 2 3 4 5   ->   4 0 0 5 2 4

    With one key per member, `vmap` trains a bagged ensemble over one copy of the data.

    >>> import cereal
    >>> source = cereal.RangeSource(6, ordering=cereal.Bootstrap())
    >>> loader = cereal.DataLoader([source, cereal.BatchTransform(6)])
    >>> len(set(loader.batch_at(0, 0)[0].tolist())) < 6
    True
    """

    random = True
    samples = True

    @property
    def identity(self) -> Identity:
        return ("Bootstrap",)

    def visit(self, key: Any, epochs: Any, column: Any, position: Any, n: int) -> Visit:
        # The high word of n times a random number of 64 bits.
        first, second = _draws(key, epochs, column, position)
        size = np.uint32(n)
        low = first * size
        index = plus(high_word(first, size), low, high_word(second, size))[0]
        return Visit(index, draw=position.astype(np.uint32))


@pytree_dataclass
class WeightedSampling(Order):
    """Draws elements with probability in proportion to their weights.

        weights [1 1 0 6]          3 3 0 3 3 1 3 ...     never 2
        replacement=False          3 1 0                 each at most once in an epoch

    An epoch has as many draws as there are elements, or `length` draws. Without replacement, each
    draw takes one of the elements that are left, until `length` are drawn or only weights of 0 are
    left. Then every compiled call sorts the weights, so let one call make many batches:
    `scan_epoch`, `iterate`. Probabilities are exact to 2^-32: with replacement, elements of smaller
    probability may never be drawn. Without replacement, weights below 1e-36 of the largest are
    raised to it.

    >>> import cereal
    >>> order = cereal.WeightedSampling([1, 0, 3])
    >>> source = cereal.RangeSource(3, ordering=order)
    >>> loader = cereal.DataLoader([source, cereal.BatchTransform(100)])
    >>> 1 in loader.batch_at(0, 0)[0].tolist()
    False
    """

    random = True
    samples = True

    table: Any  # with replacement: cumulative shares; without: one over each weight
    replacement: bool = static_field(default=True)
    size: int = static_field(default=0)
    draws: int = static_field(default=0)
    digest: str = static_field(default="")

    def __init__(
        self, weights: Any, *, replacement: bool = True, length: int | None = None
    ) -> None:
        owner = "WeightedSampling"
        values = _weights(weights, owner)
        present = int((values > 0).sum())
        most = None if replacement else present
        draws = (len(values) if replacement else present) if length is None else length
        draws = _draw_count(draws, most, owner)
        set_fields(
            self,
            table=jnp.asarray(sent(_shares(values) if replacement else slowness_of(values))),
            replacement=bool(replacement),
            size=len(values),
            draws=draws,
            digest=digest_of(values),
        )

    def over(self, n: int, owner: str) -> Order:
        return _sized(self, "weights", n, owner)

    def length(self, n: int) -> int:
        del n
        return self.draws

    @property
    def identity(self) -> Identity:
        how = "" if self.replacement else ", no replacement"
        return ("WeightedSampling({}{}, {})", self.size, how, self.digest)

    def visit(self, key: Any, epochs: Any, column: Any, position: Any, n: int) -> Visit:
        del n
        if self.replacement:
            index = count_up_to(self.table, _draws(key, epochs, column, position)[0])
            return Visit(index, draw=position.astype(np.uint32))
        order = finish_order(key_for(key, 1, DRAW), epochs, self.table)
        return Visit(order[column.astype(np.int32), position.astype(np.int32)])


@pytree_dataclass
class ClassBalanced(Order):
    """Draws every class equally often, whatever its share of the data.

        labels  0 0 0 0 0 0 1 2     ->   1 0 2 | 0 2 1 | 2 0 1 | ...

    Each turn has every class once, in random order. Each class goes through its elements in its own
    shuffled epochs: no element comes again before all others of its class have come. An epoch has
    as many draws as there are elements, or `length` draws, rounded up to whole turns.

    >>> import cereal
    >>> source = cereal.RangeSource(8, ordering=cereal.ClassBalanced([0, 0, 0, 0, 0, 0, 1, 2]))
    >>> loader = cereal.DataLoader([source, cereal.BatchTransform(3)])
    >>> {6, 7} < set(loader.batch_at(0, 0)[0].tolist())
    True
    """

    random = True
    samples = True

    members: Any  # indices of the elements, class by class
    starts: Any  # where each class begins among them
    mixing: Mixing
    size: int = static_field(default=0)
    digest: str = static_field(default="")

    def __init__(self, labels: Any, *, length: int | None = None) -> None:
        owner = "ClassBalanced"
        values = _labels(labels, owner)
        classes, counts = np.unique(values, return_counts=True)
        draws = _draw_count(len(values) if length is None else length, None, owner)
        turns = -(-draws // len(classes)) * len(classes)
        phase = Phase(0, (1,) * len(classes))
        members = np.argsort(values, kind="stable").astype(np.int32)
        starts = np.cumsum([0, *counts])[:-1].astype(np.int32)
        set_fields(
            self,
            members=jnp.asarray(sent(members)),
            starts=jnp.asarray(sent(starts)),
            mixing=make_mixing(counts.tolist(), [phase], [True] * len(classes), turns, owner),
            size=len(values),
            digest=digest_of(values.astype(np.int64)),
        )

    def over(self, n: int, owner: str) -> Order:
        return _sized(self, "labels", n, owner)

    def length(self, n: int) -> int:
        del n
        return self.mixing.length

    @property
    def identity(self) -> Identity:
        return ("ClassBalanced({} classes, {})", self.mixing.count, self.digest)

    def visit(self, key: Any, epochs: Any, column: Any, position: Any, n: int) -> Visit:
        del n
        epoch = epochs[column.astype(np.int32)]
        count = position.dtype.type(self.mixing.count)
        turn, place = position // count, position % count
        seeds = threefry(key_for(key, 1, MIX), (epoch, turn.astype(np.uint32)))
        place = permute_lanes(place.astype(np.uint32), seeds, np.uint32(self.mixing.count))
        slot = turn * count + place.astype(position.dtype)
        part, own, index = self.mixing.walk(key, epoch, slot)
        index = look_up(self.members, look_up(self.starts, part) + index)
        return Visit(index, epoch=own)


def _draws(key: Any, epochs: Any, column: Any, position: Any) -> Any:
    """Two random words for each position of each epoch."""
    epoch = epochs[column.astype(np.int32)]
    return threefry(key_for(key, 0, DRAW), (epoch, position.astype(np.uint32)))


def _as_numpy(given: Any, name: str, kind: str, owner: str) -> np.ndarray:
    if is_traced(given):
        raise PipelineError(f"{owner}: `{name}` are traced; build the order outside of `jit`.")
    try:
        values = np.asarray(given)
        if kind == "numbers" and values.dtype.kind not in "iufb" and values.dtype != jnp.bfloat16:
            raise TypeError(values.dtype)
    except (TypeError, ValueError) as error:
        raise PipelineError(
            f"{owner}: `{name}` must be {kind}, got {given!r:.60}; give one per element."
        ) from error
    return values


def _weights(weights: Any, owner: str) -> np.ndarray:
    values = _as_numpy(weights, "weights", "numbers", owner).astype(np.float64) + 0.0  # -0.0 is 0
    if values.ndim != 1 or not len(values):
        raise PipelineError(
            f"{owner}: `weights` must have one axis, one weight per element, got shape "
            f"{values.shape}; write them as one list."
        )
    wrong = np.flatnonzero(~np.isfinite(values) | (values < 0))
    if len(wrong):
        raise PipelineError(
            f"{owner}: the weight of element {wrong[0]} is {values[wrong[0]]}; weights are finite "
            f"and not negative (0 leaves an element out)."
        )
    if not values.any():
        raise PipelineError(f"{owner}: all `weights` are zero; raise at least one of them.")
    return values


def _labels(labels: Any, owner: str) -> np.ndarray:
    values = _as_numpy(labels, "labels", "integers", owner)
    if values.ndim != 1 or not len(values) or not np.issubdtype(values.dtype, np.integer):
        raise PipelineError(
            f"{owner}: `labels` must be one axis of integers, one per element, got "
            f"{values.dtype}{list(values.shape)}{_how_to_integers(values)}."
        )
    return values


def _how_to_integers(values: np.ndarray) -> str:
    if values.dtype.kind in "UST":
        return "; write `np.unique(labels, return_inverse=True)[1]`"
    if values.dtype.kind != "f" or values.ndim != 1 or not len(values):
        return ""
    missing = np.flatnonzero(np.isnan(values))
    if len(missing):
        return f", and label {missing[0]} is NaN, no class; leave such elements out"
    return "; write `labels.astype(np.int32)`"


def _draw_count(length: Any, most: int | None, owner: str) -> int:
    if most is None:
        return as_count(length, "length", owner, most=MOST_DRAWS)
    hint = "no more can be drawn without replacement"
    return as_count(length, "length", owner, most=most, hint=hint)


def _sized(order: WeightedSampling | ClassBalanced, name: str, n: int, owner: str) -> Order:
    if order.size != n:
        raise PipelineError(
            f"{owner}: its `ordering` has {order.size} {name}, but there are {n} elements; give "
            f"one for each."
        )
    return order


def _shares(values: np.ndarray) -> np.ndarray:
    """The cumulative share of the elements, in units of 2^-32; without the last one."""
    shares = np.cumsum(values / values.max())
    last = int(np.flatnonzero(values)[-1])
    shares = np.floor(shares / shares[-1] * 2.0**32)
    shares[last:] = 2.0**32  # no element after the last one with a weight is drawn
    if last < len(values) - 1:
        shares = shares[:last]
    return np.minimum(shares[: len(values) - 1], 2.0**32 - 1).astype(np.uint32)
