"""One step of a pipeline, compiled, whoever asks for it.

Compiled always, also outside of the user's `jit`: eager float arithmetic differs in the last bit.
The pipeline is an argument of the compiled function, never captured by it.

A pipeline over data on the host is two programs with Python between them:

    route: which rows  ->  fetch: Python reads them  ->  read: the compiled stages
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from .callback import raising
from .capture import eager, is_concrete, resolve
from .state import PipelineState

if TYPE_CHECKING:
    from .rows import Rows
    from .source import Positional, Source


@jax.jit
def _next(source: Source[Any], state: Any) -> tuple[Any, Any, Any]:
    return source.step(state)


@partial(jax.jit, static_argnames=("remainder", "steps"))
def _routed(source: Positional[Any], words: Any, remainder: Any, steps: int) -> tuple[Rows, Any]:
    rows, words = source.plan.ending(remainder).rows_for(words, steps)
    return source.route(rows), words


@partial(jax.jit, static_argnames="masked")
def _read(source: Positional[Any], rows: Rows, masked: bool) -> tuple[Any, Any]:
    values, mask = source.read(rows)
    if masked and mask is None:
        mask = jnp.ones(rows.index.shape, jnp.bool_)
    return values, mask if masked or source.masks else None


def routed_rows(
    source: Positional[Any], words: Any, steps: int, remainder: Any = None
) -> tuple[Rows, Any]:
    """The rows of the next steps as NumPy arrays, routed, and the state's words after them."""
    rows, words = _routed(source, words, remainder, steps)
    return jax.device_get(rows), words


def read_rows(source: Positional[Any], rows: Rows, *, masked: bool) -> tuple[Any, Any]:
    """Fetches routed rows and runs the compiled stages over them.

    The mask is None if no stage changes masks, unless it is to be `masked` anyhow: then it
    is made by the same program, since an array made by itself costs a GPU half a millisecond.
    """
    return _read(source, source.fetch(rows), masked)


def read_fetched(source: Positional[Any], rows: Rows, *, masked: bool) -> tuple[Any, Any]:
    """The same for rows that have been fetched."""
    return _read(source, rows, masked)


def _next_on_host(source: Positional[Any], state: Any) -> tuple[Any, Any, Any]:
    rows, words = routed_rows(source, state.words, 1)
    values, mask = read_rows(source, rows[0], masked=True)
    return values, mask, PipelineState(words, state.fingerprint)


def run_next(source: Source[Any], state: Any) -> tuple[Any, Any, Any]:
    """`source.step(state)`, compiled, with what belongs around it outside of `jit`."""
    source = resolve(source, state)
    step: Any = _next_on_host if source.host and eager() else _next
    if not source.callbacks:
        values, mask, state = step(source, state)
    else:
        with raising(source.callbacks):
            values, mask, state = step(source, state)
            if is_concrete(mask):
                # The user's function has run, or has failed, when the batch is handed out.
                jax.block_until_ready((values, mask, state))
    if source.placement is not None:
        values, mask = place((values, mask), source.placement)
    return values, mask, state


def place(values: Any, placement: Any) -> Any:
    """Moves arrays to a device or sharding; the identity inside `jit`."""
    return jax.tree.map(lambda x: _place(x, placement), values)


def _place(x: Any, placement: Any) -> Any:
    if not is_concrete(x):
        return x
    if isinstance(placement, jax.Device) and x.devices() == {placement}:
        return x  # device_put of an array that is there already costs more than this look
    return jax.device_put(x, placement)
