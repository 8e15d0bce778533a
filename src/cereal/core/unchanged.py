"""The proof that a function is what it was: all that it refers to, followed to the end.

Proved is only what cannot change unseen: code, numbers and text, arrays of JAX, small arrays of
NumPy by what is in them, functions whose references are proved, and what libraries define at the
level of a module. An object, a list, a dict, a set, a class, a module of the user is no proof: who
refers to one is traced again, which is always right (`tests/core/test_unchanged.py`).
"""

from __future__ import annotations

import builtins
import dis
import functools
import inspect
import sys
import types
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import numpy as np

from .capture import is_concrete
from .library import codes_in, imports_in, is_library, names_in

_PLAIN = (int, float, complex, str, bytes, bool, type(None), type(...), range)
_FIXED_CLASSES = ("builtins", "numpy", "jax", "jaxlib", "ml_dtypes", "functools", "typing")
_JITTED = type(jax.jit(lambda: None))
# What looks at the world when it runs: files, the environment, the clock, names in other scopes.
_LOOKING = {"eval", "exec", "globals", "locals", "vars", "dir", "__import__", "input"}
_READING = ("open", "load", "read", "imread", "fromfile", "fromregex", "genfromtxt", "memmap")
_PURE = {"abc", "builtins", "cmath", "collections", "contextlib", "copy", "dataclasses", "enum"}
_PURE |= {"functools", "itertools", "logging", "math", "numbers", "operator", "re", "string", "sys"}
_PURE |= {"types", "typing", "warnings"}
# Methods that are done when a pipeline is built, or that a dataclass writes.
_BUILDING = {"__init__", "__post_init__", "__new__", "__setattr__", "__delattr__", "__repr__"}
_BUILDING |= {"__eq__", "__hash__", "__replace__", "__getstate__", "__setstate__", "__annotate__"}
_BUILDING |= {"__annotate_func__", "__init_subclass__", "__class_getitem__"}
_SMALL = 4096  # bytes of a NumPy array that is compared whenever it is asked


class Proof(NamedTuple):
    """`key` is equal for functions that do the same, as long as `held` live.

    `checks` say whether it still holds: every reference is the very same object, and arrays of
    NumPy have the same content.
    """

    key: Hashable
    held: tuple[Any, ...]
    arrays: list[Any]  # of JAX, that the functions refer to
    checks: list[tuple[Callable[[Any], Any], Any, Any]]
    contents: list[tuple[np.ndarray, Hashable]]

    def holds(self) -> bool:
        """Whether all is as it was when this was made."""
        for get, name, value in self.checks:
            if get(name) is not value:
                return False
        return all(_content(array) == content for array, content in self.contents)


def proof_of(*functions: Any) -> Proof | None:
    """What proves that these functions are unchanged, or None."""
    made = _Prover()
    try:
        key = tuple(made.of(fn) for fn in functions)
        hash(key)
    except (_UnprovedError, TypeError, ValueError, RecursionError):
        return None
    return Proof(key, tuple(made.held), made.arrays, made.checks, made.contents)


def proof_of_class(cls: type) -> Proof | None:
    """What proves that the methods and constants of a user's class are unchanged, or None."""
    parts: list[Any] = []
    checks: list[tuple[Callable[[Any], Any], Any, Any]] = []
    for each in cls.__mro__:
        own = {} if is_library(each) else dict(vars(each))
        for name in sorted(own):
            value = own[name]
            if name in getattr(each, "__dataclass_fields__", ()):
                continue  # every instance has its own
            if not name.startswith(("__", "_flat", "_abc")) or _runs(name, value):
                parts.append(getattr(value, "fget", getattr(value, "__func__", value)))
                checks.append((vars(each).get, name, value))
        if own:
            checks.append((len, vars(each), len(own)))
    proof = proof_of(*parts)
    return None if proof is None else proof._replace(checks=proof.checks + checks)


def _runs(name: str, value: Any) -> bool:
    """Whether a name of Python's, such as `__call__`, is a method that a step may run."""
    return isinstance(value, types.FunctionType) and name.startswith("__") and name not in _BUILDING


class _UnprovedError(Exception):
    """Met something that may change unseen."""


