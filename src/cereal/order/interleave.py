"""Tables of turns: which part of a mixture gives the next element.

    parts 3 : 1    A A B A | A A B A | ...

A table has S slots, and part j has w_j of them. After any number t of slots, part j has given
between t w_j / S - 1 and t w_j / S + 1 elements. To reach this, its i-th turn comes at slot
floor(i S / w_j) or later, and before slot ceil((i + 1) S / w_j). Of the parts that may come next,
the one with the earliest deadline does. (Load balancers take the part that is furthest behind. That
does not keep the bound: 1:1:1:11:11 reaches 1.04.)
"""

from __future__ import annotations

import heapq
import math
import operator
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from ..base.errors import PipelineError

MOST_SLOTS = 1 << 20
_MANY_SLOTS = 1 << 17
_NEAR = 16


def turn_table(parts: Sequence[int]) -> np.ndarray:
    """The part whose turn each slot is."""
    total = sum(parts)
    if all(part == parts[0] for part in parts):
        return np.tile(np.arange(len(parts), dtype=np.int32), parts[0])
    waiting = [(0, number, 0) for number, part in enumerate(parts) if part]
    ready: list[tuple[int, int, int, int]] = []  # if two have one deadline, the rarer is first
    table = np.empty(total, np.int32)
    for slot in range(total):
        while waiting and waiting[0][0] <= slot:
            _, number, turn = heapq.heappop(waiting)
            last = -(-(turn + 1) * total // parts[number])
            heapq.heappush(ready, (last, parts[number], number, turn))
        _, _, number, turn = heapq.heappop(ready)
        table[slot] = number
        if turn + 1 < parts[number]:
            heapq.heappush(waiting, ((turn + 1) * total // parts[number], number, turn + 1))
    return table


def whole_parts(weights: Any, count: int, owner: str) -> tuple[int, ...]:
    """Weights as whole numbers: exact if a table can hold them, otherwise to one in 100,000.

    Even the smallest weight above 0 gets a turn.
    """
    given = _checked(weights, count, owner)
    scale = math.lcm(*(weight.denominator for weight in given))
    exact = _smallest([int(weight * scale) for weight in given])
    total = sum(exact)
    if total <= MOST_SLOTS:
        return exact
    least = min(part for part in exact if part)
    slots = min(MOST_SLOTS, max(_MANY_SLOTS, _NEAR * total // least))
    parts = [max(part * slots // total, int(part > 0)) for part in exact]
    cut = sorted(range(count), key=lambda j: parts[j] * total - exact[j] * slots)
    for j in cut[: max(slots - sum(parts), 0)]:
        parts[j] += 1
    parts[parts.index(max(parts))] -= max(sum(parts) - slots, 0)
    return _smallest(parts)


def _smallest(parts: Sequence[int]) -> tuple[int, ...]:
    """The smallest whole numbers in the same ratio."""
    divisor = math.gcd(*parts)
    return tuple(part // divisor for part in parts)


def _checked(weights: Any, count: int, owner: str) -> list[Fraction]:
    try:
        if isinstance(weights, str | bytes):
            raise TypeError(weights)
        given = [_number(weight) for weight in weights]
    except (TypeError, ValueError) as error:
        raise PipelineError(
            f"{owner}: `weights` must be one number per source, got {weights!r:.80}; write "
            f"`weights=(3, 1)`."
        ) from error
    if len(given) != count:
        raise PipelineError(
            f"{owner}: there are {count} sources and {len(given)} `weights`; give one per source."
        )
    for number, weight in enumerate(given):
        if (isinstance(weight, float) and not math.isfinite(weight)) or weight < 0:
            raise PipelineError(
                f"{owner}: the weight of source {number} is {weight}; weights are finite and not "
                f"negative (0 leaves a source out)."
            )
    if not any(given):
        raise PipelineError(
            f"{owner}: all `weights` are zero, so there is nothing to read; raise one of them."
        )
    return [_as_fraction(weight) for weight in given]


def _number(weight: Any) -> Any:
    if isinstance(weight, bool | np.bool_ | str | bytes):
        raise TypeError(weight)
    try:
        return operator.index(weight)
    except TypeError:
        return float(weight)


def _as_fraction(weight: Any) -> Fraction:
    """A weight as the user meant it: 0.3 is 3/10, also if it is a float32."""
    exact = Fraction(weight)
    if isinstance(weight, int):
        return exact
    for most, error in ((1000, 1e-6), (10**6, 1e-12)):
        near = exact.limit_denominator(most)
        if abs(near - exact) <= exact * Fraction(error):
            return near
    return exact
