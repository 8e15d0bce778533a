"""User functions as parts of a pytree."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .errors import PipelineError
from .held import Held
from .pytree import pytree_dataclass


@pytree_dataclass
class Function(Held):
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
        inner = getattr(self.value, "func", self.value)  # functools.partial
        return getattr(inner, "__name__", type(self.value).__name__)


def as_function(fn: Any, owner: str) -> Function:
    """Checks that `fn` can be part of a pipeline and wraps it."""
    if isinstance(fn, Function):
        return fn
    if not callable(fn):
        raise PipelineError(
            f"{owner}: `fn` must be callable, got {type(fn).__name__} ({fn!r:.80}); "
            f"write `{owner}(lambda batch: ...)`."
        )
    if not jax.tree_util.all_leaves([fn]):
        return Function(fn)
    try:
        hash(fn)
    except TypeError as error:
        raise PipelineError(
            f"{owner}: `fn` of type {type(fn).__name__} is neither hashable nor a pytree, so JAX "
            f"cannot tell whether it changed; pass a plain function that calls it."
        ) from error
    return Function(None, fn)


def takes_second(fn: Any, name: str) -> bool:
    """Whether to call `fn(value, second)` rather than `fn(value)`: asked of its signature.

    A second parameter counts if it has no default, or if it is called `name`.
    """
    found = _positional(fn)
    if len(found) < 2:
        return False
    return found[1].default is inspect.Parameter.empty or found[1].name == name


def second_parameter(fn: Any) -> str | None:
    """What the second parameter of a function is called."""
    found = _positional(fn)
    return found[1].name if len(found) > 1 else None


def _positional(fn: Any) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # some built-ins have no signature; they take one value
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p for p in parameters if p.kind in kinds]


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
