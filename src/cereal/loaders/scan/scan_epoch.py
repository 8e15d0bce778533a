"""`loader.scan_epoch`: which program runs, and how.

inside a trace          the scan is part of the user's program
data on the host        workers read chunks of batches ahead; one call of a program for each chunk
otherwise               one call of one program
with a progress bar     a program for some of the steps, called until all are done
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from ...base.capture import eager, is_concrete, staging
from ...base.errors import UsageError
from ...device.placement import check_given, joined_by, joining
from ...host.callbacks import raising
from ..notices import warn_of_notices
from ..progress import progress_bar
from .epoch_scan import chunk_steps, joined, scan_steps
from .host_scan import scan_host
from .programs import over_rows, over_steps

_UPDATES = 50


def scan_epoch(
    source: Any,
    state: Any,
    carry: Any,
    body_fn: Any,
    steps: int,
    unroll: int | bool,
    feedback: Any,
    progress: bool | str,
) -> tuple[Any, Any, Any]:
    """Runs the body over this number of steps; returns `(state, carry, outputs)`."""
    if progress and not eager():
        raise UsageError(
            "`scan_epoch(progress=...)` cannot show progress inside a traced function, where "
            "nothing runs yet; leave it out there, or call `scan_epoch` outside."
        )
    if staging():
        with raising(source.traits.callbacks):
            return scan_steps(source, state, carry, body_fn, steps, unroll, feedback=feedback)
    warn_of_notices(source, state)
    state = joining(state, source.traits.placement)
    carry = joined_by(carry, source.traits.placement)
    check_given(source.traits.placement, loader=source, state=state, carry=carry)
    bar = progress_bar(progress, steps)
    try:
        if source.traits.host and eager() and feedback is None:
            run = over_rows(source, carry, body_fn, unroll)
            scan = lambda: scan_host(source, state, carry, run, steps, done=bar.update)  # noqa: E731
        elif progress:
            make = lambda n: over_steps(source, carry, body_fn, n, unroll, feedback)  # noqa: E731
            scan = lambda: _in_parts(source, state, carry, steps, make, bar)  # noqa: E731
        else:
            run = over_steps(source, carry, body_fn, steps, unroll, feedback)
            scan = lambda: run(source, state, carry)  # noqa: E731
        return _with_callbacks(source, scan)
    finally:
        bar.close()


def _with_callbacks(source: Any, scan: Callable[[], Any]) -> Any:
    """Runs the scan; waits for its callbacks, and raises their errors here."""
    if not source.traits.callbacks:
        return scan()
    with raising(source.traits.callbacks):
        result = scan()
        if is_concrete(jax.tree.leaves(result[0])[0]):
            jax.block_until_ready(result)
    return result


def _in_parts(
    source: Any, state: Any, carry: Any, steps: int, program: Callable[[int], Any], bar: Any
) -> tuple[Any, Any, Any]:
    """The same scan in parts, so that the progress bar can move between them."""
    each = chunk_steps(steps, max(1, -(-steps // _UPDATES)))
    sizes = [each] * (steps // each) + ([steps % each] if steps % each or not steps else [])
    programs = {size: program(size) for size in set(sizes)}
    pieces = []
    for size in sizes:
        state, carry, outputs = programs[size](source, state, carry)
        pieces.append(outputs)
        jax.block_until_ready(carry)
        bar.update(size)
    return state, carry, joined(pieces)
