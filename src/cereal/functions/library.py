"""Whether code belongs to a library (installed with Python or by a package manager) or to the user,
which names it uses, and which parts of a library stay the same for a whole run."""

from __future__ import annotations

import dis
import functools
import importlib
import importlib.util
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

import numpy as np

PLAIN = (int, float, complex, str, bytes, bool, type(None), type(...), range)
_INSTALLED = ("site-packages", "dist-packages")
_HERE = str(Path(__file__).parent.parent)
_STANDARD = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})
_FIXED_CLASSES = ("builtins", "numpy", "jax", "jaxlib", "ml_dtypes", "functools", "typing")
# Functions whose result depends on files, the environment, the clock or names in other scopes.
_LOOKING = {"eval", "exec", "globals", "locals", "vars", "dir", "__import__", "input"}
_READING = ("open", "load", "read", "imread", "fromfile", "fromregex", "genfromtxt", "memmap")
_PURE = {"abc", "builtins", "cmath", "collections", "contextlib", "copy", "dataclasses", "enum"}
_PURE |= {"functools", "itertools", "logging", "math", "numbers", "operator", "re", "string", "sys"}
_PURE |= {"types", "typing", "warnings"}


@functools.lru_cache(maxsize=4096)
def is_library_file(name: str) -> bool:
    """Whether a source file belongs to a library."""
    if name.startswith(_HERE) or any(part in name for part in _INSTALLED):
        return True
    return name.startswith(("<frozen", *_STANDARD))


def is_library(thing: Any) -> bool:
    """Whether a function, class or module belongs to a library, whose code does not change."""
    if isinstance(thing, types.FunctionType):
        return is_library_file(thing.__code__.co_filename)
    if isinstance(thing, types.ModuleType):
        if thing.__name__.partition(".")[0] in sys.stdlib_module_names:
            return thing.__name__ != "__main__"
        return is_library_file(getattr(thing, "__file__", None) or "")
    if isinstance(thing, type):
        if thing.__module__.partition(".")[0] in ("builtins", "cereal", "jax", "jaxlib"):
            return True
        module = sys.modules.get(thing.__module__)
        return module is not None and is_library(module)
    return True


def looks_at_the_world(thing: Any) -> bool:
    """Whether a library's function, class or module may give another result at every call."""
    if isinstance(thing, types.ModuleType):
        name, root = "", thing.__name__.partition(".")[0]
    else:
        name = getattr(thing, "__name__", "")
        root = (getattr(thing, "__module__", None) or "").partition(".")[0]
    if name in _LOOKING or name.lstrip("_").startswith(_READING):
        return True
    return root in sys.stdlib_module_names and root.lstrip("_") not in _PURE


def is_fixed(value: Any) -> bool:
    """Whether this belongs to a library and stays the same for the whole run."""
    if looks_at_the_world(value):
        return False
    if isinstance(value, types.FunctionType):
        return is_library(value)
    if isinstance(value, type):
        return value.__module__.partition(".")[0] in _FIXED_CLASSES
    owner = getattr(value, "__self__", None)  # the object of a method: a random generator, say
    if owner is not None and not isinstance(owner, types.ModuleType):
        return False
    kinds = (types.BuiltinFunctionType, np.ufunc)
    return isinstance(value, kinds) or is_defined_by_library(value)


def is_defined_by_library(value: Any) -> bool:
    """Whether a library's module has this callable under its name."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    if module is None or not callable(value) or not is_library(module):
        return False
    return vars(module).get(getattr(value, "__name__", "")) is value


@functools.lru_cache(maxsize=1024)
def codes_in(code: types.CodeType) -> tuple[types.CodeType, ...]:
    """The code of a function, and of those that are defined inside it."""
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return (code, *(each for found in map(codes_in, inner) for each in found))


@functools.lru_cache(maxsize=1024)
def names_in(code: types.CodeType) -> tuple[str, ...]:
    """All names in a function's code, and in the code of functions defined inside it."""
    return tuple(sorted({name for each in codes_in(code) for name in each.co_names}))


@functools.lru_cache(maxsize=1024)
def globals_in(code: types.CodeType) -> frozenset[str]:
    """The names that a function looks up as globals, not as attributes."""
    steps = (step for each in codes_in(code) for step in dis.get_instructions(each))
    return frozenset(s.argval for s in steps if s.opname in ("LOAD_GLOBAL", "LOAD_NAME"))


@functools.lru_cache(maxsize=1024)
def imports_in(code: types.CodeType) -> tuple[tuple[str, int], ...]:
    """The names in `import` lines of a function, and how many dots are before each.

    The bet: in the bytecode, the number of dots is loaded two instructions before IMPORT_NAME. If
    it is lost, `tests/functions/test_library.py`,
    `test_the_users_modules_that_a_function_imports_are_found`, fails first.
    """
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    return tuple(
        (step.argval, steps[at - 2].argval)
        for at, step in enumerate(steps)
        if step.opname == "IMPORT_NAME"
    )


def imported_in(code: types.CodeType, package: str | None) -> list[types.ModuleType]:
    """The user's modules that a function imports inside of it."""
    found = [_users_module("." * level + name, package) for name, level in imports_in(code)]
    return [module for module in found if module is not None]


def _users_module(name: str, package: str | None) -> types.ModuleType | None:
    try:
        name = importlib.util.resolve_name(name, package)
        if name not in sys.modules:
            top = importlib.util.find_spec(name.partition(".")[0])
            if top is None or (top.origin and is_library_file(top.origin)):
                return None  # a library, which is not imported just for this: it may be large
        module = importlib.import_module(name)
    except (Exception, SystemExit):  # SystemExit: a script that parses its arguments
        return None
    return None if is_library(module) else module
