"""Many steps in one `lax.scan`, with the order computed ahead of the loop.

    rows of 4 M elements at once  ->  scan: gather, body  ->  rows ...

Inside the loop there is a gather and the user's body, as in a loop written by hand over a stored
permutation; but at most 4 M indices are stored at a time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax import lax

from ..core.errors import UsageError
from ..core.rows import Rows
from ..core.source import Positional, Source
from ..core.state import PipelineState

_MOST_LANES = 1 << 22
BodyFn = Callable[[Any, Any, Any], tuple[Any, Any]]
_WRITE = "write `def body_fn(carry, batch, mask): ...; return carry, output`"


def check_body(body_fn: Any) -> None:
    """A body takes (carry, batch, mask)."""
    if not callable(body_fn):
        raise UsageError(f"`body_fn` must be callable, got {type(body_fn).__name__}; {_WRITE}.")
    try:
        inspect.signature(body_fn).bind(None, None, None)
    except TypeError as error:
        name = getattr(body_fn, "__name__", type(body_fn).__name__)
        raise UsageError(
            f"`body_fn` is called with (carry, batch, mask), which `{name}"
            f"{inspect.signature(body_fn)}` does not take; {_WRITE}."
        ) from error
    except ValueError:  # a built-in without a signature
        return


def can_be_kept(body_fn: Any) -> bool:
    """Whether a program of this body may be found again: not if it holds values of a trace."""
    try:
        hash(body_fn)
        held = [cell.cell_contents for cell in getattr(body_fn, "__closure__", None) or ()]
    except (TypeError, ValueError):  # not hashable; a cell that is empty still
        return False
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(held))


def identity(body_fn: Any) -> Hashable:
    """What makes two bodies one: the same code over the same objects.

    A body that is defined inside the loop over epochs is a new function every time, and must not
    be compiled every time. Whoever keeps an identity keeps the function too, so that the objects
    live and their numbers stay theirs.
    """
    if not inspect.isfunction(body_fn):
        return body_fn
    cells = [cell.cell_contents for cell in body_fn.__closure__ or ()]
    held = [*cells, *(body_fn.__defaults__ or ()), *(body_fn.__kwdefaults__ or {}).values()]
    plain = (int, float, str, bytes, type(None))
    known = ((type(x), x) if type(x) in (*plain, bool) else id(x) for x in held)
    return (body_fn.__code__, id(body_fn.__globals__), tuple(known))


def scan_steps(
    source: Source[Any], state: Any, carry: Any, body_fn: BodyFn, steps: int, unroll: int | bool
) -> tuple[Any, Any, Any]:
    """Runs `body_fn` over the next `steps` batches; traced by whoever calls."""

    def body(carry: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
        result = body_fn(carry, batch, mask)
        if not isinstance(result, tuple) or len(result) != 2:
            raise UsageError(
                f"`body_fn` must return (carry, output), returned {type(result).__name__}; "
                f"{_WRITE} (the output may be None)."
            )
        return result

    if isinstance(source, Positional) and not source.callbacks:
        return _scan_rows(source, state, carry, body, steps, unroll)

    def one(loop: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], Any]:
        values, mask, state = source.step(loop[0])
        carry, output = body(loop[1], values, mask)
        return (state, carry), output

    (state, carry), outputs = lax.scan(one, (state, carry), length=steps, unroll=unroll)
    return state, carry, outputs


def _scan_rows(
    source: Positional[Any],
    state: PipelineState,
    carry: Any,
    body: BodyFn,
    steps: int,
    unroll: int | bool,
) -> tuple[Any, Any, Any]:
    plan = source.plan

    def run(words: Any, carry: Any, steps: int) -> tuple[Any, Any, Any]:
        rows, words = plan.rows_for(words, steps)

        def one(carry: Any, lanes: tuple[Any, Any, Any]) -> tuple[Any, Any]:
            values, mask = source.read(Rows(rows.key, *lanes))
            mask = jnp.ones(plan.lanes, jnp.bool_) if mask is None else mask
            return body(carry, values, mask)

        lanes = (rows.epoch, rows.index, rows.valid)
        carry, outputs = lax.scan(one, carry, lanes, length=steps, unroll=unroll)
        return words, carry, outputs

    def run_chunk(loop: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], Any]:
        words, carry, outputs = run(*loop, chunk)
        return (words, carry), outputs

    words, chunk = state.words, _chunk_steps(steps, plan.batch)
    pieces = []
    if steps > chunk:
        (words, carry), outputs = lax.scan(run_chunk, (words, carry), length=steps // chunk)
        pieces.append(jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), outputs))
    rest = steps % chunk if steps > chunk else steps
    if rest or not pieces:
        words, carry, outputs = run(words, carry, rest)
        pieces.append(outputs)
    outputs = jax.tree.map(lambda *parts: jnp.concatenate(parts), *pieces)
    outputs = pieces[0] if len(pieces) == 1 else outputs
    return PipelineState(words, state.fingerprint), carry, outputs


def _chunk_steps(steps: int, batch: int) -> int:
    """How many steps to compute the order for at a time.

    A divisor of `steps` if there is a large one: a rest is a second copy of the body to compile.
    """
    most = max(1, _MOST_LANES // batch)
    if steps <= most:
        return max(steps, 1)
    whole = next((c for c in range(most, most // 8, -1) if steps % c == 0), None)
    return whole or most
