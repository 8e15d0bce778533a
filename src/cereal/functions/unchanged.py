"""The proof that a function still does the same: we follow everything that it refers to.

A proof uses only what cannot change unnoticed: code, numbers and text, JAX arrays, the content of
small NumPy arrays, functions whose references are proved, and what libraries define in their
modules. The user's objects, lists, dicts, sets, classes and modules may change. A function that
refers to one of these has no proof and is traced again, which is always right
(`tests/functions/test_unchanged.py`).
"""

from __future__ import annotations

import builtins
import functools
import inspect
import sys
import types
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from ..base.capture import is_concrete
from .library import (
    PLAIN,
    codes_in,
    globals_in,
    imports_in,
    is_defined_by_library,
    is_fixed,
    is_library,
    looks_at_the_world,
    names_in,
)

_JITTED = type(jax.jit(lambda: None))
_SMALL = 4096  # bytes of a NumPy array whose content is compared at every `holds()`


class Proof(NamedTuple):
    """`key` is equal for functions that do the same, while the objects in `held` are alive.

    The proof holds while `get(name) is value`, for each (get, name, value) in `checks`.
    """

    key: Hashable
    held: tuple[Any, ...]
    checks: list[tuple[Callable[[Any], Any], Any, Any]]

    @property
    def arrays(self) -> list[Any]:
        """The JAX arrays that the functions refer to."""
        return [each for each in self.held if isinstance(each, jax.Array)]

    def holds(self) -> bool:
        """Whether everything is as it was when this was made."""
        for get, name, value in self.checks:  # noqa: SIM110 (`all` takes twice as long)
            if get(name) is not value:
                return False
        return True


class _UnprovedError(Exception):
    """A function refers to something that may change unnoticed."""


def proof_of(*functions: Any) -> Proof | None:
    """The proof that these functions are unchanged, or None if there is none."""
    made = _Prover()
    try:
        key = tuple(map(made.of, functions))
        hash(key)
    except (_UnprovedError, TypeError, ValueError, RecursionError):
        return None
    return Proof(key, tuple(made.held), made.checks)


class _Prover:
    def __init__(self) -> None:
        self.held: list[Any] = []
        self.checks: list[tuple[Callable[[Any], Any], Any, Any]] = []
        self._seen: dict[int, int] = {}

    def of(self, value: Any, names: tuple[str, ...] | None = None) -> Hashable:
        """The key of a value; `names` are all names in the code that refers to it."""
        kind: Any = type(value)
        if kind in PLAIN:
            return (kind, repr(value))  # repr: 0.0 is not -0.0, and nan is nan
        if isinstance(value, np.dtype | types.CodeType):
            return value
        # (A `np.void` is a view of an array, so it can change.)
        if isinstance(value, np.generic) and not isinstance(value, np.void):
            return (value.dtype, value.tobytes())
        if isinstance(value, tuple) and is_library(kind):
            return (kind, *(self.of(each, names) for each in value))
        if isinstance(value, types.ModuleType):
            self._module(value, names)
            self.held.append(value)
            return id(value)
        if id(value) in self._seen:
            return ("again", self._seen[id(value)])
        self._seen[id(value)] = len(self._seen)
        self.held.append(value)
        if is_concrete(value):
            return ("array", id(value))
        if type(value) is np.ndarray and value.nbytes <= _SMALL and not value.dtype.hasobject:
            content = _content(value)
            self.checks.append((lambda array: _content(array) == content, value, True))
            return content
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if type(value) is functools.partial and not value.__dict__:
            return self._partial(value)
        if isinstance(value, _JITTED) and not is_defined_by_library(value):
            return ("jit", id(value), self.of(inspect.unwrap(value)))
        if is_fixed(value):
            return id(value)
        raise _UnprovedError

    def _partial(self, made: functools.partial[Any]) -> Hashable:
        names = names_in(made.func.__code__) if hasattr(made.func, "__code__") else ()
        parts = (self.of(made.func), self.of(made.args, names))
        return ("partial", *parts, self._keywords(made.keywords, names))

    def _function(self, fn: types.FunctionType) -> Hashable:
        is_own, names = not is_library(fn), names_in(fn.__code__)
        attributes = set(fn.__dict__) - {"__wrapped__"}
        if (is_own and attributes) or (not is_own and looks_at_the_world(fn)):
            raise _UnprovedError
        cells = [cell.__getattribute__ for cell in fn.__closure__ or ()]
        inside = [self._follow(get, ["cell_contents"], names if is_own else None) for get in cells]
        if not is_own:
            return (fn.__code__, *inside, self.of(fn.__defaults__)) if cells else id(fn)
        parts = self._follow(fn.__getattribute__, ["__code__", "__defaults__"], names)
        self.checks.append((fn.__getattribute__, "__kwdefaults__", fn.__kwdefaults__))
        self.checks.append((len, fn.__dict__, len(fn.__dict__)))
        keywords, scope = self._keywords(fn.__kwdefaults__ or {}, names), fn.__globals__
        used = self._follow(scope.get, names, names)
        built_in = sorted(globals_in(fn.__code__).difference(scope))
        used += self._follow(vars(builtins).get, built_in, None)
        for code in codes_in(fn.__code__):
            for name, level in imports_in(code):
                self._module(None if level else sys.modules.get(name), names)
        return (id(scope), *parts, *inside, keywords, *used)

    def _follow(self, get: Callable[[str], Any], found: Iterable[str], names: Any) -> Any:
        """The key of what `get` returns for some names; each must stay the same object."""
        values = [(name, get(name)) for name in found]
        self.checks += [(get, name, value) for name, value in values]
        return tuple((name, self.of(value, names)) for name, value in values)

    def _keywords(self, values: dict[str, Any], names: tuple[str, ...]) -> Hashable:
        # Checks compare with `is`. The bet: CPython has one object for each small number. If it is
        # lost, no proof holds, and functions are traced again at every call.
        # `test_what_cannot_change_is_proved` fails first.
        self.checks.append((len, values, len(values)))
        return self._follow(values.get, values, names)

    def _module(self, module: Any, names: tuple[str, ...] | None, depth: int = 4) -> None:
        """Checks that all that code may read from a library's module is fixed: no flags."""
        known = isinstance(module, types.ModuleType) and names is not None and depth
        if not known or not is_library(module) or looks_at_the_world(module):
            raise _UnprovedError
        scope = vars(module)
        for name in [name for name in names or () if name in scope]:
            value = scope[name]
            self.checks.append((scope.get, name, value))
            if isinstance(value, types.ModuleType) and is_library(value):
                if value is not module:
                    self._module(value, names, depth - 1)
            elif not (type(value) in PLAIN or isinstance(value, np.generic) or is_fixed(value)):
                raise _UnprovedError


def _content(array: np.ndarray) -> Hashable:
    return (array.dtype, array.shape, array.tobytes())