class _Prover:
    def __init__(self) -> None:
        self.held: list[Any] = []
        self.arrays: list[Any] = []
        self.checks: list[tuple[Callable[[Any], Any], Any, Any]] = []
        self.contents: list[tuple[np.ndarray, Hashable]] = []
        self._seen: dict[int, int] = {}

    def of(self, value: Any) -> Hashable:
        if type(value) in _PLAIN:
            return (type(value), repr(value))  # repr: 0.0 is not -0.0, and nan is nan
        if isinstance(value, np.dtype):
            return value
        if isinstance(value, np.generic) and not isinstance(value, np.void):  # that is a view
            return (value.dtype, value.tobytes())
        if type(value) is tuple or (isinstance(value, tuple) and is_library(type(value))):
            return (type(value), *map(self.of, value))
        self.held.append(value)
        if id(value) in self._seen:
            return ("again", self._seen[id(value)])
        self._seen[id(value)] = len(self._seen)
        if is_concrete(value):
            self.arrays.append(value)
            return ("array", id(value))
        if type(value) is np.ndarray and value.nbytes <= _SMALL and not value.dtype.hasobject:
            self.contents.append((value, _content(value)))
            return _content(value)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if type(value) is functools.partial and not value.__dict__:
            code = getattr(value.func, "__code__", None)
            names = () if code is None else names_in(code)
            args = tuple(self._named(arg, names) for arg in value.args)
            return ("partial", self.of(value.func), args, self._dict(value.keywords, names))
        if isinstance(value, _JITTED) and not _is_defined_by_library(value):
            return ("jit", id(value), self.of(inspect.unwrap(value)))
        if _is_fixed(value):
            return id(value)
        raise _UnprovedError(type(value).__name__)

    def _function(self, fn: types.FunctionType) -> Hashable:
        cells = [(cell, cell.cell_contents) for cell in fn.__closure__ or ()]
        self.checks += [(cell.__getattribute__, "cell_contents", v) for cell, v in cells]
        names, scope = names_in(fn.__code__), fn.__globals__
        if is_library(fn):
            if _looks(fn):
                raise _UnprovedError(fn.__name__)
            inside = tuple(self.of(value) for _, value in cells)
            return (fn.__code__, inside, self.of(fn.__defaults__)) if cells else id(fn)
        inside = tuple(self._named(value, names) for _, value in cells)
        if set(fn.__dict__) - {"__wrapped__"}:
            raise _UnprovedError("a function with attributes")
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            self.checks.append((fn.__getattribute__, name, getattr(fn, name)))
        self.checks.append((len, fn.__dict__, len(fn.__dict__)))
        kwdefaults = self._dict(fn.__kwdefaults__ or {}, names)
        defaults = tuple(self._named(value, names) for value in fn.__defaults__ or ())
        self.checks += [(scope.get, name, scope.get(name)) for name in names]
        used = tuple((name, self._named(scope[name], names)) for name in names if name in scope)
        unknown = _globals_in(fn.__code__).difference(scope)
        used += tuple((name, self._built_in(name)) for name in sorted(unknown))
        for code in codes_in(fn.__code__):
            for name, level in imports_in(code):
                self._module(None if level else sys.modules.get(name), names)
        return (fn.__code__, id(scope), inside, defaults, kwdefaults, used)

    def _named(self, value: Any, names: tuple[str, ...]) -> Hashable:
        """Of what a function whose code has these names knows by one of its own."""
        if not isinstance(value, types.ModuleType):
            return self.of(value)
        self._module(value, names)
        self.held.append(value)
        return id(value)

    def _built_in(self, name: str) -> Hashable:
        """Of a name that no global has: one of Python's own."""
        self.checks.append((vars(builtins).get, name, vars(builtins).get(name)))
        return self.of(vars(builtins)[name]) if name in vars(builtins) else None

    def _module(self, module: Any, names: tuple[str, ...], depth: int = 4) -> None:
        """What a function may ask of a library's module is fixed too: no flags, no environment."""
        if not isinstance(module, types.ModuleType) or not is_library(module) or not depth:
            raise _UnprovedError("a module of the user")
        if _looks(module):
            raise _UnprovedError(module.__name__)
        found = {name: vars(module)[name] for name in names if name in vars(module)}
        for name, value in found.items():
            self.checks.append((vars(module).get, name, value))
            if isinstance(value, types.ModuleType) and is_library(value):
                self._module(value, names, depth - 1) if value is not module else None
            elif not (type(value) in _PLAIN or isinstance(value, np.generic) or _is_fixed(value)):
                raise _UnprovedError(name)

    def _dict(self, values: dict[str, Any], names: tuple[str, ...]) -> Hashable:
        """Of keyword arguments: few, so that their number is one object."""
        self.checks.append((len, values, len(values)))
        self.checks += [(values.get, name, value) for name, value in values.items()]
        return tuple((name, self._named(value, names)) for name, value in values.items())


def _content(array: np.ndarray) -> Hashable:
    return (array.dtype, array.shape, array.tobytes())


def _looks(thing: Any) -> bool:
    """Whether a library's function, class or module is one that looks at the world when it runs."""
    if isinstance(thing, types.ModuleType):
        name, root = "", thing.__name__.partition(".")[0]
    else:
        name = getattr(thing, "__name__", "")
        root = (getattr(thing, "__module__", None) or "").partition(".")[0]
    if name in _LOOKING or name.lstrip("_").startswith(_READING):
        return True
    return root in sys.stdlib_module_names and root.lstrip("_") not in _PURE


def _is_fixed(value: Any) -> bool:
    """Whether this is a library's, and the same for the whole run."""
    if _looks(value):
        return False
    if isinstance(value, types.FunctionType):
        return is_library(value)
    if isinstance(value, type):
        return value.__module__.partition(".")[0] in _FIXED_CLASSES
    owner = getattr(value, "__self__", None)  # of a method: a generator of random numbers, say
    if owner is not None and not isinstance(owner, types.ModuleType):
        return False
    if isinstance(value, types.BuiltinFunctionType):
        return True
    return isinstance(value, np.ufunc) or _is_defined_by_library(value)


def _is_defined_by_library(value: Any) -> bool:
    """Whether a callable stands under its name in a module of a library."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    if module is None or not callable(value) or not is_library(module):
        return False
    return vars(module).get(getattr(value, "__name__", "")) is value


@functools.lru_cache(maxsize=1024)
def _globals_in(code: types.CodeType) -> frozenset[str]:
    """The names that a function looks up as globals, not as attributes."""
    steps = (step for each in codes_in(code) for step in dis.get_instructions(each))
    return frozenset(s.argval for s in steps if s.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
