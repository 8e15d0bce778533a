"""Counts what JAX compiles, and how often a function of a test is traced.

    with compilations() as made:
        ...
    assert made() == 1

A body that counts its own traces refers to something that changes, and is traced anew for that
alone. So it tells Python's audit, which is a library's function: `sys.audit(TRACED)`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax

TRACED = "cereal.tests.traced"
_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_counts = {TRACED: 0, _LOWERED: 0}


def _count(event: str, *_: Any, **__: Any) -> None:
    if event in _counts:
        _counts[event] += 1


jax.monitoring.register_event_duration_secs_listener(_count)
sys.addaudithook(_count)


@contextmanager
def _counted(event: str) -> Iterator[Callable[[], int]]:
    before = _counts[event]
    yield lambda: _counts[event] - before


def compilations() -> Any:
    """How many programs JAX made, found in its cache on disk or not."""
    return _counted(_LOWERED)


def traces() -> Any:
    """How often `sys.audit(TRACED)` was called."""
    return _counted(TRACED)
