"""Functions of the user's that JAX traces inside of a trace: bodies of scans, branches, and so on.

JAX keeps their traces by the identity of the function, and gives the old one when what they refer
to has changed. So they are forgotten before their program is traced again. Not those under the
user's own `jax.jit`, which promises to keep them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr

from .library import is_library_file

# A bet on private names (`tests/core/test_inner_functions.py` fails when it is lost).
_CACHES = {"interpreters.partial_eval": "trace_to_jaxpr", "ad_checkpoint": "_trace_to_jaxpr"}
_JIT = ("jit", "pjit")
_seen: set[tuple[str, int]] = set()  # file and line


def forget_seen() -> None:
    """Makes JAX forget the traces of all such functions that were met so far."""
    if _seen:
        _forget(_seen)


def met_new(closed: Any) -> bool:
    """Whether a program has such functions that are new here: then it must be traced once more."""
    new = {place for info in _inside(closed) if (place := _place(info))} - _seen
    _seen.update(new)
    return bool(new) and _forget(new)


def _forget(places: set[tuple[str, int]]) -> bool:
    found = False
    for cache in _caches():
        # A key begins with a weak reference to the function.
        refs = [key[0] for key in cache.cache_keys() if isinstance(key, tuple) and key]
        kept = {id(fn): fn for ref in refs if callable(ref) and (fn := ref()) is not None}
        for fn in kept.values():
            code = getattr(fn, "__code__", None)
            if code is not None and (code.co_filename, code.co_firstlineno) in places:
                cache.evict_weakref(fn)
                found = True
    return found


@functools.cache
def _caches() -> list[Any]:
    """JAX's tables of traces; where it has none of these names, its own rule holds."""
    found = []
    for module, name in _CACHES.items():
        with contextlib.suppress(ImportError):
            found.append(getattr(importlib.import_module(f"jax._src.{module}"), name, None))
    return [x for x in found if hasattr(x, "cache_keys") and hasattr(x, "evict_weakref")]


def _inside(program: Any) -> Iterator[str]:
    """Where the functions inside of a program were written."""
    for eqn in getattr(program, "jaxpr", program).eqns:
        if eqn.primitive.name not in _JIT:
            for value in eqn.params.values():
                for each in value if isinstance(value, tuple | list) else (value,):
                    if isinstance(each, Jaxpr | ClosedJaxpr):
                        inner: Any = each
                        info = getattr(getattr(inner, "jaxpr", inner), "debug_info", None)
                        yield getattr(info, "func_src_info", None) or ""
                        yield from _inside(inner)


@functools.lru_cache(maxsize=1024)
def _place(info: str) -> tuple[str, int] | None:
    """The file and line in "body at /home/me/train.py:52", if it is the user's."""
    name, _, line = info.partition(" at ")[2].rpartition(":")
    return (name, int(line)) if line.isdigit() and not is_library_file(name) else None
