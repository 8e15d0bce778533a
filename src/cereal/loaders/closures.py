"""What a function is made of: its code, and the values that it refers to.

A function that is defined inside the loop over epochs is a new object every time and must not be
compiled every time. Two functions are one if they have the same code over the same values:
constants by value, other objects by identity, functions that they call by their own code. And
arrays that a function closes over (the parameters, say, which are new in every epoch) can be
lifted out of it, to be arguments of the compiled program.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import jax
import jax.core

_PLAIN = (int, float, str, bytes, bool, type(None))


class Identity(NamedTuple):
    """`key` is equal for equal functions as long as the objects in `held` live."""

    key: Hashable
    held: tuple[Any, ...]


class Lifted(NamedTuple):
    """A function without its arrays: `rebuild(arrays)` is the function again."""

    identity: Identity
    arrays: list[Any]
    rebuild: Callable[[list[Any]], Any]


def identity_of(fn: Any) -> Identity | None:
    """What tells this function from others; None if it holds values of a trace."""
    held: list[Any] = [fn]
    try:
        key = _key(fn, held, set())
        hash(key)
    except (_TracedError, TypeError):
        return None
    return Identity(key, tuple(held))


def lifted(fn: Any) -> Lifted | None:
    """The function and the arrays that it refers to, apart; None if it holds values of a trace."""
    if not inspect.isfunction(fn):
        identity = identity_of(fn)
        return None if identity is None else Lifted(identity, [], lambda _: fn)
    held: list[Any] = []
    arrays: list[Any] = []
    parts: list[Hashable] = []
    trees: dict[str, Any] = {}
    try:
        for name, value in _references(fn):
            leaves, structure = jax.tree.flatten(value)
            if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
                return None
            if not any(isinstance(leaf, jax.Array) for leaf in leaves):
                parts.append((name, _key(value, held, set())))
                continue
            lifts = [isinstance(leaf, jax.Array) for leaf in leaves]
            kept = [None if lift else leaf for lift, leaf in zip(lifts, leaves, strict=True)]
            trees[name] = (structure, lifts, kept)
            arrays += [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
            rest = [_key(x, held, set()) for x in leaves if not isinstance(x, jax.Array)]
            parts.append((name, structure, tuple(lifts), tuple(rest)))
        key = (fn.__code__, id(fn.__globals__), tuple(parts))
        hash(key)
    except (_TracedError, TypeError):
        return None

    # Whoever keeps `rebuild` must not keep the arrays.
    empty = _with_values(fn, {name: None for name in trees if not name.startswith("global ")})

    def rebuild(arrays: list[Any]) -> Any:
        given = iter(arrays)
        values = {
            name: jax.tree.unflatten(
                structure,
                [next(given) if lift else leaf for lift, leaf in zip(lifts, leaves, strict=True)],
            )
            for name, (structure, lifts, leaves) in trees.items()
        }
        return _with_values(empty, values)

    return Lifted(Identity(key, tuple(held)), arrays, rebuild)


class _TracedError(Exception):
    """Met a value of a trace."""


def _key(value: Any, held: list[Any], seen: set[int]) -> Hashable:
    if type(value) in _PLAIN:
        return (type(value), value)
    if isinstance(value, jax.core.Tracer):
        raise _TracedError
    held.append(value)
    if inspect.isfunction(value) and not _is_library(value):
        if id(value) in seen:
            return "itself"
        seen.add(id(value))
        inside = tuple((name, _key(held_by, held, seen)) for name, held_by in _references(value))
        return (value.__code__, id(value.__globals__), inside)
    if isinstance(value, dict | list | tuple):  # whose contents may be exchanged
        leaves, structure = jax.tree.flatten(value)
        held.extend(leaves)
        return (structure, tuple(_leaf_key(leaf) for leaf in leaves))
    return id(value)


def _leaf_key(leaf: Any) -> Hashable:
    if isinstance(leaf, jax.core.Tracer):
        raise _TracedError
    return (type(leaf), leaf) if type(leaf) in _PLAIN else id(leaf)


def _is_library(fn: Any) -> bool:
    module = fn.__module__ or ""
    return module.split(".")[0] in ("jax", "cereal", "numpy", "optax", "equinox", "flax")


def _references(fn: Any) -> Iterator[tuple[str, Any]]:
    """The cells, defaults and globals of a function, by name."""
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            yield f"cell {name}", cell.cell_contents
        except ValueError as error:  # empty still: a function that refers to itself
            raise TypeError(name) from error
    for number, value in enumerate(fn.__defaults__ or ()):
        yield f"default {number}", value
    for name, value in (fn.__kwdefaults__ or {}).items():
        yield f"keyword {name}", value
    for name in sorted(_names(fn.__code__)):
        if name in fn.__globals__:
            yield f"global {name}", fn.__globals__[name]


def _names(code: types.CodeType) -> set[str]:
    """All names in a function's code and in functions defined inside it."""
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return set(code.co_names).union(*(_names(each) for each in inner))


def _with_values(fn: Any, values: dict[str, Any]) -> Any:
    """The same function over other values."""
    cells = tuple(
        types.CellType(values[f"cell {name}"]) if f"cell {name}" in values else cell
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
    )
    names = {key.removeprefix("global "): v for key, v in values.items() if key[:7] == "global "}
    scope = {**fn.__globals__, **names} if names else fn.__globals__
    defaults = tuple(
        values.get(f"default {number}", value) for number, value in enumerate(fn.__defaults__ or ())
    )
    made = types.FunctionType(fn.__code__, scope, fn.__name__, defaults or None, cells)
    keywords = fn.__kwdefaults__ or {}
    made.__kwdefaults__ = {k: values.get(f"keyword {k}", v) for k, v in keywords.items()} or None
    return made
