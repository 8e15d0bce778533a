"""The user's code that runs when a pipeline is traced: methods of the user's sources, policies.

JAX recognises a pipeline by its structure, which contains the user's classes and functions. But
what these refer to may have changed, and the structure does not show it. So a pipeline with such
code has a number in its structure, one for each different trace:

    proved unchanged   the same number
    else               traced again; a known trace has its number, a new one gets the next number

Functions in stages need no number: their traces are in the structure (`traced_stage`).
"""

from __future__ import annotations

import hashlib
import itertools
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..base.pytree import is_numbered, set_copy
from ..order.rows import rows_at
from .compiled import Latest
from .library import is_library
from .meaning import trace, tracing_context
from .node_proof import proof_of_node
from .opaque import Opaque
from .unchanged import Proof

N = TypeVar("N")
_next_number = itertools.count(1)
_known = Latest(256)  # the number of each trace, with the arrays that it closes over


class _Seen(NamedTuple):
    """A pipeline with its number, and the proof that the number is still right."""

    source: Any  # None: the pipeline that holds this, which must not refer to itself
    proofs: tuple[Proof | None, ...]
    context: Any

    def holds(self) -> bool:
        if self.context != tracing_context():
            return False
        return all(proof is not None and proof.holds() for proof in self.proofs)


def with_code(source: N, state: Any, *, thorough: bool) -> N:
    """The pipeline with the number of its code as it is now, for a step from this state.

    Without `thorough`, a stream whose code cannot be proved is traced only once. To trace a step of
    an environment before every step would cost many times as much as the step.
    """
    fields: Any = source.__dict__
    seen = fields.get("_seen_code")
    if seen is None and not _carriers(source):
        fields["_seen_code"] = seen = _Seen(None, (), None)
    if seen is not None:
        look = seen.proofs and (thorough or hasattr(source, "_read"))
        if not look or seen.holds():
            return source if seen.source is None else seen.source
    fields["_seen_code"] = seen = _numbered(source, state)
    return seen.source


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
    """The nodes with the user's compiled code. (Code that Python runs is never outdated.)"""
    found = [x for x in jax.tree.leaves(source, is_leaf=_is_carrier) if _is_carrier(x)]
    if source.traits.host:
        return [x for x in found if hasattr(x, "_read") and not x.traits.host]
    callbacks = set(map(id, source.traits.callbacks))
    return [x for x in found if not (isinstance(x, Opaque) and id(x.fixed) in callbacks)]


def _is_carrier(node: Any) -> bool:
    if not isinstance(node, Opaque):
        return is_numbered(node)
    return is_numbered(node) and (callable(node.value) or not is_library(type(node.value)))


def _is_whole(node: Any) -> bool:
    """Whether to leave a node as it is. A copy of a traced stage would lose its Python function."""
    return _is_carrier(node) or hasattr(node, "watched")


def _number_of(source: Any, state: Any) -> int:
    """The number of the trace of a step; the order of the elements does not count."""
    if source.traits.host:  # a whole step would read data, so only compiled sources are traced
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
    # The arrays are kept alive, since their `id` is part of the key.
    return _known.get(key, lambda: (next(_next_number), arrays))[0]


def _traced_read(source: Any, lanes: tuple[int, ...]) -> Any:
    rows = jax.eval_shape(lambda: rows_at(jnp.zeros(lanes or (1,), jnp.int32)))
    read = lambda source, rows: source._read(source._route(rows))  # noqa: E731
    return trace(read, source, rows, of_pipeline=True)


def _name_of(array: Any) -> Any:
    if isinstance(array, np.ndarray):
        return str(array.dtype), array.shape, hashlib.sha1(array.tobytes()).digest()
    return id(array)
