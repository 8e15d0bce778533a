"""Sums and products of 32-bit words that need more than 32 bits, the same in NumPy and in JAX.

Compiled code has no 64-bit integers unless the user turns them on. So a counter of steps is a high
and a low word. An epoch times a length does not fit 32 bits either; of such a product we need only
the high word, or a quotient and a remainder.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Words = Any  # uint32 arrays, of NumPy or of JAX


def plus(high: Words, low: Words, n: Words) -> tuple[Words, Words]:
    """A 64-bit number (its high and its low word) plus a 32-bit number `n`."""
    total = low + n  # wraps around 2^32; it is less than `low` if, and only if, it did
    return high + (total < low).astype(np.uint32), total


def high_word(x: Words, y: Words) -> Words:
    """(x * y) >> 32, from half words. (`lax.mulhi` does not compile for several devices.)"""
    x_high, x_low = x >> np.uint32(16), x & np.uint32(0xFFFF)
    y_high, y_low = y >> np.uint32(16), y & np.uint32(0xFFFF)
    middle = x_high * y_low + (x_low * y_low >> np.uint32(16))
    low = x_low * y_high + (middle & np.uint32(0xFFFF))
    return x_high * y_high + (middle >> np.uint32(16)) + (low >> np.uint32(16))


def fraction_words(numerator: int, denominator: int) -> tuple[int, int]:
    """numerator / denominator (less than 1) as a binary fraction of 64 bits, rounded up."""
    fraction = -(-(numerator << 64) // denominator)
    return fraction >> 32, fraction & 0xFFFF_FFFF


def times_ratio(x: Words, numerator: Words, denominator: Words, fraction: Any) -> Any:
    """The quotient and the remainder of x * numerator / denominator.

    `fraction` is the ratio as `fraction_words`, rounded up by less than 2^-64. So the product is
    too large by less than 2^-32, which is less than 1 / denominator. The quotient is therefore
    exact for every x of 32 bits and every denominator of 31 bits.
    """
    high, low = fraction
    quotient, _ = plus(high_word(x, high), x * high, high_word(x, low))
    return quotient, x * numerator - quotient * denominator


def add_below(x: Words, y: Words, limit: Words) -> Any:
    """x + y, for two numbers below a limit of 31 bits: 1 if the sum reaches the limit (else 0),
    and the sum modulo the limit."""
    total = x + y
    over = (total >= limit).astype(np.uint32)
    return over, total - over * limit
