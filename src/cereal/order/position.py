"""Epoch arithmetic: where each step starts, and how many steps are left.

A position is (epoch, offset in elements). A step takes `batch` elements from there; what happens
at the end of an epoch of n elements is the remainder rule:

    n = 10, batch = 4
    wrap   0123 4567 89|01 2345 6789|...   every element once per pass, no padding
    pad    0123 4567 89__|0123 ...         the last batch is padded, its mask is False there
    drop   0123 4567|0123 ...              the last 2 elements of the order are left out

The same functions serve JAX (uint32 arrays; n fits 31 bits) and the host (Python integers and
int64 arrays), so that a restart computes what a running program computed.
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

    Also says where a run of steps ends: its end is the start of the step after it.
    """
    if remainder == "wrap":
        total = offset + step * batch
        return epoch + total // n, total % n
    left = n - offset
    first = left // batch if remainder == "drop" else (left + (batch - 1)) // batch
    per_epoch = steps_in(n, batch, remainder)
    later = step - first  # wraps below zero in unsigned arithmetic, where it is not used
    here = step < first
    return (
        xp.where(here, epoch, epoch + 1 + later // per_epoch),
        xp.where(here, offset + step * batch, later % per_epoch * batch),
    )


def steps_left(offset: int, epochs: int, *, n: int, batch: int, remainder: Remainder) -> int:
    """Steps from an offset to the end of the epoch, and of `epochs - 1` more."""
    if remainder == "wrap":
        return -(-(n * epochs - offset) // batch)
    return steps_in(n - offset, batch, remainder) + (epochs - 1) * steps_in(n, batch, remainder)


def epochs_touched(steps: int, *, n: int, batch: int, remainder: Remainder) -> int:
    """The most epochs that a run of steps can have elements of, wherever it starts."""
    steps = max(steps, 1)
    if remainder == "wrap":
        return (n - 1 + steps * batch - 1) // n + 1
    return 1 + -(-(steps - 1) // steps_in(n, batch, remainder))
