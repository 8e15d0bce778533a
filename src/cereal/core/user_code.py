"""Code of the user's that a pipeline runs when it is traced: methods of own sources, policies.

JAX knows a pipeline again by its structure, in which a class and a function stand for themselves.
But what they refer to may have changed. So a pipeline that has such code carries a number in its
structure, one for each thing that it traces to:

    proved unchanged   the same number
    else               traced again; what it traces to has a number already, or gets the next

Functions in stages have a better way: they are part of the structure as what they trace to
(`traced_stage`).
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections import OrderedDict
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from .held import Held
from .library import is_library
from .meaning import trace, tracing_context
from .node_proof import proof_of_node
from .pytree import is_numbered, set_copy
from .rows import rows_at
from .unchanged import Proof

N = TypeVar("N")
_MOST = 256
_lock = threading.Lock()
_next_number = itertools.count(1)
_known: OrderedDict[Any, tuple[int, list[Any]]] = OrderedDict()


class _Seen(NamedTuple):
    """A pipeline with its number, and the proof that it still has it."""

    source: Any  # None: the one that has this, which must not refer to itself
    proofs: tuple[Proof | None, ...]
    context: Any

    def holds(self) -> bool:
        if self.context != tracing_context():
            return False
        return all(proof is not None and proof.holds() for proof in self.proofs)


def with_code(source: N, state: Any, *, thorough: bool) -> N:
    """The pipeline with the number of what its code does now, in a step from this state.

    Not `thorough`: of a stream, what cannot be proved is looked at once; tracing a whole step of an
    environment before every step would cost many times the step.
    """
    fields: Any = source.__dict__
    seen = fields.get("_seen_code")
    if seen is None and not _carriers(source):
        fields["_seen_code"] = seen = _Seen(None, (), None)
    if seen is not None and _is_enough(seen, thorough or hasattr(source, "_read")):
        return source if seen.source is None else seen.source
    fields["_seen_code"] = seen = _numbered(source, state)
    return seen.source


def _is_enough(seen: _Seen, thorough: bool) -> bool:
    return not seen.proofs or not thorough or seen.holds()


def _numbered(source: Any, state: Any) -> _Seen:
    carriers = _carriers(source)
    proofs, context = tuple(map(proof_of_node, carriers)), tracing_context()
    first = set_copy(carriers[0])
    first.__dict__["_code"] = _number_of(source, state)
    made = jax.tree.map(lambda x: first if x is carriers[0] else x, source, is_leaf=_is_whole)
    seen = _Seen(made, proofs, context)
    made.__dict__["_seen_code"] = seen._replace(source=None)
    return seen


def _carriers(source: Any) -> list[Any]:
    """What has compiled code of the user's in it. What Python runs is never stale."""
    found = [x for x in jax.tree.leaves(source, is_leaf=_is_carrier) if _is_carrier(x)]
    if source.traits.host:
        return [x for x in found if _is_compiled_source(x)]
    return [x for x in found if not _is_callback(x, source)]


def _is_compiled_source(node: Any) -> bool:
    return hasattr(node, "_read") and not node.traits.host


def _is_callback(node: Any, source: Any) -> bool:
    return isinstance(node, Held) and any(node.fixed is each for each in source.traits.callbacks)


def _is_carrier(node: Any) -> bool:
    return is_numbered(node) and (not isinstance(node, Held) or _is_users(node))


def _is_users(held: Held) -> bool:
    """Whether the user's code runs when this is used."""
    if held.fixed is not None:
        return callable(held.fixed) or not is_library(type(held.fixed))
    return callable(held.tree) or not is_library(type(held.tree))


def _is_whole(node: Any) -> bool:
    """What is not to be taken apart: a stage that knows its Python would forget it."""
    return _is_carrier(node) or hasattr(node, "watched")


def _number_of(source: Any, state: Any) -> int:
    """The number of what a step of the pipeline traces to, its order aside."""
    if source.traits.host:  # a whole step would read data; what is compiled of it are the sources
        found = [_traced_read(each, ()) for each in _carriers(source)]
    elif hasattr(source, "_read"):
        found = [_traced_read(source, source.traits.lanes)]
    else:
        step = lambda source, state: source._step(state)  # noqa: E731
        found = [trace(step, source, state, of_pipeline=True)]
    if any(traced.meaning is None for traced, _ in found):
        return next(_next_number)
    arrays = [array for _, each in found for array in each]
    key = (tuple(traced for traced, _ in found), tuple(map(_name_of, arrays)))
    with _lock:
        # The arrays are kept, since the number is one of these very arrays.
        found = _known.pop(key, None) or (next(_next_number), arrays)
        _known[key] = found
        if len(_known) > _MOST:
            _known.popitem(last=False)
        return found[0]


def _traced_read(source: Any, lanes: tuple[int, ...]) -> Any:
    rows = jax.eval_shape(lambda: rows_at(jnp.zeros(lanes or (1,), jnp.int32)))
    read = lambda source, rows: source._read(source._route(rows))  # noqa: E731
    return trace(read, source, rows, of_pipeline=True)


def _name_of(array: Any) -> Any:
    if isinstance(array, np.ndarray):
        return str(array.dtype), array.shape, hashlib.sha1(array.tobytes()).digest()
    return id(array)
