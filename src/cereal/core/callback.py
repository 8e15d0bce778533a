"""Python functions that run inside compiled programs, and the errors that they raise.

An exception must not leave a callback unless it has to: on a GPU it breaks every later callback of
the process, and on several devices the others wait for the one that stopped. So:

    called by a loader      the error is kept, the batch is masked, and the loader raises the error
    in the user's own jit   in a program on one device it is raised, as JAX reports it; in one on
                            several the batch is poisoned, and the next call raises it (`unseen`)
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

from .errors import UsageError
from .foreign_errors import maps_ordered_callback
from .unseen import keep_unseen, raise_unseen, without_frames

_lock = threading.Lock()
_watched: Counter[Hashable] = Counter()  # callbacks whose errors a loader is waiting for
_failed: dict[Hashable, list[BaseException]] = {}


def guarded(
    fn: Callable[..., Any], identity: Hashable, on_failure: Callable[..., Any]
) -> Callable[..., Any]:
    """A callback of (devices, *args) that keeps what `fn(*args)` raises, and gives
    `on_failure(*args)` instead; `devices` is `device_count_of_program()`."""

    return lambda devices, *args: guard(
        identity, devices, lambda: fn(*args), lambda: on_failure(*args)
    )


def guard(
    identity: Hashable, devices: Any, run: Callable[[], Any], on_failure: Callable[[], Any]
) -> Any:
    """What `run` returns; if it raises, the error is kept and `on_failure` stands in, unless a
    program on one device can raise it."""
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
    """What stands in for arrays that could not be made: NaN, and False and 0 where there is none.

    A mask of it is False everywhere, and a loss that does not look at masks is NaN.
    """

    def one(spec: Any) -> np.ndarray:
        floats = jnp.issubdtype(spec.dtype, jnp.inexact)
        return np.full(spec.shape, np.nan if floats else 0, spec.dtype)

    return jax.tree.map(one, tree)


def with_notes(error: BaseException) -> BaseException:
    """The error with its notes in its text: JAX reports no more than that."""
    notes = getattr(error, "__notes__", None)
    try:
        return type(error)("\n".join([str(error), *notes])) if notes else error
    except Exception:  # its class takes other arguments than a text
        return error


@contextmanager
def raising(identities: tuple[Hashable, ...]) -> Iterator[None]:
    """Around a call of a pipeline with these callbacks: raises what they raised."""
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
    """Raises what callbacks of these identities raised since, or of any that nobody has seen."""
    if _failed:
        with _lock:
            kept = [error for identity in identities for error in _failed.pop(identity, [])]
        if kept:
            raise kept[0]
    raise_unseen()


def as_numpy(values: Any) -> Any:
    """Read-only NumPy views, in fresh containers, of what a compiled program passes out."""

    def view(x: Any) -> np.ndarray:
        array = np.asarray(x).view()
        array.flags.writeable = False
        return array

    return jax.tree.map(view, values)
