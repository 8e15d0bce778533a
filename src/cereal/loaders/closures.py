"""What a function is made of: its code, and the values that it refers to.

A function that is defined inside the loop over epochs is a new object every time and must not be
compiled every time. Two functions are one if they have the same code over the same values: numbers
and text by value, arrays by identity, functions, containers and the user's own objects by what
they are made of. And arrays that a function closes over (the parameters, say, which are new in
every epoch) can be lifted out of it, to be arguments of the compiled program.
"""

from __future__ import annotations

import functools
import inspect
import types
import zlib
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import jax
import jax.core
import numpy as np

from ..core.library import is_library, names_in

_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_DEEPEST = 12
_MOST_NESTED = 5  # functions in functions whose arrays are taken out


class Identity(NamedTuple):
    """`key` is equal for equal functions as long as the objects in `held` live."""

    key: Hashable
    held: tuple[Any, ...]


class Lifted(NamedTuple):
    """A function without its arrays: `rebuild(arrays)` is the function again."""

    identity: Identity
    arrays: list[Any]
    rebuild: Callable[[list[Any]], Any]


class _TracedError(Exception):
    """Met a value of a trace."""


def identity_of(fn: Any, *, deep: bool = True) -> Identity | None:
    """What tells this function from others; None if it cannot be told, as in a trace.

    Not `deep`: the user's own objects are taken by identity, not by what they hold.
    """
    made = _Key(deep)
    try:
        key = made.of(fn)
        hash(key)
    except (_TracedError, TypeError, ValueError):
        return None
    return Identity(key, (fn, *made.held))


def lifted(fn: Any) -> Lifted | None:
    """The function and the arrays that it refers to, apart; None if that cannot be done.

    Arrays in functions and `functools.partial`s that it refers to are taken out as well.
    """
    key = _Key()
    try:
        made = _lift(fn, key, ())
        hash(made.key)
    except (_TracedError, TypeError, ValueError):
        return None
    return Lifted(Identity(made.key, tuple(key.held)), made.arrays, made.rebuild)


class _Open(NamedTuple):
    """A value without its arrays; whoever keeps `rebuild` keeps none of them."""

    key: Hashable
    arrays: list[Any]
    rebuild: Callable[[list[Any]], Any]


def _lift(fn: Any, key: _Key, path: tuple[int, ...]) -> _Open:
    apart = _Apart(key, (*path, id(fn)))
    whole = apart.whole
    if inspect.isfunction(fn):
        parts = tuple(
            (name, key.of(value) if name[:7] == "module " else apart.add(name, value))
            for name, value in _references(fn)
        )
        cells = {name: None for name in apart.trees if not name.startswith("global ")}
        empty = _with_values(fn, cells)
        own = (_code_key(fn), parts)
        return _Open(own, apart.arrays, lambda arrays: _with_values(empty, whole(arrays)))
    if isinstance(fn, functools.partial):
        parts = {"func": fn.func, "args": fn.args, "keywords": fn.keywords}
        own = ("partial", *(apart.add(name, value) for name, value in parts.items()))
        kept = {name: value for name, value in parts.items() if name not in apart.trees}

        def rebuild(arrays: list[Any]) -> Any:
            values = {**kept, **whole(arrays)}
            return functools.partial(values["func"], *values["args"], **values["keywords"])

        return _Open(own, apart.arrays, rebuild)
    own = apart.add("itself", fn)
    value = fn if "itself" not in apart.trees else None
    return _Open(own, apart.arrays, lambda arrays: whole(arrays).get("itself", value))


class _Apart:
    """Values with their arrays taken out."""

    def __init__(self, key: _Key, path: tuple[int, ...]) -> None:
        self._key, self._path = key, path
        self.trees: dict[str, Any] = {}
        self.arrays: list[Any] = []
        self.whole = functools.partial(_put_back, self.trees)

    def add(self, name: str, value: Any) -> Hashable:
        leaves, structure = _flatten(value)
        opened = [self._open(leaf) for leaf in leaves]
        if not any(opened):
            return self._key.of(value)
        slots = [each and (len(each.arrays), each.rebuild) for each in opened]
        kept = [None if each else leaf for each, leaf in zip(opened, leaves, strict=True)]
        self.trees[name] = (structure, slots, kept)
        self.arrays += [array for each in opened if each for array in each.arrays]
        keys = (
            ("arrays in", each.key) if each else self._key.of(leaf)
            for each, leaf in zip(opened, leaves, strict=True)
        )
        return (structure, tuple(keys))

    def _open(self, leaf: Any) -> _Open | None:
        """An array, or a function that has some in it; None for all else."""
        if isinstance(leaf, jax.core.Tracer):
            raise _TracedError
        if isinstance(leaf, jax.Array):
            return _Open(None, [leaf], _the_only)
        is_users = inspect.isfunction(leaf) and not is_library(leaf)
        if not is_users and not isinstance(leaf, functools.partial):
            return None
        if id(leaf) in self._path or len(self._path) > _MOST_NESTED:
            return None
        made = _lift(leaf, self._key, self._path)
        return made if made.arrays else None


