"""What tells orders and choices of elements from others: tuples that are compared, and can be read.

("indices({}, {})", 5, "1d760e7a")    in words: indices(5, 1d760e7a)
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

Identity = tuple[Hashable, ...]

TRACED = "traced"
"""Stands in an identity for a value that is being traced, so that nobody can look at it."""


def in_words(identity: Hashable) -> str:
    """An identity as text: its first part is a pattern, which the others fill."""
    if not isinstance(identity, tuple):
        return str(identity)
    pattern, *values = identity or ("",)
    return str(pattern).format(*map(in_words, values)).strip()


def listed(pattern: str, parts: Sequence[Identity]) -> Identity:
    """An identity of several, in a pattern with one place for all of them."""
    return (pattern.format(", ".join(["{}"] * len(parts))), *parts)


def agree(a: Hashable, b: Hashable) -> bool:
    """Whether two identities are equal, but for values that are being traced in one of them."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(agree, a, b))
    return a == b or TRACED in (a, b)
