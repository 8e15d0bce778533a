"""Sums and products of 32-bit words that need more than 32 bits, the same in NumPy and in JAX.

Compiled code has no 64-bit integers unless the user turns them on. A counter of steps is kept as a
high and a low word. An epoch times a length does not fit 32 bits, and what is needed of such a
product is its high word, or its quotient and rest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Words = Any  # uint32 arrays, of NumPy or of JAX


def plus(high: Words, low: Words, n: Words) -> tuple[Words, Words]:
    """The high and the low word of a number of 64 bits, plus `n` of 32: the one carry there is."""
    total = low + n  # wraps around 2^32; it is less than `low` if, and only if, it did
    return high + (total < low).astype(np.uint32), total


def high_word(x: Words, y: Words) -> Words:
    """(x * y) >> 32. `lax.mulhi` does not compile for several devices: by halves of words."""
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
    """The quotient and the rest of x * numerator / denominator.

    `fraction` has the `fraction_words` of the ratio. It is above the ratio by less than 2^-64, so
    the product is above the true one by less than 2^-32, which is less than 1 / denominator: the
    quotient is exact for every x of 32 bits and every denominator of 31.
    """
    high, low = fraction
    quotient, _ = plus(high_word(x, high), x * high, high_word(x, low))
    return quotient, x * numerator - quotient * denominator


def add_below(x: Words, y: Words, limit: Words) -> Any:
    """x + y of two numbers below a limit of 31 bits: 1 if it reaches the limit, and the rest."""
    total = x + y
    over = (total >= limit).astype(np.uint32)
    return over, total - over * limit
