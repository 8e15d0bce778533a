"""Python functions that run inside compiled programs, and the errors that they raise.

An exception must not leave a callback unless it has to: on a GPU it breaks every later callback of
the process, and on several devices the others wait for the one that stopped. So:

    called by a loader      the error is kept, the batch is masked, and the loader raises the error
    in the user's own jit   on one device it is raised, as JAX reports it; on several it is printed
                            and kept, and the next call of the loader raises it
"""

from __future__ import annotations

import threading
import traceback
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from .errors import UsageError

_lock = threading.Lock()
_watched: Counter[Hashable] = Counter()  # callbacks whose errors a loader is waiting for
_failed: dict[Hashable, list[BaseException]] = {}


def guarded(
    fn: Callable[..., Any], identity: Hashable, on_failure: Callable[..., Any]
) -> Callable[..., Any]:
    """A callback that keeps what `fn` raises, and gives `on_failure(*args)` instead."""

    return lambda *args: guard(identity, lambda: fn(*args), lambda: on_failure(*args))


def guard(identity: Hashable, run: Callable[[], Any], on_failure: Callable[[], Any]) -> Any:
    """What `run` returns; if it raises, the error is kept and `on_failure` stands in."""
    try:
        return run()
    except BaseException as error:
        with _lock:
            watched = _watched[identity] > 0
            if not watched and jax.device_count() == 1:
                raise with_notes(error) from error
            kept = _failed.setdefault(identity, [])
            if watched:
                kept.append(error)
                return on_failure()
        traceback.print_exception(error)
        if not kept:  # the first one, if nobody comes for it
            kept.append(_light(error))
        return on_failure()


def _light(error: BaseException) -> BaseException:
    """The error with the frames of the user's code alone, and without what these held: an error
    that is kept must not keep a dataset."""
    trace = error.__traceback__
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "")
        if not module.startswith(("cereal.", "jax.")):
            break
        trace = trace.tb_next
    traceback.clear_frames(trace)
    return error.with_traceback(trace)


def with_notes(error: BaseException) -> BaseException:
    """The error with its notes in its text: JAX reports no more than that."""
    notes = getattr(error, "__notes__", None)
    if not notes:
        return error
    try:
        again = type(error)("\n".join([str(error), *notes]))
    except Exception:  # it is made of something else
        return error
    return again.with_traceback(error.__traceback__)


def forget_kept(number: int) -> None:
    """Drops kept errors of data on the host that is gone."""
    for identity in [each for each in list(_failed) if isinstance(each, tuple) and number in each]:
        _failed.pop(identity, None)


@contextmanager
def raising(identities: tuple[Hashable, ...]) -> Iterator[None]:
    """Around a call of a pipeline with these callbacks: raises what they raised."""
    raise_kept(identities)
    with _lock:
        _watched.update(identities)
    try:
        yield
    except ValueError as error:
        if "vmap" in str(error) and "ordered" in str(error):
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
    """Raises what callbacks of these identities raised since."""
    if not _failed:
        return
    with _lock:
        kept = [error for identity in identities for error in _failed.pop(identity, [])]
    if kept:
        raise kept[0]


def as_numpy(values: Any) -> Any:
    """Read-only NumPy views, in fresh containers, of what a compiled program passes out."""

    def view(x: Any) -> np.ndarray:
        array = np.asarray(x).view()
        array.flags.writeable = False
        return array

    return jax.tree.map(view, values)
