"""Code that is written in one way for the CPU and in another for accelerators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.extend.backend
from jax import lax


def by_platform(*args: Any, cpu: Callable[..., Any], default: Callable[..., Any]) -> Any:
    """`cpu(*args)` in programs for the CPU, `default(*args)` in others; both give the same values.

    JAX decides when it lowers a program, and traces both for it. In a process that has nothing but
    the CPU only its form is traced: unrolled rounds, meant for GPUs, take ten times as long.
    """
    if set(jax.extend.backend.backends()) == {"cpu"}:
        return cpu(*args)
    return lax.platform_dependent(*args, cpu=cpu, default=default)
