"""Identities: tuples that name an order or a choice of elements. They can be compared and printed.

("indices({}, {})", 5, "1d760e7a")    in words: indices(5, 1d760e7a)
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

Identity = tuple[Hashable, ...]

TRACED = "traced"
"""Stands in an identity for a value that is being traced: nobody can read it yet."""


def in_words(identity: Hashable) -> str:
    """An identity as text: its first part is a pattern, which the others fill."""
    if not isinstance(identity, tuple):
        return str(identity)
    pattern, *values = identity or ("",)
    return str(pattern).format(*map(in_words, values)).strip()


def listed(pattern: str, parts: Sequence[Identity]) -> Identity:
    """One identity made of several; the pattern has one place for all of them."""
    return (pattern.format(", ".join(["{}"] * len(parts))), *parts)


def agree(a: Hashable, b: Hashable) -> bool:
    """Whether two identities are equal; a traced value agrees with any other."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(agree, a, b))
    return a == b or TRACED in (a, b)
