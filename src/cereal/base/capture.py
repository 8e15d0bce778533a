"""Datasets that a traced function closes over.

If a function under `jax.jit` closes over a loader, JAX writes the loader's arrays into the program
as constants. So every public method of sources and loaders calls `resolve`:

    under `cereal.jit`  the arrays are replaced by arguments of the compiled function
    under `jax.jit`     large arrays warn, once, with the line to write
    otherwise           nothing happens
"""

from __future__ import annotations

import functools
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard, TypeVar

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.extend.core import get_opaque_trace_state

from .errors import CaptureWarning, UsageError
from .fresh_thread import in_fresh_thread

WARN_BYTES = 64 * 2**20
N = TypeVar("N")


class Discovered(BaseException):
    """Ends a trace under `cereal.jit` that met arrays which are not arguments yet.

    Not an `Exception`, so that a user's `except Exception` does not swallow it.
    """

    def __init__(self, arrays: Sequence[jax.Array]) -> None:
        super().__init__("internal: a new captured loader was found")
        self.arrays = tuple(arrays)


class _Stack(threading.local):
    def __init__(self) -> None:
        self.frames: list[dict[int, Any]] = []


_stack = _Stack()
_warned: weakref.WeakValueDictionary[int, jax.Array] = weakref.WeakValueDictionary()


@contextmanager
def substitution(arrays: Sequence[jax.Array], tracers: Sequence[Any]) -> Iterator[None]:
    """Within it, loaders that hold `arrays` use `tracers` instead, on this thread."""
    frame = {id(a): t for a, t in zip(arrays, tracers, strict=True)}
    _stack.frames.append(frame)
    try:
        yield
    finally:
        _stack.frames.pop()


def resolve(node: N, state: Any = None) -> N:
    """The same source or loader; under `cereal.jit`, its captured arrays are replaced by arguments.

    `state` is the caller's other argument. If it holds a tracer, JAX may be recording a program.
    """
    if _stack.frames:
        return _substitute(node, _stack.frames[-1])
    if state is None:
        return node
    if any_traced(state):
        _refuse_in_shard_map(node)
        nbytes = sum(leaf.nbytes for leaf in jax.tree.leaves(node) if is_concrete(leaf))
        if nbytes >= WARN_BYTES and staging():
            _warn(node, nbytes)
    return node


def _refuse_in_shard_map(node: Any) -> None:
    """Refuses arrays on several devices that a function under `shard_map` closes over."""
    if not jax.sharding.get_abstract_mesh().manual_axes:
        return
    for leaf in jax.tree.leaves(node):
        if is_concrete(leaf) and len(leaf.sharding.device_set) > 1:
            raise UsageError(
                "a function under `shard_map` closes over a loader whose data lies on several "
                "devices, and there every device runs the function by itself; pass the loader as "
                "an argument: `jax.shard_map(fn, mesh=mesh, in_specs=(P(), P()), ...)"
                "(loader, state)`."
            )


def eager() -> bool:
    """Whether nothing is traced on this thread.

    The bet: JAX's trace state is equal in all threads that trace nothing. To read it costs 1 µs;
    what `staging` does otherwise costs an operation on the device. If the bet is lost,
    `tests/base/test_capture.py` fails first:
    `test_nothing_is_traced_only_outside_of_all_transformations_on_any_thread`.
    """
    return get_opaque_trace_state() == _no_trace()


@functools.cache
def _no_trace() -> Any:
    """The trace state of a new thread. (This thread may be tracing already, if cereal is imported
    inside of a traced function.)"""
    return in_fresh_thread(get_opaque_trace_state)


def staging() -> bool:
    """Whether operations are being recorded into a program (as under `jit`, not `vmap`)."""
    if eager():
        return False
    return is_traced(jnp.add(np.uint32(0), np.uint32(0)))


def is_traced(x: Any) -> TypeGuard[Any]:
    """Whether this is a tracer: it has no values yet, but stands for an array under `jit`, `vmap`
    or `grad`."""
    return isinstance(x, jax.core.Tracer)


def any_traced(tree: Any) -> bool:
    """Whether any leaf of a tree is traced."""
    return any(map(is_traced, jax.tree.leaves(tree)))


def is_concrete(leaf: Any) -> bool:
    """Whether this is an array with values, not a tracer."""
    return isinstance(leaf, jax.Array) and not is_traced(leaf)


def _substitute(node: N, frame: dict[int, Any]) -> N:
    leaves, structure = jax.tree.flatten(node)
    unknown = [x for x in leaves if is_concrete(x) and id(x) not in frame]
    if unknown and staging():
        raise Discovered(list({id(x): x for x in unknown}.values()))
    return jax.tree.unflatten(structure, [frame.get(id(x), x) for x in leaves])


def _warn(node: Any, nbytes: int) -> None:
    largest = max((x for x in jax.tree.leaves(node) if is_concrete(x)), key=lambda x: x.nbytes)
    if id(largest) in _warned:
        return
    _warned[id(largest)] = largest
    warnings.warn(
        f"a loader over {nbytes / 2**20:,.0f} MB is captured by a function under `jax.jit`: its "
        f"data is written into the program, which takes minutes and a multiple of the memory. "
        f"Pass it as an argument, `jax.jit(lambda loader, state: loader.next_batch(state))"
        f"(loader, state)`, or write `@cereal.jit` in place of `@jax.jit`.",
        CaptureWarning,
        stacklevel=callers_level(),
    )


def callers_level() -> int:
    """The `stacklevel` of the first caller above `_warn` that is neither cereal's nor JAX's."""
    frame, level, ours = sys._getframe(1), 1, ("cereal.", "jax.")
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(ours):
        frame, level = frame.f_back, level + 1
    return level
