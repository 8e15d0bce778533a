"""User functions as parts of a pytree."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .errors import PipelineError
from .held import Opaque, hold
from .pytree import pytree_dataclass


@pytree_dataclass
class Function(Opaque):
    """A callable inside a pytree.

    A plain function is structure: compared by identity, so that the same function means the same
    program. A callable that is itself a pytree (an Equinox module) is traced, so that its
    arrays are arguments like all others.
    """

    def __call__(self, *args: Any) -> Any:
        return self.value(*args)

    @property
    def identity(self) -> Any:
        """What tells this function from others."""
        return type(self.tree) if self.fixed is None else self.fixed

    @property
    def name(self) -> str:
        return function_name(self.value)


def function_name(fn: Any) -> str:
    """What a function is called; a callable object by its class, a partial by what it calls."""
    inner = fn.func if isinstance(fn, functools.partial) else fn
    return getattr(inner, "__name__", type(inner).__name__)


def as_function(fn: Any, owner: str) -> Function:
    """Checks that `fn` can be part of a pipeline and wraps it."""
    if isinstance(fn, Function):
        return fn
    if not callable(fn):
        raise PipelineError(
            f"{owner}: `fn` must be callable, got {type(fn).__name__} ({fn!r:.80}); "
            f"write `{owner}(lambda batch: ...)`."
        )
    return hold(fn, f"{owner}: `fn`", "pass a plain function that calls it", Function)


def takes_second(fn: Any, name: str) -> bool:
    """Whether to call `fn(value, second)` rather than `fn(value)`, by its signature.

    A second parameter counts if it has no default, or if it is called `name`.
    """
    return len(arguments_taken(fn, ("", name), least=1)) == 2


def arguments_taken(fn: Any, names: tuple[str, ...], least: int = 0) -> tuple[str, ...]:
    """Which of these arguments, in their order, to call `fn` with, by its own names for them.

    The first `least` are passed in any case. A further one is if `fn` has no default for it, or
    calls it by that name.
    """
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # some built-ins have no signature
        return names[:least]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p for p in parameters if p.kind in kinds]
    taken = names[:least]
    for name, parameter in list(zip(names, positional, strict=False))[least:]:
        if parameter.default is not inspect.Parameter.empty and parameter.name != name:
            break
        taken += (parameter.name,)
    return taken


def as_decision(keep: Any, owner: str) -> Any:
    """What a filter's function returned, if it is one yes or no."""
    array = isinstance(keep, jax.Array | np.ndarray | np.generic)
    found = f"{keep.dtype}{list(keep.shape)}" if array else type(keep).__name__
    if found not in ("bool[]", "bool"):
        raise PipelineError(
            f"{owner}: the function must return one True or False per element, returned "
            f"{found}; write a comparison, and `.any()` or `.all()` over axes."
        )
    return jnp.asarray(keep)
