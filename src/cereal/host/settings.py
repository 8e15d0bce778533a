"""The settings of a thread, which a worker takes over from the thread that it works for.

These are all settings of JAX that a `with` can change, also meshes (`jax.set_mesh`); and all
context variables of Python, such as NumPy's `errstate`.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import threading
from contextvars import Context
from typing import Any

import jax

from ..base.fresh_thread import in_fresh_thread
from ..base.jax_internals import set_holder, thread_holders, thread_options, trace_context

_NOTHING = contextlib.nullcontext()
_MISSING = object()


class Settings:
    """All settings of one thread that a pipeline may depend on."""

    __slots__ = ("_glance", "_thread", "_variables", "values")

    def __init__(self, values: tuple[Any, ...], variables: Context | None) -> None:
        self.values = values  # (holder, value) for each setting of JAX that the thread has set
        self._variables = variables
        self._thread, self._glance = threading.get_ident(), _glance()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Settings):
            return NotImplemented
        return self.values == other.values and self._variables == other._variables

    def __hash__(self) -> int:
        return hash(self.values)

    def are_here(self) -> bool:
        """Whether this thread has these settings. Takes 0.5 µs on the thread that they are from."""
        if self._thread == threading.get_ident() and self._glance == _glance():
            return self._variables is None or self._variables == contextvars.copy_context()
        return self == current_settings()

    def __call__(self, *, executes: bool = True) -> contextlib.AbstractContextManager[Any]:
        """Within it, this thread has these settings. `executes=False`: JAX refuses to run."""
        if executes and not self.values and threading.get_ident() != self._thread:
            variables = self._variables  # the common case: a worker, and nothing is set
            if variables is None or variables == contextvars.copy_context():
                return _NOTHING
        elif executes and self.are_here():
            return _NOTHING
        within = contextlib.ExitStack()
        self._enter_values(within)
        self._enter_variables(within)
        if not executes:
            within.enter_context(jax.no_execution())
        return within

    def _enter_values(self, within: contextlib.ExitStack) -> None:
        wanted = dict(self.values)
        if threading.get_ident() == self._thread:  # it may have set other options since
            wanted = {**dict.fromkeys(dict(_local_values()), _unset()), **wanted}
        for holder, value in wanted.items():
            before = holder.get_local()
            if before is not value:
                within.callback(set_holder, holder, before, _unset())
                set_holder(holder, value, _unset())

    def _enter_variables(self, within: contextlib.ExitStack) -> None:
        for variable, value in () if self._variables is None else self._variables.items():
            if variable.get(_MISSING) is not value:
                within.callback(variable.reset, variable.set(value))


def current_settings() -> Settings:
    """The settings of this thread."""
    return Settings(_local_values(), contextvars.copy_context())


def settings_of_program() -> Settings:
    """The settings of JAX while a function is traced, for its callbacks. Without context variables:
    a program lives long, and would keep their values alive. And without meshes, which change while
    JAX traces."""
    options = set(map(id, thread_options()))
    return Settings(tuple(each for each in _local_values() if id(each[0]) in options), None)


@functools.cache
def _getters() -> tuple[Any, ...]:
    return tuple((holder, holder.get_local) for holder in thread_holders())


@functools.cache
def _unset() -> Any:
    """What a holder returns if this thread has not set it."""
    return in_fresh_thread(lambda: thread_holders()[0].get_local()) if thread_holders() else None


def _local_values() -> tuple[Any, ...]:
    """What is set for this thread: (holder, value). Takes a few microseconds."""
    unset = _unset()
    return tuple([(h, value) for h, get in _getters() if (value := get()) is not unset])


def _glance() -> Any:
    """The settings that matter most, read quickly."""
    config: Any = jax.config
    return (trace_context() or _local_values)(), config.jax_default_prng_impl
