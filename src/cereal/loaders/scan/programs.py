"""Compiled programs that call users' functions: the bodies of scans, the metrics of `evaluate`.

    proved unchanged   ->  the same compiled program, without tracing
    otherwise          ->  traced again; the trace is the key to its program, arrays are arguments

So a program never uses old values of a function's variables. A function that is defined again in
every epoch, or belongs to an object that changes, is traced in each call and compiled once.
Programs hold no data, no parameters and no loaders, and all loaders share them.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from ...base.capture import eager
from ...device.placement import is_spread
from ...functions.compiled import Latest, TracedAgain, compiled, compiled_once, kind_of
from ...functions.meaning import trace, tracing_context
from ...functions.unchanged import Proof, proof_of
from .epoch_scan import checked_body, scan_read, scan_steps

_proved = Latest()


class Body(NamedTuple):
    """What a program calls in its loop: `fn(given, batch, mask)`."""

    fn: Callable[..., Any]
    functions: tuple[Any, ...]  # the user's functions that `fn` calls, and nothing else
    given: Any  # arrays: a carry, or arguments
    source: Any  # the pipeline that makes the batches
    carries: bool = False  # whether the first value that it returns is `given` in the next step

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Its arguments, as arrays or their specs."""
        mask = jax.ShapeDtypeStruct(self.source.traits.mask_shape, np.bool_)
        return (self.given, self.source.element_spec(), mask)


def program(name: Hashable, body: Body, run: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled `program(*args)` that does `run(body, *args)`; valid for one call by the user.

    `name` is everything else that `run` depends on.
    """
    placement = body.source.traits.placement
    explicit = is_spread(placement) and placement.explicit
    if len(body.functions) > 1 or explicit or not jax.sharding.get_abstract_mesh().empty:
        # Feedback gets the state that the scan carries; and with explicit axes of a mesh, types
        # depend on the code around the body. So the whole program is traced, not only the body.
        return _whole(name, body, run)
    found = _found_quickly(name, body)
    if found is not None:
        return found
    proof = proof_of(*body.functions)
    if proof is None or proof.arrays:
        return _by_meaning(name, body, run)
    key = (name, proof.key, kind_of(body.inputs), eager(), tracing_context())
    # The key holds ids of objects; the proof, kept beside the program, keeps these objects alive.
    found = _proved.get(key, lambda: (_by_meaning(name, body, run), proof))[0]
    _remember(name, body, proof, found)
    return found


def _whole(name: Hashable, body: Body, run: Callable[..., Any]) -> Any:
    """A program that is traced whole; again in every call, unless its function is proved."""
    proof = proof_of(*body.functions)
    if proof is None or proof.arrays:
        return TracedAgain(partial(run, body.fn))
    key = ("whole", name, proof.key, eager(), tracing_context())
    return _proved.get(key, lambda: (TracedAgain(partial(run, body.fn)), proof))[0]


class _Quick(NamedTuple):
    """A program that was found before, and what must still hold for using it again."""

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
        # If a body turns the carry 0 into a float, `lax.scan` traces it again with 0.0.
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
    """A program `(source, state, carry) -> (state, carry, outputs)` for this number of steps."""

    def run(body: Any, source: Any, state: Any, carry: Any) -> Any:
        return scan_steps(source, state, carry, body, steps, unroll, feedback=feedback)

    functions = (body_fn,) if feedback is None else (body_fn, feedback)
    body = Body(checked_body(body_fn), functions, carry, source, carries=True)
    return program(("steps", steps, unroll), body, run)


def over_rows(source: Any, carry: Any, body_fn: Any, unroll: int | bool) -> Any:
    """A program `(source, rows, carry) -> (carry, outputs)` for rows that were fetched."""

    def run(body: Any, source: Any, rows: Any, carry: Any) -> Any:
        return scan_read(source, rows, carry, body, unroll)

    body = Body(checked_body(body_fn), (body_fn,), carry, source, carries=True)
    return program(("rows", unroll), body, run)
