"""Which cases of a test run in `make test`, and which in `make slow` alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slowly(*values: Any) -> Any:
    """One case, for `make slow`."""
    return pytest.param(*values, marks=pytest.mark.slow)


def quickly(cases: Iterable[Any], *quick: Any) -> list[Any]:
    """All cases, those that are not `quick` for `make slow`; a tuple has several arguments."""
    cases = list(cases)
    assert all(case in cases for case in quick), "a quick case is none of the cases"
    as_arguments = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        case if case in quick else slowly(*arguments)
        for case, arguments in zip(cases, as_arguments, strict=True)
    ]
