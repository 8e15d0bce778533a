"""One step of a pipeline, compiled, whoever asks for it.

Compiled always, also outside of the user's `jit`: eager float arithmetic differs in the last bit.
The pipeline is an argument of the compiled function, never captured by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from .callback import raising
from .capture import is_concrete, resolve

if TYPE_CHECKING:
    from .source import Source


@jax.jit
def _next(source: Source[Any], state: Any) -> tuple[Any, Any, Any]:
    return source.step(state)


def run_next(source: Source[Any], state: Any) -> tuple[Any, Any, Any]:
    """`source.step(state)`, compiled, with what belongs around it outside of `jit`."""
    source = resolve(source, state)
    if not source.callbacks:
        values, mask, state = _next(source, state)
    else:
        with raising(source.callbacks):
            values, mask, state = _next(source, state)
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
