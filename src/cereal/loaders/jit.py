"""`cereal.jit`: like `jax.jit`, for functions that capture loaders."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

import jax

from ..base.capture import Discovered, eager, resolve, staging, substitution
from ..base.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")

# While `cereal.jit` traces, this is part of the key of every compilation cache of JAX. Otherwise a
# jitted helper that captures the same loader could reuse a trace that holds our arguments.
_trace_context = jax.make_user_context(None)
_CAPTURED = "cereal_captured_arrays"


class _Jitted:
    """A compiled function; the data of captured loaders become arguments of the program.

    fn(state)  --traced-->  met arrays of a loader: end the trace, make them arguments
               --traced-->  compiled(state, arrays)
    """

    def __init__(self, fn: Callable[..., Any], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, fn)
        self._arrays: tuple[jax.Array, ...] = ()
        self._lock = threading.Lock()

        @functools.wraps(fn)
        def traced(*args: Any, **kwargs: Any) -> Any:
            arrays, tracers = self._arrays, kwargs.pop(_CAPTURED)
            context = _trace_context(object())
            with context, substitution(arrays[: len(tracers)], tracers):
                return fn(*args, **kwargs)

        self._compiled = jax.jit(traced, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if eager():  # the fast way: no outer trace has put its own arrays in place of ours
            kwargs[_CAPTURED] = self._arrays
            try:
                return self._compiled(*args, **kwargs)
            except Discovered as found:
                self._learn(found.arrays)
        return self._with_arrays(self._compiled, args, kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """As `jax.jit(fn).lower`: `.compile()` gives a function of the same arguments."""
        return self._with_arrays(_ahead(self._compiled.lower), args, kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """As `jax.jit(fn).trace`; the captured arrays are among the inputs of its jaxpr."""
        return self._with_arrays(_ahead(self._compiled.trace), args, kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """As `jax.jit(fn).eval_shape`: shapes and dtypes of what it would return."""
        return self._with_arrays(self._compiled.eval_shape, args, kwargs)

    def clear_cache(self) -> None:
        """As `jax.jit(fn).clear_cache`."""
        self._compiled.clear_cache()  # type: ignore[attr-defined]

    def _with_arrays(self, call: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        while True:
            arrays = self._arrays
            try:
                # Inside a plain `jax.jit` the arrays would be captured after all: `resolve` warns.
                kwargs[_CAPTURED] = resolve(arrays, (args, kwargs) if staging() else None)
                return call(*args, **kwargs)
            except Discovered as found:
                self._learn(found.arrays)
                # All were arguments already, so it is an outer `cereal.jit` that must learn it.
                if len(self._arrays) == len(arrays):
                    raise

    def _learn(self, arrays: tuple[jax.Array, ...]) -> None:
        """Adds those arrays to the arguments that are not among them yet."""
        with self._lock:
            known = {id(a) for a in self._arrays}
            # Only appends: a trace that runs in another thread uses the first ones, in order.
            self._arrays += tuple(a for a in arrays if id(a) not in known)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)


class _Ahead:
    """A traced, lowered or compiled function, with the arrays that it captured.

    It wraps an object of `jax.stages`; a call passes the captured arrays on.
    """

    def __init__(self, stage: Any, arrays: Any) -> None:
        self._stage, self._arrays = stage, arrays

    def lower(self, *args: Any, **kwargs: Any) -> _Ahead:
        return _Ahead(self._stage.lower(*args, **kwargs), self._arrays)

    def compile(self, *args: Any, **kwargs: Any) -> _Ahead:
        return _Ahead(self._stage.compile(*args, **kwargs), self._arrays)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._stage(*args, **kwargs, **{_CAPTURED: self._arrays})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._stage, name)

    def __repr__(self) -> str:
        return f"{self._stage!r} of cereal.jit"


def _ahead(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: _Ahead(make(*args, **kwargs), kwargs[_CAPTURED])


@overload
def jit(fn: Callable[P, R], **options: Any) -> Callable[P, R]: ...
@overload
def jit(**options: Any) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def jit(fn: Any = None, **options: Any) -> Any:
    """Like `jax.jit`, for a function that uses loaders from outside: their data become arguments.

    Plain `jax.jit` writes captured data into the program: 1 GB takes a minute and three more
    gigabytes. Here it costs no more than an argument. `options` are those of `jax.jit`.

    >>> import cereal, numpy as np
    >>> source = cereal.ArraySampleSource(np.arange(8.0), ordering="sequential")
    >>> loader = cereal.DataLoader([source, cereal.BatchTransform(4)])
    >>> @cereal.jit
    ... def step(state):
    ...     batch, state, mask = loader.next_batch(state)
    ...     return batch.sum(), state
    >>> float(step(loader.init_state(0))[0])
    6.0
    """
    if "in_shardings" in options:
        raise UsageError(
            "`cereal.jit` takes no `in_shardings=`: captured data become arguments, which it would "
            "not cover; place the arguments with `jax.device_put`, or write `jax.jit` and pass the "
            "loader as an argument."
        )
    if fn is None:
        return functools.partial(jit, **options)
    if not callable(fn):
        raise UsageError(
            f"`cereal.jit` compiles a function, got {type(fn).__name__} ({fn!r:.60}); write "
            f"`cereal.jit(fn)`, or `@cereal.jit` above a `def`."
        )
    return _Jitted(fn, options)
