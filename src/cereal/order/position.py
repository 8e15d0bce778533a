"""Epoch arithmetic: where each step starts, and how many steps are left.

A position is (epoch, offset in elements). A step takes `batch` elements from there. The remainder
rule says what happens at the end of an epoch of n elements:

    n = 10, batch = 4
    wrap   0123 4567 89|01 2345 6789|...   every element once per pass, no padding
    pad    0123 4567 89__|0123 ...         the last batch is padded, its mask is False there
    drop   0123 4567|0123 ...              the last 2 elements of the order are left out

The same functions work in JAX (uint32 arrays; n fits 31 bits) and on the host (Python integers and
int64 arrays). So a restart computes the same positions as the program that was stopped.
"""

from __future__ import annotations

from typing import Any, Literal

Remainder = Literal["wrap", "pad", "drop"]


def steps_in(n: int, batch: int, remainder: Remainder) -> int:
    """Steps in an epoch of n elements that starts at its beginning."""
    return n // batch if remainder == "drop" else -(-n // batch)


def starts(
    xp: Any, epoch: Any, offset: Any, step: Any, *, n: int, batch: int, remainder: Remainder
) -> tuple[Any, Any]:
    """The (epoch, offset) at which each `step` starts, counted from a given position.

    This also gives the end of a sequence of steps, which is the start of the step after it.
    """
    if remainder == "wrap":
        total = offset + step * batch
        return epoch + total // n, total % n
    left = n - offset
    first = left // batch if remainder == "drop" else (left + (batch - 1)) // batch
    per_epoch = steps_in(n, batch, remainder)
    later = step - first  # may wrap around below zero in unsigned arithmetic; it is not used then
    here = step < first
    return (
        xp.where(here, epoch, epoch + 1 + later // per_epoch),
        xp.where(here, offset + step * batch, later % per_epoch * batch),
    )


def steps_left(offset: int, epochs: int, *, n: int, batch: int, remainder: Remainder) -> int:
    """Steps from an offset to the end of its epoch, plus those of `epochs - 1` more epochs."""
    if remainder == "wrap":
        return -(-(n * epochs - offset) // batch)
    return steps_in(n - offset, batch, remainder) + (epochs - 1) * steps_in(n, batch, remainder)


def epochs_touched(steps: int, *, n: int, batch: int, remainder: Remainder) -> int:
    """How many epochs a sequence of steps can touch at most, wherever it starts."""
    steps = max(steps, 1)
    if remainder == "wrap":
        return (n - 1 + steps * batch - 1) // n + 1
    return 1 + -(-(steps - 1) // steps_in(n, batch, remainder))
