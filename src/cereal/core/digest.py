"""Digests of pipelines that are the same in every process: the names of caches on disk.

Two pipelines have one digest if they compute the same elements: the same arrays, the same code of
functions over the same values. What decides only the order is left out. An object that cannot be
looked into is taken by its pickle; a cache is then missed at worst, never taken for another's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .function import Function
from .host import HostData
from .spec import Spec

_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_IGNORED = {"ordering", "parts"}  # the order, and words for the drawing


def digest(*objects: Any) -> str:
    """32 letters that change when what the objects compute may change."""
    state = _Digest()
    for each in objects:
        state.add(each)
    return state.hash.hexdigest()


class _Digest:
    def __init__(self) -> None:
        self.hash = hashlib.blake2b(digest_size=16)
        self.seen: set[int] = set()

    def word(self, *words: Any) -> None:
        self.hash.update(repr(words).encode() + b"\0")

    def add(self, value: Any) -> None:
        if isinstance(value, _PLAIN):
            self.word(type(value).__name__, value)
        elif isinstance(value, jax.Array | np.ndarray | np.generic):
            self._array(value)
        elif isinstance(value, HostData):
            self.word("host", type(value).__name__)
            self.add(value.digest_of())
        elif isinstance(value, Spec | np.dtype | type):
            self.word(str(value))
        elif isinstance(value, Function):
            self.add(value.tree if value.fn is None else value.fn)
        elif isinstance(value, tuple | list):
            self.word(type(value).__name__, len(value))
            for each in value:
                self.add(each)
        elif isinstance(value, dict):
            self.word("dict", len(value))
            for key in value:
                self.add(key)
                self.add(value[key])
        elif isinstance(value, types.ModuleType):
            self.word("module", value.__name__)
        elif inspect.isfunction(value):
            self._function(value)
        elif dataclasses.is_dataclass(value):
            self.word(type(value).__qualname__)
            for field in dataclasses.fields(value):
                if field.name not in _IGNORED:
                    self.word(field.name)
                    self.add(getattr(value, field.name))
        else:
            self._other(value)

    def _array(self, value: Any) -> None:
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        array = np.ascontiguousarray(value)
        self.word(str(array.dtype), array.shape)
        self.hash.update(array.reshape(-1).view(np.uint8).data)

    def _function(self, fn: Any) -> None:
        self.word("function", fn.__module__, fn.__qualname__)
        if id(fn) in self.seen or (fn.__module__ or "").split(".")[0] in ("jax", "numpy"):
            return
        self.seen.add(id(fn))
        self._code(fn.__code__, fn.__globals__)
        for cell in fn.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:  # empty still
                self.word("empty")
        self.add(fn.__defaults__)
        self.add(fn.__kwdefaults__)

    def _code(self, code: types.CodeType, scope: dict[str, Any]) -> None:
        self.word(code.co_code, code.co_names)
        for const in code.co_consts:
            if isinstance(const, types.CodeType):
                self._code(const, scope)
            elif isinstance(const, frozenset):
                self.word(sorted(map(repr, const)))
            else:
                self.add(const)
        for name in code.co_names:
            if name in scope:
                self.word(name)
                self.add(scope[name])

    def _other(self, value: Any) -> None:
        self.word(type(value).__module__, type(value).__qualname__)
        leaves, structure = jax.tree.flatten(value)
        if len(leaves) != 1 or leaves[0] is not value:
            self.word(str(structure))
            for leaf in leaves:
                self.add(leaf)
            return
        wrapped = getattr(value, "__wrapped__", None)  # a jitted function
        if inspect.isfunction(wrapped):
            self.add(wrapped)
            return
        if inspect.isbuiltin(value) or isinstance(value, np.ufunc):
            self.word(getattr(value, "__qualname__", getattr(value, "__name__", "")))
            return
        import cloudpickle

        self.hash.update(cloudpickle.dumps(value))
