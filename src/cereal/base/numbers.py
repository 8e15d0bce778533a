"""Numbers that users pass as arguments: checked here, with the same error message everywhere."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Set
from typing import Any

import numpy as np

from .errors import CerealError, PipelineError


class Unstated(int):
    """A default that the user has not stated: the loader may use a larger number."""


AHEAD = Unstated(64)  # elements that a source asks to be read ahead


def as_whole(value: Any) -> int | None:
    """An integer of any library as a Python integer; None for anything else, also for a bool."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def as_fractions(value: Any, owner: str, write: str) -> list[float]:
    """A sequence of numbers as floats, or an error. (Strings, dicts and sets are refused.)"""
    unordered = isinstance(value, str | bytes | Mapping | Set)
    try:
        if unordered or any(isinstance(each, str | bytes) for each in value):
            raise TypeError
        return [float(each) for each in value]
    except (TypeError, ValueError) as error:
        raise PipelineError(
            f"{owner}: `fractions` must be numbers, got {value!r:.60}; write `{write}`."
        ) from error


def as_count(
    value: Any,
    name: str,
    owner: str,
    least: int = 1,
    most: int | None = None,
    *,
    hint: str = "",
    error: type[CerealError] = PipelineError,
) -> int:
    """An integer of at least `least` (and at most `most`), or an error that names the argument.

    >>> from cereal.base.numbers import as_count
    >>> as_count(0, "steps", "iterate", hint="leave it out")
    Traceback (most recent call last):
    cereal.PipelineError: iterate: `steps` must be an integer of at least 1, got 0; leave it out.
    """
    number = value if isinstance(value, Unstated) else as_whole(value)
    if number is not None and least <= number and (most is None or number <= most):
        return number
    allowed = f"of at least {least}" if most is None else f"from {least} to {most}"
    hint = f"; {hint}" if hint else ""
    raise error(f"{owner}: `{name}` must be an integer {allowed}, got {value!r:.60}{hint}.")


def as_optional_count(
    value: Any,
    name: str,
    owner: str,
    least: int = 1,
    *,
    hint: str = "",
    error: type[CerealError] = PipelineError,
) -> int | None:
    """The same for an argument that may be None, which stays None."""
    if value is None:
        return None
    return as_count(value, name, owner, least, hint=hint, error=error)


def as_flag(value: Any, name: str, owner: str) -> bool:
    """True or False, or an error that names the argument."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise PipelineError(f"{owner}: `{name}` must be True or False, got {value!r:.60}.")


def multiples_near(size: int, count: int) -> str:
    """The multiples of a count that are nearest to a size, in words: `6 or 8`."""
    below, above = size // count * count, -(-size // count) * count
    return f"{below} or {above}" if below else f"{above}"
