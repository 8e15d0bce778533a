"""Digests of pipelines that are the same in every process: the names of caches on disk.

Two pipelines have one digest if they compute the same elements: the same arrays, the same code of
functions and of the user's own classes, the same versions of libraries, over the same values. What
decides only the order is left out. An object that cannot be looked into is taken by its pickle; a
cache is then missed at worst, never taken for another's.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .errors import PipelineError
from .function import Function
from .host_data import HostData
from .library import is_library, names_in
from .positional import IndexedSource
from .spec import Spec
from .traced_stage import TracedStage

_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_ORDER = {"ordering"}
_WORDS = {"parts"}  # of our sources, for the drawing


def digest(*objects: Any) -> str:
    """32 letters that change when what the objects compute may change."""
    state = _Digest()
    for each in objects:
        state.add(each)
    return state.hash.hexdigest()


class _Digest:
    def __init__(self) -> None:
        self.hash = hashlib.blake2b(digest_size=16)
        self._path: list[int] = []

    def word(self, *words: Any) -> None:
        self.hash.update(repr(words).encode() + b"\0")

    def add(self, value: Any) -> None:
        if type(value) in _PLAIN:
            self.word(type(value).__name__, value)
            return
        if id(value) in self._path:
            self.word("itself", len(self._path) - self._path.index(id(value)))
            return
        self._path.append(id(value))
        try:
            self._inside(value)
        finally:
            self._path.pop()

    def _inside(self, value: Any) -> None:
        if isinstance(value, jax.Array | np.ndarray | np.generic):
            self._array(value)
        elif isinstance(value, HostData):
            self.word("host", type(value).__name__)
            self.add(value.digest_of())
        elif isinstance(value, Spec | np.dtype):
            self.word(str(value))
        elif isinstance(value, Function):
            self.add(value.value)
        elif isinstance(value, TracedStage):
            self.add(value.python)
        elif isinstance(value, set | frozenset):
            self.word("set", sorted(digest(each) for each in value))
        elif isinstance(value, tuple | list):
            self._class(type(value))
            self.word(len(value))
            for each in value:
                self.add(each)
        elif isinstance(value, dict):
            self.word("dict", len(value))
            for key in value:
                self.add(key)
                self.add(value[key])
        elif isinstance(value, types.ModuleType):
            self.word("module", value.__name__)
        elif isinstance(value, type):
            self._class(value)
        elif inspect.isfunction(value):
            self._function(value)
        elif inspect.ismethod(value):
            self.add(value.__func__)
            self.add(value.__self__)
        elif isinstance(value, functools.partial):
            self.word("partial")
            self.add((value.func, value.args, value.keywords))
        else:
            self._object(value)

    def _array(self, value: Any) -> None:
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        array = np.ascontiguousarray(value)
        self.word(str(array.dtype), np.shape(value))
        self.hash.update(array.reshape(-1).view(np.uint8).data)

    def _function(self, fn: Any) -> None:
        self.word("function", fn.__module__, fn.__qualname__)
        # Of a library's function its version and what it holds: jax.vmap, the function it maps.
        if is_library(fn):
            self._version(fn.__module__)
        else:
            self._code(fn.__code__, fn.__globals__)
            self.add(fn.__defaults__)
            self.add(fn.__kwdefaults__)
        for cell in fn.__closure__ or ():
            self.add(_contents(cell))

    def _code(self, code: types.CodeType, scope: dict[str, Any]) -> None:
        shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self.word(code.co_code, code.co_names, code.co_varnames, shape)
        for const in code.co_consts:
            if isinstance(const, types.CodeType):
                self._code(const, scope)
            else:
                self.add(const)
        names = set(names_in(code))
        for name in code.co_names:
            if name not in scope:
                continue
            value = scope[name]
            self.word(name)
            self.add(value)
            if isinstance(value, types.ModuleType) and not is_library(value):
                for inside in sorted(names & vars(value).keys()):
                    self.word(inside)
                    self.add(vars(value)[inside])

    def _class(self, cls: type) -> None:
        """A class by its name; the user's own by its code too."""
        self.word("class", cls.__module__, cls.__qualname__)
        if is_library(cls):
            self._version(cls.__module__)
            return
        for base in cls.__bases__:
            self._class(base)
        for name, value in sorted(vars(cls).items()):
            inner = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            inner = inner.fget if isinstance(inner, property) else inner
            if inspect.isfunction(inner):
                self.word(name)
                self.add(inner)
            elif type(value) in _PLAIN and not name.startswith("__"):
                self.word(name, value)

    def _version(self, module: str | None) -> None:
        package = (module or "").partition(".")[0]
        self.word(package, getattr(sys.modules.get(package), "__version__", None))

    def _object(self, value: Any) -> None:
        self._class(type(value))
        if dataclasses.is_dataclass(value):
            ignored = _ORDER if isinstance(value, IndexedSource) else set()
            ignored = ignored | (_WORDS if is_library(type(value)) else set())
            for field in dataclasses.fields(value):
                if field.name not in ignored:
                    self.word(field.name)
                    self.add(getattr(value, field.name))
            return
        leaves, structure = jax.tree.flatten(value)
        if len(leaves) != 1 or leaves[0] is not value:
            self.word(str(structure))
            for leaf in leaves:
                self.add(leaf)
            return
        wrapped = getattr(value, "__wrapped__", None)  # a jitted function
        if callable(wrapped):
            self.add(wrapped)
        elif inspect.isbuiltin(value) or isinstance(value, np.ufunc):
            self.word(getattr(value, "__qualname__", getattr(value, "__name__", "")))
        elif not is_library(type(value)) and hasattr(value, "__dict__"):
            self.add(vars(value))
        else:
            self._pickle(value)

    def _pickle(self, value: Any) -> None:
        import cloudpickle

        try:
            self.hash.update(cloudpickle.dumps(value))
        except Exception as error:
            raise PipelineError(
                f"cannot tell whether a {type(value).__name__} that the pipeline refers to has "
                f"changed ({error}), so its results cannot be kept in files; leave it out of the "
                f"functions above the cache, or keep them in memory."
            ) from error


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty still
        return "empty"
