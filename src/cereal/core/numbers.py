"""Whole numbers, as users pass them."""

from __future__ import annotations

import operator
from typing import Any


def as_whole(value: Any) -> int | None:
    """An integer of any library as a Python one; None for all else, True and False included."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