def _the_only(arrays: list[Any]) -> Any:
    return arrays[0]


def _put_back(trees: dict[str, Any], arrays: list[Any]) -> dict[str, Any]:
    begin, values = 0, {}
    for name, (structure, slots, kept) in trees.items():
        leaves = list(kept)
        for place, slot in enumerate(slots):
            if slot:
                count, rebuild = slot
                leaves[place] = rebuild(arrays[begin : begin + count])
                begin += count
        values[name] = jax.tree.unflatten(structure, leaves)
    return values


class _Key:
    """Makes keys of values; `held` are the objects whose identities are in them."""

    def __init__(self, deep: bool = True) -> None:
        self.held: list[Any] = []
        self._deep = deep
        self._path: list[int] = []

    def of(self, value: Any) -> Hashable:
        if type(value) in _PLAIN:
            return (type(value), repr(value))  # repr: 0.0 is not -0.0
        if isinstance(value, jax.core.Tracer):
            raise _TracedError
        self.held.append(value)
        if id(value) in self._path:
            return ("itself", len(self._path) - self._path.index(id(value)))
        if len(self._path) > _DEEPEST:
            return id(value)
        self._path.append(id(value))
        try:
            return self._inside(value)
        finally:
            self._path.pop()

    def _inside(self, value: Any) -> Hashable:
        if inspect.isfunction(value):
            if is_library(value):
                # Wrappers (jax.vmap, functools.wraps) are made anew with each function they wrap.
                cells = [self.of(cell.cell_contents) for cell in value.__closure__ or ()]
                return (value.__code__, tuple(cells)) if cells else id(value)
            return (_code_key(value), *((n, self.of(v)) for n, v in _references(value)))
        if inspect.ismethod(value):
            return ("method", self.of(value.__func__), self.of(value.__self__))
        if isinstance(value, functools.partial):
            return ("partial", self.of(value.func), self.of(value.args), self.of(value.keywords))
        if isinstance(value, dict):
            return ("dict", *((self.of(k), self.of(v)) for k, v in value.items()))
        if isinstance(value, list | tuple):
            return (type(value), *(self.of(each) for each in value))
        if isinstance(value, np.ndarray):
            return (id(value), zlib.crc32(np.ascontiguousarray(value).view(np.uint8).data))
        if isinstance(value, jax.Array | type | types.ModuleType) or is_library(type(value)):
            return self._by_leaves(value)
        inside = self.of(getattr(value, "__dict__", None)) if self._deep else None
        return (type(value), self._by_leaves(value), inside)

    def _by_leaves(self, value: Any) -> Hashable:
        leaves, structure = _flatten(value)
        if structure is None or (len(leaves) == 1 and leaves[0] is value):
            return id(value)
        return (structure, *(self.of(leaf) for leaf in leaves))


def _flatten(value: Any) -> tuple[list[Any], Any]:
    try:
        return jax.tree.flatten(value)
    except (TypeError, ValueError):  # a dict whose keys cannot be sorted
        return [value], None


def _code_key(fn: Any) -> Hashable:
    return (fn.__code__, id(fn.__globals__))


def _references(fn: Any) -> Iterator[tuple[str, Any]]:
    """The cells, defaults and globals of a function, by name; what it may ask of modules."""
    names = names_in(fn.__code__)
    for name, value in _values(fn, names):
        yield name, value
        if isinstance(value, types.ModuleType) and not is_library(value):
            inside = vars(value)
            yield from ((f"module {name} {each}", inside[each]) for each in names if each in inside)


def _values(fn: Any, names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            yield f"cell {name}", cell.cell_contents
        except ValueError as error:  # empty still: a function that refers to itself
            raise TypeError(name) from error
    for number, value in enumerate(fn.__defaults__ or ()):
        yield f"default {number}", value
    for name, value in (fn.__kwdefaults__ or {}).items():
        yield f"keyword {name}", value
    for name in names:
        if name in fn.__globals__:
            yield f"global {name}", fn.__globals__[name]


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
    made.__dict__.update(fn.__dict__)
    return made
