"""User functions as parts of a pytree."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..base.errors import PipelineError
from ..base.pytree import pytree_dataclass
from .opaque import Opaque, hold


@pytree_dataclass
class Function(Opaque):
    """A callable inside a pytree.

    A plain function is part of the structure and compared by identity: the same function is the
    same program. A callable that is itself a pytree (an Equinox module) is a child: its arrays are
    arguments of programs, like all other arrays.
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
    """A function's name; for a callable object its class's, for a partial its function's."""
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
    """Which of these arguments to pass to `fn`, in this order; as `fn` itself names them.

    The first `least` are always passed. A further one is passed if `fn` has no default for it, or
    has a parameter of that name there.
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
    """The result of a filter's function, or an error if it is not one bool."""
    array = isinstance(keep, jax.Array | np.ndarray | np.generic)
    found = f"{keep.dtype}{list(keep.shape)}" if array else type(keep).__name__
    if found not in ("bool[]", "bool"):
        raise PipelineError(
            f"{owner}: the function must return one True or False per element, returned "
            f"{found}; write a comparison, and `.any()` or `.all()` over axes."
        )
    return jnp.asarray(keep)
