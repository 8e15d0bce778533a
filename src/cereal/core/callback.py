"""Python functions that run inside compiled programs, and the errors that they raise."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from .errors import UsageError

_lock = threading.Lock()
_failures: list[BaseException] = []


def recording(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a callback so that what it raises can be found again on the Python side."""

    def call(*args: Any) -> Any:
        try:
            return fn(*args)
        except Exception as error:
            with _lock:
                del _failures[:-8]  # failures inside the user's own jit are never collected
                _failures.append(error)
            raise

    return call


@contextmanager
def reraise_user_error() -> Iterator[None]:
    """Raises the error of the user's callback itself, not JAX's report of it."""
    try:
        yield
    except ValueError as error:
        if "vmap" in str(error) and "ordered" in str(error):
            raise UsageError(
                "a HostCallbackTransform runs once per batch, in order, which has no meaning "
                "under `vmap` (JAX refuses it); call the callback outside of the `vmap`, or "
                "remove the stage from the pipeline that is mapped."
            ) from error
        raise
    except jax.errors.JaxRuntimeError as error:
        with _lock:
            found = [e for e in _failures if f"{type(e).__name__}: {e}" in str(error)]
            _failures.clear()
        if not found:
            raise
        raise found[-1] from None


def as_numpy(values: Any) -> Any:
    """Read-only NumPy views, in fresh containers, of what a compiled program passes out."""

    def view(x: Any) -> np.ndarray:
        array = np.asarray(x).view()
        array.flags.writeable = False
        return array

    return jax.tree.map(view, values)
