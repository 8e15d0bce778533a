"""Whole numbers, as users pass them."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Set
from typing import Any

from .errors import PipelineError


def as_whole(value: Any) -> int | None:
    """An integer of any library as a Python one; None for all else, True and False included."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def as_fractions(value: Any, owner: str, write: str) -> list[float]:
    """Numbers in their order, or an error; strings have neither."""
    unordered = isinstance(value, str | bytes | Mapping | Set)
    try:
        if unordered or any(isinstance(each, str | bytes) for each in value):
            raise TypeError
        return [float(each) for each in value]
    except (TypeError, ValueError) as error:
        raise PipelineError(
            f"{owner}: `fractions` must be numbers, got {value!r:.60}; write `{write}`."
        ) from error


def as_count(value: Any, name: str, owner: str) -> int:
    """A positive integer, or an error that names the argument."""
    count = as_whole(value)
    if count is None or count < 1:
        raise PipelineError(f"{owner}: `{name}` must be a positive integer, got {value!r}.")
    return count
