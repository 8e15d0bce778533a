"""Programs that change a state in place, as iterators of one result.

    deque.extend(zip(..., map(program, (state,))))

The program overwrites the state that it gets. If an interrupt came after it and before the new
state is stored, both would be lost. But C code calls the program here, and stores what it returns,
which is packed (`functions/packed.py`): Python runs no signal handler in between.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np

from ...base.capture import eager, resolve
from ...device.placement import joining
from ...device.transfer import copied
from ...functions.compiled import Latest, TracedAgain
from ...functions.meaning import tracing_context
from ...functions.packed import packed
from ...functions.traced_stage import current
from ...functions.unchanged import proof_of
from ...pipeline.execute import run, run_in_place
from ...pipeline.source import Source
from ..scan.epoch_scan import fed_back

_NAME = "the function of `feed_back`"
_WRITE = "write `def change(state, *args): ...; return state`"
_proved, _quick = Latest(), Latest()


def step_from(source: Source[Any], state: Any) -> Iterator[Any]:
    """One step of a stream: (batch, mask, state), packed."""
    if not source.traits.in_place:
        return map(packed, map(partial(run, source), (state,)))
    source = resolve(current(source, state, thorough=False), state)
    return map(run_in_place, (source,), (joining(state, source.traits.placement),))


def changed_in_place(fn: Callable[..., Any], state: Any, args: tuple[Any, ...]) -> Iterator[Any]:
    """The state that `fn(state, *args)` returns, packed."""
    # The program may run later, when the user writes into his arrays again.
    args = jax.tree.map(lambda x: copied(x) if isinstance(x, np.ndarray) else x, args)
    program, given = _kept_program(fn), (state, *args)
    if program is None:
        program, given = TracedAgain(_packing(fn), donate_first=True).prepared(state, *args)
    return map(program, *((each,) for each in given))


def _packing(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda state, *args: packed(fed_back(fn, state, *args, name=_NAME, write=_WRITE))


def _kept_program(fn: Callable[..., Any]) -> Callable[..., Any] | None:
    """A program of a function that is proved to be unchanged: JAX may keep its trace."""
    context = eager(), tracing_context()
    found = _quick.get(id(fn))  # the proof keeps the function alive, and so its id
    if found is not None and found[0].holds() and found[1] == context:
        return found[2]
    proof = proof_of(fn)
    if proof is None or proof.arrays:
        return None
    make = lambda: (jax.jit(_packing(fn), donate_argnums=0), proof)  # noqa: E731
    program = _proved.get((proof.key, context), make)[0]
    if isinstance(fn, types.FunctionType):
        _quick.put(id(fn), (proof, context, program))
    return program


def is_gone(state: Any) -> bool:
    """Whether a program has overwritten a state."""
    return any(isinstance(x, jax.Array) and x.is_deleted() for x in jax.tree.leaves(state))
