"""The user's functions that JAX traces inside of another trace: bodies of scans, branches.

JAX caches their traces by the identity of the function. If something that a function refers to has
changed, JAX still uses the old trace. So we remove these from JAX's cache before we trace their
program again. Functions under the user's own `jax.jit` stay: it promises to keep their traces.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jax.extend.core import (
    ClosedJaxpr,  # pyright: ignore[reportPrivateImportUsage]  # JAX 0.12
    Jaxpr,
)

from ..base.jax_internals import trace_caches, written_at
from .library import is_library_file

_JIT = ("jit", "pjit")
_seen: set[tuple[str, int]] = set()  # file and line


def forget_seen() -> None:
    """Removes from JAX's caches all such functions that we have seen so far."""
    if _seen:
        _forget(_seen)


def met_new(closed: Any) -> bool:
    """Whether we see such a function for the first time in this program. JAX may have used an old
    trace of it, so the program must be traced once more."""
    new = {place for place in _inside(closed) if not is_library_file(place[0])} - _seen
    _seen.update(new)
    return bool(new) and _forget(new)


def _forget(places: set[tuple[str, int]]) -> bool:
    found = False
    for cache in trace_caches():
        kept = {id(fn): fn for key in cache.cache_keys() if (fn := _function(key)) is not None}
        for fn in kept.values():
            code = getattr(fn, "__code__", None)
            if code is not None and (code.co_filename, code.co_firstlineno) in places:
                cache.evict_weakref(fn)
                found = True
    return found


def _function(key: Any) -> Any:
    """The function of an entry of the cache, which has a weak reference to it."""
    return key[0]() if isinstance(key, tuple) and key and callable(key[0]) else None


def _defined(fn: Any) -> tuple[str, int] | None:
    code = getattr(fn, "__code__", None)
    return None if code is None else (code.co_filename, code.co_firstlineno)


def _inside(program: Any) -> Iterator[tuple[str, int]]:
    """Where the functions inside of a program were written: file and line."""
    for eqn in getattr(program, "jaxpr", program).eqns:
        if eqn.primitive.name not in _JIT:
            for inner in inner_programs(eqn):
                place = written_at(inner)
                if place is not None:
                    yield place
                yield from _inside(inner)


def inner_programs(eqn: Any) -> Iterator[Any]:
    """The programs inside of an operation: the body of a scan, branches, what is jitted."""
    for value in eqn.params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            if isinstance(each, Jaxpr | ClosedJaxpr):
                yield getattr(each, "jaxpr", each)
