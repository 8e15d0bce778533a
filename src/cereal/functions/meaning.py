"""What a function traces to: a program, and the arrays that it closes over.

    fn, arguments  --traced-->  steps (compared by `meaning`)  +  arrays (become arguments)

Two functions that trace to the same steps are one program, even if their Python objects differ: a
lambda in a loop, a bound method, a closure over a trainer. But callbacks and the user's rules of
differentiation are still Python in a trace. If they cannot be proved equal, the programs differ.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import types
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import (
    ClosedJaxpr,  # pyright: ignore[reportPrivateImportUsage]  # JAX 0.12
    Jaxpr,
    Literal,
    jaxpr_as_fun,
)

from ..base.capture import is_traced
from ..base.jax_internals import trace_context, written_at
from ..device.explicit_axes import explicit_mesh
from .inlined import run_inlined
from .inner_functions import forget_seen, met_new
from .library import is_library, is_library_file
from .unchanged import proof_of

# The bet: JAX keeps the rules of differentiation of a function under these names, and the function
# of a callback as `callback_func`. If it is lost, `tests/functions/test_meaning.py` fails first:
# `test_a_rule_of_the_users_counts_unless_nobody_can_ask_for_it` and
# `test_the_users_callback_is_compared_by_what_can_be_proved`.
_RULES = {"jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd", "out_trees", "jvp_jaxpr_thunk"}
_OWN_RULES = re.compile(r"[/\\](jax|optax|flax|cereal)[/\\](?!.*custom_derivatives)")
_PLAIN = (int, str, bytes, bool, type(None))
_PYTHON = (types.FunctionType, types.MethodType, functools.partial)


class Traced:
    """A function as it was traced for arguments of some shapes. It holds no arrays.

    It is equal to others that do the same. The arrays that the function closes over are passed to
    it as `consts`.
    """

    def __init__(self, closed: ClosedJaxpr, result: Any, meaning: _Meaning) -> None:
        self.result = result  # a tree of specs
        self._closed, self._out_tree = closed, jax.tree.structure(result)
        try:
            self.meaning: Hashable = (meaning.of(closed), self._out_tree)
            self._hash = hash(self.meaning)
        except (_DifferentError, TypeError):
            self.meaning = None  # different from all others
            self._hash = id(self)

    def __call__(self, consts: Any, leaves: Any) -> Any:
        """The result for these arguments (`leaves`) and these closed-over arrays (`consts`)."""
        if explicit_mesh(*leaves) is None:
            made = jaxpr_as_fun(self._closed)(*consts, *leaves)
        else:
            made = run_inlined(self._closed, *consts, *leaves)
        return jax.tree.unflatten(self._out_tree, made)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Traced) or self.meaning is None:
            return False
        return self._hash == other._hash and self.meaning == other.meaning

    def __hash__(self) -> int:
        return self._hash


def trace(
    fn: Callable[..., Any], *args: Any, compiled_only: bool = False, of_pipeline: bool = False
) -> tuple[Traced, list[Any]]:
    """The function as a program, and the arrays that it closes over.

    `compiled_only`: nobody will differentiate or map it, so its rules for that are not compared.
    `of_pipeline`: it is compared only with pipelines of the same structure. cereal's own callbacks
    are new objects in every trace, but all that they depend on is in that structure. So they count
    as equal.
    """
    forget_seen()
    closed, result = _traced_anew(fn, args)
    if met_new(closed):
        closed, result = _traced_anew(fn, args)
    # The user may write into NumPy arrays while a program reads them, so they are copied.
    consts = [x if isinstance(x, jax.Array) else np.array(x) for x in closed.consts]
    opened = _opened(closed, consts, jax.tree.leaves(args)) if consts else closed
    return Traced(opened, result, _Meaning(compiled_only, of_pipeline)), consts


def _traced_anew(fn: Callable[..., Any], args: Any) -> tuple[ClosedJaxpr, Any]:
    # A new lambda every time, because JAX caches traces by the identity of the function.
    return jax.make_jaxpr(lambda *args: fn(*args), return_shape=True)(*args)


def _opened(closed: ClosedJaxpr, consts: list[Any], leaves: list[Any]) -> ClosedJaxpr:
    """The same program, with the arrays that it closes over as its first arguments."""

    def run(consts: Any, leaves: Any) -> Any:
        return jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, consts))(*leaves)

    return jax.make_jaxpr(run)(consts, leaves)


def tracing_context() -> Any:
    """All settings of JAX that a trace depends on; equal values mean equal traces."""
    context = trace_context()
    return object() if context is None else context()


class _DifferentError(Exception):
    """A program has something that cannot be compared."""


class _Meaning:
    """Makes hashable values of programs. Two values are equal only if the programs do the same."""

    def __init__(self, compiled_only: bool, of_pipeline: bool) -> None:
        self._compiled_only, self._of_pipeline = compiled_only, of_pipeline

    def of_jaxpr(self, jaxpr: Jaxpr) -> Hashable:
        numbers: dict[Any, int] = {}

        def bind(variable: Any) -> Hashable:
            numbers[variable] = len(numbers)
            return variable.aval

        def read(atom: Any) -> Hashable:
            if isinstance(atom, Literal):
                return (atom.aval, self.of(atom.val))
            return numbers[atom]

        inputs = tuple(map(bind, (*jaxpr.constvars, *jaxpr.invars)))
        steps = []
        for eqn in jaxpr.eqns:
            operands = tuple(map(read, eqn.invars))
            params = self._params(eqn)
            steps.append((eqn.primitive, operands, params, eqn.ctx, tuple(map(bind, eqn.outvars))))
        return (len(jaxpr.constvars), inputs, tuple(steps), tuple(map(read, jaxpr.outvars)))

    def _params(self, eqn: Any) -> Hashable:
        rules = _RULES if "call_jaxpr" in eqn.params else set()
        if rules and not self._compiled_only and not _of_library(eqn.params["call_jaxpr"]):
            rules = set()  # the user's own rule: compared as it is
        return tuple(
            (name, self.of(value)) for name, value in eqn.params.items() if name not in rules
        )

    def of(self, value: Any) -> Hashable:
        if type(value) in _PLAIN:
            return (type(value), value)
        if isinstance(value, float | complex):
            return (type(value), repr(value))  # 0.0 is not -0.0
        if isinstance(value, Jaxpr | ClosedJaxpr):  # since JAX 0.11 they are one class
            inner: Any = value
            consts = getattr(inner, "consts", ())
            return (self.of_jaxpr(getattr(inner, "jaxpr", inner)), *map(self.of, consts))
        if isinstance(value, tuple | list):
            return (type(value), *map(self.of, value))
        if isinstance(value, dict):
            return tuple((self.of(name), self.of(each)) for name, each in value.items())
        if is_traced(value):
            raise _DifferentError
        if isinstance(value, jax.Array | np.ndarray | np.generic) or _is_array(value):
            return _content(value)
        if isinstance(value, _PYTHON):
            found = proof_of(value)
            if found is None or found.arrays:
                raise _DifferentError
            return (found.key, _Kept(found.held))
        if hasattr(value, "callback_func"):  # its references are read when it runs, not when traced
            fn = value.callback_func
            is_ours = self._of_pipeline and _is_ours(fn)
            return (type(value), fn.__code__ if is_ours else _same(fn), self.of(value.in_tree))
        return (type(value), value if is_library(type(value)) else _same(value))


def _is_ours(fn: Any) -> bool:
    module = getattr(fn, "__module__", None) or ""
    return isinstance(fn, types.FunctionType) and module.partition(".")[0] == "cereal"


@dataclasses.dataclass(frozen=True)
class _Kept:
    """Keeps objects alive whose `id` is part of a value. It is equal to any other `_Kept`."""

    things: Any = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class _Same:
    """An object of the user's, which is equal only to itself, whatever its `__eq__` says."""

    identity: tuple[int, ...]
    thing: Any = dataclasses.field(compare=False)  # kept: no other object gets its identity


def _same(thing: Any) -> _Same:
    if isinstance(thing, types.MethodType):  # Python makes a new object at every access
        return _Same((id(thing.__self__), id(thing.__func__)), thing)
    return _Same((id(thing),), thing)


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") and hasattr(value, "dtype") and hasattr(value, "shape")


def _content(value: Any) -> Hashable:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    return (str(array.dtype), array.shape, array.tobytes())


def _of_library(call: Any) -> bool:
    """Whether a function with its own rule of differentiation is a library's, as `jax.nn.relu` is.

    False if a library made it from a function of the user's: `jax.custom_gradient`, and all such
    functions of Equinox.
    """
    place = written_at(call)
    if place is None:
        return False
    return is_library_file(place[0]) and bool(_OWN_RULES.search(place[0]))
