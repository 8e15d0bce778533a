"""Compiled programs over functions of the user's: the bodies of scans, the metrics of `evaluate`.

    proved unchanged   ->  the same compiled program, nothing is looked at
    else               ->  traced again; what it traces to finds the program, arrays are arguments

So a function is never stale, and one that is defined anew in every epoch, or belongs to an object
that changes, is traced once a call and compiled once. Programs hold no data, no parameters and
no loaders, and are shared by all loaders.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from ..core.capture import eager
from ..core.compiled import Latest, TracedAgain, compiled, compiled_once, kind_of
from ..core.meaning import trace, tracing_context
from ..core.unchanged import Proof, proof_of
from .epoch_scan import checked_body, scan_read, scan_steps

_proved = Latest()


class Body(NamedTuple):
    """What a program calls in its loop: `fn(given, batch, mask)`."""

    fn: Callable[..., Any]
    functions: tuple[Any, ...]  # the user's, that `fn` calls; it depends on nothing else
    given: Any  # arrays: a carry, or arguments
    source: Any  # whose batches they are
    carries: bool = False  # what it returns first is what it is given next

    @property
    def inputs(self) -> tuple[Any, ...]:
        """What it is called with, as arrays or their specs."""
        mask = jax.ShapeDtypeStruct(self.source.traits.mask_shape, np.bool_)
        return (self.given, self.source.element_spec(), mask)


def program(name: Hashable, body: Body, run: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled `program(*args)` that does `run(body, *args)`, for one call of the user's.

    `name` is all else that `run` depends on.
    """
    if len(body.functions) > 1 or not jax.sharding.get_abstract_mesh().empty:
        # Feedback is called with the state that the scan carries; and with explicit axes of a mesh,
        # types depend on what is around the body. So the whole is traced, not the body.
        return TracedAgain(partial(run, body.fn))
    found = _found_quickly(name, body)
    if found is not None:
        return found
    proof = proof_of(*body.functions)
    if proof is None or proof.arrays:
        return _by_meaning(name, body, run)
    key = (name, proof.key, kind_of(body.inputs), eager(), tracing_context())
    # The proof is kept with the program, since its key is of identities.
    found = _proved.get(key, lambda: (_by_meaning(name, body, run), proof))[0]
    _remember(name, body, proof, found)
    return found


class _Quick(NamedTuple):
    """The program of the same function, over batches of the same pipeline, if all is as it was."""

    proof: Proof
    spec: Any
    kind: Hashable
    context: Any
    run: Any


_quick = Latest()  # by the identity of a function, which its proof keeps alive


def _remember(name: Hashable, body: Body, proof: Proof, run: Any) -> None:
    fn, spec = body.functions[0], body.source._spec
    if isinstance(fn, types.FunctionType) and spec is not None:
        context = (eager(), tracing_context())
        _quick.put((id(fn), name), _Quick(proof, spec, kind_of(body.given), context, run))


def _found_quickly(name: Hashable, body: Body) -> Any:
    found = _quick.get((id(body.functions[0]), name))
    if found is None or body.source._spec is not found.spec:
        return None
    if not found.proof.holds() or found.context != (eager(), tracing_context()):
        return None
    return found.run if kind_of(body.given) == found.kind else None


def _by_meaning(name: Hashable, body: Body, run: Callable[..., Any]) -> Any:
    traced, arrays = trace(body.fn, *body.inputs, compiled_only=eager())
    if body.carries and _dtypes(body.given) != _dtypes(traced.result[0]):
        # A scan turns 0 into 0.0 for a body that makes floats of it, and traces it again.
        return TracedAgain(partial(run, body.fn))

    def run_traced(arrays: Any, *args: Any) -> Any:
        return run(lambda *inputs: traced(arrays, jax.tree.leaves(inputs)), *args)

    return partial(compiled_once((name, traced), traced, run_traced), arrays)


def _dtypes(tree: Any) -> list[Any]:
    return [jax.typeof(x).dtype for x in jax.tree.leaves(tree)]


def forget_programs() -> None:
    """Drops all programs: for tests that count compilations."""
    _proved.clear()
    compiled.clear()
    _quick.clear()


def over_steps(
    source: Any, carry: Any, body_fn: Any, steps: int, unroll: int | bool, feedback: Any = None
) -> Any:
    """`(source, state, carry) -> (state, carry, outputs)` for so many steps."""

    def run(body: Any, source: Any, state: Any, carry: Any) -> Any:
        return scan_steps(source, state, carry, body, steps, unroll, feedback=feedback)

    functions = (body_fn,) if feedback is None else (body_fn, feedback)
    body = Body(checked_body(body_fn), functions, carry, source, carries=True)
    return program(("steps", steps, unroll), body, run)


def over_rows(source: Any, carry: Any, body_fn: Any, unroll: int | bool) -> Any:
    """`(source, rows, carry) -> (carry, outputs)` for rows that were fetched."""

    def run(body: Any, source: Any, rows: Any, carry: Any) -> Any:
        return scan_read(source, rows, carry, body, unroll)

    body = Body(checked_body(body_fn), (body_fn,), carry, source, carries=True)
    return program(("rows", unroll), body, run)
