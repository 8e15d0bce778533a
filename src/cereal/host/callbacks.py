"""Python functions that run inside compiled programs, and the errors that they raise.

A callback should not raise an exception: on a GPU this breaks every later callback of the process,
and on several devices the others wait for ever for the one that stopped. So:

    called by a loader      the error is kept, the batch is masked, and the loader raises the error
    in the user's own jit   on one device, the callback raises it, and JAX reports it; on several
                            devices, the batch is poisoned, and the next call raises it (`unseen`)
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..base.errors import UsageError
from ..base.foreign_errors import maps_ordered_callback
from ..base.unseen import keep_unseen, raise_unseen, without_frames

_lock = threading.Lock()
_watched: Counter[Hashable] = Counter()  # callbacks whose errors a loader is waiting for
_failed: dict[Hashable, list[BaseException]] = {}


def guarded(
    fn: Callable[..., Any], identity: Hashable, on_failure: Callable[..., Any]
) -> Callable[..., Any]:
    """A callback of (devices, *args) that calls `fn(*args)`. If that raises, the error is kept, and
    the result is `on_failure(*args)`; `devices` is `device_count_of_program()`."""

    return lambda devices, *args: guard(
        identity, devices, lambda: fn(*args), lambda: on_failure(*args)
    )


def guard(
    identity: Hashable, devices: Any, run: Callable[[], Any], on_failure: Callable[[], Any]
) -> Any:
    """The result of `run`. If it raises, the error is kept and the result is that of `on_failure`;
    but in the user's own program on one device, the error is raised."""
    try:
        return run()
    except BaseException as error:
        with _lock:
            watched = _watched[identity] > 0
            if watched:
                _failed.setdefault(identity, []).append(error)
        if not watched:
            if np.asarray(devices).max() == 1:
                raise with_notes(without_frames(error)) from None
            keep_unseen(identity, error)
        return on_failure()


def poison(tree: Any) -> Any:
    """Arrays to use if the real ones could not be made: NaN; False and 0 for types without NaN.

    A poisoned mask is all False. A loss that ignores masks becomes NaN.
    """

    def one(spec: Any) -> np.ndarray:
        floats = jnp.issubdtype(spec.dtype, jnp.inexact)
        return np.full(spec.shape, np.nan if floats else 0, spec.dtype)

    return jax.tree.map(one, tree)


def with_notes(error: BaseException) -> BaseException:
    """The error with its notes in its message, since JAX reports only the message."""
    notes = getattr(error, "__notes__", None)
    try:
        return type(error)("\n".join([str(error), *notes])) if notes else error
    except Exception:  # its class cannot be made from one text
        return error


@contextmanager
def raising(identities: tuple[Hashable, ...]) -> Iterator[None]:
    """Within it, a pipeline with these callbacks is called; at its end, raises their errors."""
    raise_kept(identities)
    with _lock:
        _watched.update(identities)
    try:
        yield
    except ValueError as error:
        if maps_ordered_callback(error):
            raise UsageError(
                "a HostCallbackTransform runs once per batch, in order, which has no meaning "
                "under `vmap` (JAX refuses it), and neither have steps of environments that "
                "Python runs; call the callback outside of the `vmap`, or remove the stage from "
                "the pipeline that is mapped."
            ) from error
        raise
    finally:
        with _lock:
            _watched.subtract(identities)
    raise_kept(identities)


def raise_kept(identities: tuple[Hashable, ...]) -> None:
    """Raises a kept error of these callbacks, or an error of any callback that was never raised."""
    if _failed:
        with _lock:
            kept = [error for identity in identities for error in _failed.pop(identity, [])]
        if kept:
            raise kept[0]
    raise_unseen()


def as_numpy(values: Any) -> Any:
    """Read-only NumPy views, in new containers, of what a compiled program gives to a callback."""

    def view(x: Any) -> np.ndarray:
        array = np.asarray(x).view()
        array.flags.writeable = False
        return array

    return jax.tree.map(view, values)
