"""Many steps in one `lax.scan`, with the order computed ahead of the loop.

    rows of 4 M elements at once  ->  scan: gather, body  ->  rows ...

Inside the loop there is a gather and the user's body, as in a loop written by hand over a stored
permutation; but at most 4 M indices are stored at a time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..core.errors import UsageError
from ..core.position import Remainder
from ..core.rows import Rows
from ..core.source import Positional, Source, step_ending
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


def scan_steps(
    source: Source[Any],
    state: Any,
    carry: Any,
    body_fn: BodyFn,
    steps: int,
    unroll: int | bool = 1,
    remainder: Remainder | None = None,
) -> tuple[Any, Any, Any]:
    """Runs `body_fn` over the next `steps` batches; traced by whoever calls.

    `remainder` is a rule for the end of an epoch other than the pipeline's.
    """
    body = checked_body(body_fn)
    if isinstance(source, Positional) and not source.host and (remainder or not source.callbacks):
        return _scan_rows(source, state, carry, body, steps, unroll, remainder)

    def one(loop: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], Any]:
        if isinstance(source, Positional):
            values, mask, state = step_ending(source, loop[0], remainder)
        else:
            values, mask, state = source.step(loop[0])
        carry, output = body(loop[1], values, mask)
        return (state, carry), output

    (state, carry), outputs = lax.scan(one, (state, carry), length=steps, unroll=unroll)
    return state, carry, outputs


def checked_body(body_fn: BodyFn) -> BodyFn:
    """A body that says so if it does not return a carry and an output."""

    def body(carry: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
        result = body_fn(carry, batch, mask)
        if not isinstance(result, tuple) or len(result) != 2:
            raise UsageError(
                f"`body_fn` must return (carry, output), returned {type(result).__name__}; "
                f"{_WRITE} (the output may be None)."
            )
        return result

    return body


def scan_read(
    source: Positional[Any], rows: Rows, carry: Any, body: BodyFn, unroll: int | bool
) -> tuple[Any, Any]:
    """Runs `body` over batches whose rows are known."""
    lanes = source.lanes

    def one(carry: Any, each: Rows) -> tuple[Any, Any]:
        values, mask = source.read(each.replaced(key=rows.key))
        return body(carry, values, jnp.ones(lanes, jnp.bool_) if mask is None else mask)

    return lax.scan(one, carry, rows.lanes, unroll=unroll)


def _scan_rows(
    source: Positional[Any],
    state: PipelineState,
    carry: Any,
    body: BodyFn,
    steps: int,
    unroll: int | bool,
    remainder: Remainder | None,
) -> tuple[Any, Any, Any]:
    plan = source.plan.ending(remainder)

    def run(words: Any, carry: Any, steps: int) -> tuple[Any, Any, Any]:
        rows, words = plan.rows_for(words, steps)
        carry, outputs = scan_read(source, source.route(rows), carry, body, unroll)
        return words, carry, outputs

    def run_chunk(loop: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], Any]:
        words, carry, outputs = run(*loop, chunk)
        return (words, carry), outputs

    words, chunk = state.words, chunk_steps(steps, max(1, _MOST_LANES // plan.batch))
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
    return state.replaced(words), carry, outputs


def chunk_steps(steps: int, most: int) -> int:
    """How many steps to take at a time, at most `most`.

    A divisor of `steps` if there is a large one: a rest is a second copy of the body to compile.
    """
    if steps <= most:
        return max(steps, 1)
    whole = next((c for c in range(most, most // 8, -1) if steps % c == 0), None)
    return whole or most
