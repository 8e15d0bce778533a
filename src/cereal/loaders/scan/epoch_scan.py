"""Many steps in one `lax.scan`, with the order computed ahead of the loop.

    rows of 4 M elements at once  ->  scan: gather, body  ->  rows ...

Inside the loop there are only a gather and the user's body, as in a loop that you write by hand
over a stored permutation. But at most 4 M indices are stored at a time.
"""

from __future__ import annotations

import inspect
import types
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ...base.errors import UsageError
from ...base.spec import format_spec
from ...device.placement import placed
from ...functions.function import function_name
from ...order.position import Remainder
from ...order.rows import Rows
from ...pipeline.positional import Positional, step_ending
from ...pipeline.read_step import read_step, rows_of_steps
from ...pipeline.source import Source
from ...pipeline.state import PipelineState
from ..masked_mean import note_unbatched

_MOST_LANES = 1 << 22
_MOST_EPOCHS = 1 << 14  # in one chunk, for tiny data: each epoch has 320 bytes of constants
BodyFn = Callable[[Any, Any, Any], tuple[Any, Any]]
FeedbackFn = Callable[[Any, Any, Any], Any]
_WRITE = "write `def body_fn(carry, batch, mask): ...; return carry, output`"
_WRITE_FEEDBACK = "write `def feedback(state, carry, output): ...; return state`"


def check_body(body_fn: Any, feedback: Any = None) -> None:
    """Refuses a body that cannot take (carry, batch, mask), or feedback (state, carry, output)."""
    _check_three(body_fn, "body_fn", "(carry, batch, mask)", _WRITE)
    if feedback is not None:
        _check_three(feedback, "feedback", "(state, carry, output)", _WRITE_FEEDBACK)


_take_three: weakref.WeakSet[Any] = weakref.WeakSet()


def _check_three(fn: Any, name: str, arguments: str, write: str) -> None:
    if isinstance(fn, types.FunctionType) and fn in _take_three:
        return
    if not callable(fn):
        raise UsageError(f"`{name}` must be callable, got {type(fn).__name__}; {write}.")
    try:
        inspect.signature(fn).bind(None, None, None)
        if isinstance(fn, types.FunctionType):
            _take_three.add(fn)
    except TypeError as error:
        called = function_name(fn)
        raise UsageError(
            f"`{name}` is called with {arguments}, which `{called}{inspect.signature(fn)}` does "
            f"not take; {write}."
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
    feedback: FeedbackFn | None = None,
) -> tuple[Any, Any, Any]:
    """Runs `body_fn` over the next `steps` batches; the caller traces this function.

    `remainder` replaces the pipeline's rule for the end of an epoch. `feedback` may change the
    position in the state, so with it the order is not computed ahead.
    """
    body = checked_body(body_fn)
    step_by_step = feedback is not None or (source.traits.callbacks and not remainder)
    if isinstance(source, Positional) and not source.traits.host and not step_by_step:
        return _scan_rows(source, state, carry, body, steps, unroll, remainder)

    def one(loop: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], Any]:
        if isinstance(source, Positional):
            values, mask, state = step_ending(source, loop[0], remainder)
        else:
            values, mask, state = source._step(loop[0])
        values, mask = placed(source.traits, values, mask)
        carry, output = body(loop[1], values, mask)
        if feedback is not None:
            state = fed_back(feedback, state, carry, output)
        return (state, carry), output

    (state, carry), outputs = lax.scan(one, (state, carry), length=steps, unroll=unroll)
    return state, carry, outputs


def fed_back(
    feedback: Callable[..., Any], state: Any, *args: Any, name: str = "`feedback`", write: str = ""
) -> Any:
    """The state that `feedback` returns; refuses one of another structure, shape or dtype."""
    made = feedback(state, *args)
    before, after = jax.tree.structure(state), jax.tree.structure(made)
    if before != after:
        raise UsageError(
            f"{name} must return the loader's state, changed or not, returned "
            f"{type(made).__name__}; {write or _WRITE_FEEDBACK}."
            + ("" if type(made) is not type(state) else f" It gave {after} for {before}.")
        )

    def checked(path: Any, old: Any, new: Any) -> Any:
        if jnp.shape(new) != old.shape or jnp.result_type(new) != old.dtype:
            raise UsageError(
                f"{name} changed `state{jax.tree_util.keystr(path)}` from {format_spec(old)} "
                f"to {format_spec(jnp.asarray(new))}; a loop carries arrays of one shape and dtype."
            )
        return jnp.asarray(new, old.dtype)

    return jax.tree_util.tree_map_with_path(checked, state, made)


def checked_body(body_fn: BodyFn) -> BodyFn:
    """The body, with a clear error if it does not return a carry and an output."""

    def body(carry: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
        try:
            result = body_fn(carry, batch, mask)
        except Exception as error:
            note_unbatched(error, mask)
            raise
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

    def one(carry: Any, each: Rows) -> tuple[Any, Any]:
        values, mask = read_step(source, each.replaced(key=rows.key))
        return body(carry, *placed(source.traits, values, mask))

    return lax.scan(one, carry, rows.without_key, unroll=unroll)


def _scan_rows(
    source: Positional[Any],
    state: PipelineState,
    carry: Any,
    body: BodyFn,
    steps: int,
    unroll: int | bool,
    remainder: Remainder | None,
) -> tuple[Any, Any, Any]:
    plan = source._plan.ending(remainder)

    def run(words: Any, carry: Any, steps: int) -> tuple[Any, Any, Any]:
        rows, words = rows_of_steps(source, plan, words, steps)
        carry, outputs = scan_read(source, rows, carry, body, unroll)
        return words, carry, outputs

    def run_chunk(loop: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], Any]:
        words, carry, outputs = run(*loop, chunk)
        return (words, carry), outputs

    most = min(_MOST_LANES, _MOST_EPOCHS * plan.length) // plan.batch
    words, chunk = state.words, chunk_steps(steps, max(1, most))
    pieces = []
    if steps > chunk:
        (words, carry), outputs = lax.scan(run_chunk, (words, carry), length=steps // chunk)
        pieces.append(jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), outputs))
    rest = steps % chunk if steps > chunk else steps
    if rest or not pieces:
        words, carry, outputs = run(words, carry, rest)
        pieces.append(outputs)
    return state.replaced(words), carry, joined(pieces)


def joined(pieces: list[Any]) -> Any:
    """The outputs of several runs of steps, one after the other."""
    if len(pieces) == 1:
        return pieces[0]
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *pieces)


def chunk_steps(steps: int, most: int) -> int:
    """How many steps to take at a time, at most `most`.

    If possible a divisor of `steps`: for a remainder, the body would be compiled a second time.
    """
    if steps <= most:
        return max(steps, 1)
    whole = next((c for c in range(most, most // 8, -1) if steps % c == 0), None)
    return whole or most
