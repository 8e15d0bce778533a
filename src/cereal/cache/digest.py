"""Digests of pipelines, which are the same in every process. Caches on disk are named by them.

Two pipelines have the same digest if they have the same arrays and values, the same code of
functions and of the user's classes, and the same versions of libraries. The order of the elements
does not count. An object without readable fields counts by its pickle.

No digest of code sees everything. So when a cache is found under its name, a few elements are
computed again and compared (`cache/check.py`).

(`unchanged` follows functions too, but only for one process: it compares identities, and gives up
at the first object that may change. A digest reads the content of objects, not their identities.)
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import inspect
import io
import sys
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..base.errors import PipelineError
from ..base.spec import Spec
from ..functions.function import Function
from ..functions.library import imported_in, is_library, names_in
from ..functions.traced_stage import TracedStage
from ..host.host_data import HostData
from ..pipeline.positional import IndexedSource

_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_MACHINERY = (types.MemberDescriptorType, types.GetSetDescriptorType)  # Python's own, in classes


def digest(
    *objects: Any, owner: str = "digest", remedy: str = "leave it out", lenient: bool = False
) -> str:
    """32 letters that change if the objects may compute something else.

    An object that cannot be read is an error, which ends with the `remedy`. If `lenient`, it is
    accepted, and only its type counts.
    """
    state = _Digest(owner, remedy, lenient)
    for each in objects:
        state.add(each)
    return state.hash.hexdigest()


class _Digest:
    def __init__(self, owner: str, remedy: str, lenient: bool) -> None:
        self.hash = hashlib.blake2b(digest_size=16)
        self._how: dict[str, Any] = {"owner": owner, "remedy": remedy, "lenient": lenient}
        self._path: list[int] = []
        # The digests of functions and classes, by `id`. Many refer to the same ones, so each is
        # read once. They are kept alive, so that no other object gets the same `id`.
        self._known: dict[int, tuple[Any, str]] = {}

    def word(self, *words: Any) -> None:
        self.hash.update(repr(words).encode() + b"\0")

    def add(self, value: Any) -> None:
        if type(value) in _PLAIN:
            self.word(type(value).__name__, value)
        elif id(value) in self._path:
            self.word("itself", len(self._path) - self._path.index(id(value)))
        elif isinstance(value, type | types.FunctionType):
            if id(value) not in self._known:
                self._known[id(value)] = value, self._apart(self._enter, value)
            self.word("code", self._known[id(value)][1])
        else:
            self._enter(value)

    def _enter(self, value: Any) -> None:
        self._path.append(id(value))
        try:
            self._inside(value)
        finally:
            self._path.pop()

    def _apart(self, add: Callable[[Any], None], value: Any) -> str:
        """The digest of what `add(value)` adds, in a hash of its own."""
        outer, self.hash = self.hash, hashlib.blake2b(digest_size=16)
        try:
            add(value)
            return self.hash.hexdigest()
        finally:
            self.hash = outer

    def _inside(self, value: Any) -> None:
        for kinds, add in self._ways:
            if isinstance(value, kinds):
                add(self, value)
                return
        self._object(value)

    def _container(self, value: Any) -> None:
        self.word(type(value).__name__, len(value))
        if not is_library(type(value)):
            self.add(type(value))
            self.add(_attributes(value))
        if isinstance(value, set | frozenset):
            self.word(sorted(digest(each, **self._how) for each in value))
            return
        for each in value:
            self.add(each)
            if isinstance(value, dict):
                self.add(value[each])

    def _array(self, value: Any) -> None:
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        array = np.ascontiguousarray(value)
        self.word(str(array.dtype), np.shape(value))
        if array.dtype.hasobject:
            self.add(array.tolist())
        else:
            self.hash.update(array.reshape(-1).view(np.uint8).data)

    def _host_data(self, value: HostData) -> None:
        self.word("host", type(value).__name__)
        try:
            found = value.digest_of()
        except Exception as error:
            self._refuse(value, error)
        else:
            self.add(found)

    def _method(self, value: types.MethodType) -> None:
        self.add(value.__func__)
        self.add(value.__self__)

    def _partial(self, value: Any) -> None:
        self.word("partial")
        self.add((value.func, value.args, value.keywords))

    def _function(self, fn: Any) -> None:
        self.word("function", fn.__module__, fn.__qualname__)
        # A library's function counts by the library's version and by what it closes over (the
        # result of `jax.vmap` closes over the function that it maps).
        if is_library(fn):
            self._version(fn.__module__)
        else:
            self._code(fn.__code__, fn.__globals__)
            self.add(fn.__defaults__)
            self.add(fn.__kwdefaults__)
            self.add(vars(fn))
        for cell in fn.__closure__ or ():
            self.add(cell.cell_contents if cell != types.CellType() else "empty")

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
            if name in scope:
                self.word(name)
                self._named(scope[name], names)
        for module in imported_in(code, scope.get("__package__")):
            self._named(module, names)

    def _named(self, value: Any, names: set[str]) -> None:
        """Adds what a name in code refers to; for a user's module, also what the code may use."""
        self.add(value)
        if not isinstance(value, types.ModuleType) or is_library(value) or id(value) in self._path:
            return
        self._path.append(id(value))
        for inside in sorted(names & vars(value).keys()):
            self.word(inside)
            self._named(vars(value)[inside], names)
        self._path.pop()

    def _class(self, cls: type) -> None:
        """Adds a class by its name; a user's class also by its code and its constants."""
        self.word("class", cls.__module__, cls.__qualname__)
        if is_library(cls):
            self._version(cls.__module__)
            return
        for base in cls.__bases__:
            self.add(base)
        members = getattr(cls, "__members__", {}) if issubclass(cls, enum.Enum) else None
        if members is not None:
            self.add([(name, member.value) for name, member in members.items()])
        for name, value in sorted(vars(cls).items()):
            inner = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            inner = inner.fget if isinstance(inner, property) else inner
            inner = inner.func if isinstance(inner, functools.cached_property) else inner
            if inspect.isfunction(inner):
                self.word(name)
                self.add(inner)
            elif members is None and not name.startswith(("__", "_abc_impl")):
                self._constant(name, value)

    def _constant(self, name: str, value: Any) -> None:
        """Adds a constant of a class. It may not matter at all, so it never raises an error."""
        if isinstance(value, _MACHINERY):
            return
        try:
            found = self._apart(self.add, value)
        except Exception:
            found = "unknown"
        self.word(name)
        self.word(type(value).__qualname__, found)

    def _version(self, module: str | None) -> None:
        package = (module or "").partition(".")[0]
        self.word(package, getattr(sys.modules.get(package), "__version__", None))

    def _built_in(self, value: Any) -> None:
        name, owner = getattr(value, "__name__", ""), getattr(value, "__self__", None)
        self.word("built in", getattr(value, "__qualname__", name))
        module = sys.modules.get(getattr(value, "__module__", None) or "")
        if isinstance(value, np.ufunc) and "(vectorized)" in name:
            self._refuse(value, "np.frompyfunc does not show its function")
        elif owner is not None and not isinstance(owner, types.ModuleType):
            self.add(owner)  # a method: of a dict, say
        elif getattr(module, "__file__", None) and not is_library(module):
            self._refuse(value, f"{name} is compiled code")

    def _object(self, value: Any) -> None:
        self.add(type(value))
        if dataclasses.is_dataclass(value):
            ignored = ["ordering"] if isinstance(value, IndexedSource) else []
            ignored += ["parts"] if is_library(type(value)) else []  # only words for the drawing
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
        if not is_library(type(value)) and (held := _attributes(value)) is not None:
            self.add(held)
        elif not callable(wrapped):
            self._pickle(value)

    def _pickle(self, value: Any) -> None:
        import cloudpickle

        add = self.add

        class Pickler(cloudpickle.Pickler):
            """A pickle has only the names of the user's code, so this adds the code itself."""

            def persistent_id(self, found: Any) -> Any:
                if isinstance(found, type | types.FunctionType) and not is_library(found):
                    add(found)
                    return "code"
                return None

        buffer = io.BytesIO()
        try:
            Pickler(buffer).dump(value)
        except Exception as error:
            self._refuse(value, error)
        else:
            self.hash.update(buffer.getvalue())

    def _refuse(self, value: Any, why: Any) -> None:
        if isinstance(why, PipelineError):
            raise why  # the error is about something inside of this object
        if self._how["lenient"]:
            self.word("unknown", type(value).__qualname__)
            return
        raise PipelineError(
            f"{self._how['owner']}: cannot tell whether a {type(value).__name__} that the pipeline "
            f"refers to has changed ({why}), so cereal cannot make a name for the files of its "
            f"results; {self._how['remedy']}."
        )

    # How to read a value: the first line whose types it has decides.
    _ways: tuple[tuple[Any, Callable[..., None]], ...] = (
        ((jax.Array, np.ndarray, np.generic), _array),
        (HostData, _host_data),
        ((Spec, np.dtype), lambda self, value: self.word(str(value))),
        (Function, lambda self, value: self.add(value.value)),
        (TracedStage, lambda self, value: self.add(value.python)),
        ((set, frozenset, tuple, list, dict), _container),
        (types.ModuleType, lambda self, value: self.word("module", value.__name__)),
        (type, _class),
        (types.FunctionType, _function),
        (types.MethodType, _method),
        (functools.partial, _partial),
        ((types.BuiltinFunctionType, types.MethodWrapperType, np.ufunc), _built_in),
        (types.GeneratorType, lambda self, x: self._refuse(x, "it can be read only once")),
    )


def _attributes(value: Any) -> dict[str, Any] | None:
    """All attributes of an object, from its slots and its dict; None if it has neither."""
    slots = [
        name
        for cls in type(value).__mro__
        for name, each in vars(cls).items()
        if isinstance(each, types.MemberDescriptorType) and not is_library(cls)
    ]
    if not slots and not hasattr(value, "__dict__"):
        return None
    held = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return {**held, **getattr(value, "__dict__", {})}
