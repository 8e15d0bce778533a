"""Private names of JAX, which it may change at any time. Only this file uses them.

Each function says what it bets on, what happens if the bet is lost, and which test fails first.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

import jax
from jax.experimental import compute_on

# This option says which thread may run JAX, so another thread must not take it over.
_NOT_FOR_OTHERS = ("jax_thread_guard",)
_TRACES = {"interpreters.partial_eval": "trace_to_jaxpr", "ad_checkpoint": "_trace_to_jaxpr"}


@functools.cache
def trace_context() -> Callable[[], Any] | None:
    """A quick function that returns all settings of this thread that a trace depends on.

    The bet: `jax._src.config.trace_context` exists. If it is lost, this returns None: nothing is
    proved, and functions are traced again at every call. `tests/functions/test_meaning.py`,
    `test_the_context_of_a_trace_is_that_of_the_settings`, fails first.
    """
    return getattr(importlib.import_module("jax._src.config"), "trace_context", None)


@functools.cache
def thread_options() -> tuple[Any, ...]:
    """The options of JAX that a thread can set for itself, as objects that hold their values.

    The bet: `jax.config` has them in `_value_holders`, and they have `get_local` and `set_local`.
    If it is lost, this finds none: workers read with JAX's defaults, not with the settings of the
    caller. `tests/host/test_settings.py`,
    `test_every_option_of_jax_that_a_thread_can_have_is_taken_along`, fails first.
    """
    options = getattr(jax.config, "_value_holders", {}).values()
    states = [each for each in options if hasattr(each, "get_local")]
    return tuple(each for each in states if each.name not in _NOT_FOR_OTHERS)


@functools.cache
def thread_holders() -> tuple[Any, ...]:
    """These options, and what else is local to a thread, such as the mesh of `jax.set_mesh`.

    The bet: the others are instances of the options' base class. They are in the module of that
    class (JAX 0.10) or in the module of meshes (0.11). The test is that of `thread_options`.
    """
    options = thread_options()
    if not options:
        return ()
    kind = next(base for base in type(options[0]).__mro__[1:] if hasattr(base, "get_local"))
    rooms = [sys.modules.get(name) for name in (type(options[0]).__module__, "jax._src.mesh")]
    beside = [each for room in rooms if room is not None for each in vars(room).values()]
    found = {id(each): each for each in beside if type(each) is kind}
    return (*options, *found.values())


def set_holder(holder: Any, value: Any, unset: Any) -> None:
    """Gives one of these holders a value for this thread; the value `unset` removes it.

    The bet: C++ has a copy of some values, and `_update_thread_local_hook` updates it. If the bet
    is lost, such an option has no effect in workers. `tests/host/test_settings.py`,
    `test_whatever_is_set_for_a_caller_reaches_the_thread_that_reads`, fails first.
    """
    holder.set_local(value)
    tell = getattr(holder, "_update_thread_local_hook", None)
    if tell is not None:
        tell(None if value is unset else value)


@functools.cache
def trace_caches() -> tuple[Any, ...]:
    """JAX's caches of the traces of inner functions (bodies of scans, branches).

    The bet: these modules have them, and they have `cache_keys` and `evict_weakref`. If it is lost,
    this finds none. Then an inner function keeps what it referred to when JAX first traced it.
    `tests/functions/test_inner_functions.py`,
    `test_an_inner_function_does_what_it_refers_to_now`, fails first.
    """
    found = []
    for module, name in _TRACES.items():
        with contextlib.suppress(ImportError):
            found.append(getattr(importlib.import_module(f"jax._src.{module}"), name, None))
    return tuple(x for x in found if hasattr(x, "cache_keys") and hasattr(x, "evict_weakref"))


def written_at(program: Any) -> tuple[str, int] | None:
    """The file and the line of the function that a program was traced from, if it is known.

    The bet: `debug_info.func_src_info` reads "body at /home/me/train.py:52". If it is lost, inner
    functions are not traced again when something that they refer to has changed. The test of
    `trace_caches` fails first.
    """
    info = getattr(getattr(program, "jaxpr", program), "debug_info", None)
    return _file_and_line(getattr(info, "func_src_info", None) or "")


@functools.lru_cache(maxsize=1024)
def _file_and_line(info: str) -> tuple[str, int] | None:
    name, _, line = info.partition(" at ")[2].rpartition(":")
    return (name, int(line)) if line.isdigit() else None


def run_on_host(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` as a part of a program that the host computes, over arrays in its memory.

    The bet: this experimental decorator exists. JAX 0.10 calls it `compute_on2`, 0.11 `compute_on`.
    If it is lost, data in pinned memory cannot be read. `tests/device/test_gather.py`,
    `test_pinned_host_memory_serves_next_jit_scan_and_vmap`, fails first.
    """
    decorate: Any = getattr(compute_on, "compute_on2", compute_on.compute_on)
    return decorate(fn, compute_type="device_host", out_memory_spaces=jax.memory.Space.Host)
