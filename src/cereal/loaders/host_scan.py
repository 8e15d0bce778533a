"""A scan over a pipeline whose data is on the host: chunks of batches, fetched ahead.

    fetch 64 MB of batches  ->  one compiled scan over them     JAX returns before it has run,
    fetch the next 64 MB    ->  ...                             so fetching goes on meanwhile

No callback, and the same batches as everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..core.execute import routed_rows
from ..core.position import Remainder
from ..core.source import Positional
from ..core.state import PipelineState
from .epoch_scan import chunk_steps
from .read_ahead import MOST_BYTES


def scan_host(
    source: Positional[Any],
    state: PipelineState,
    carry: Any,
    program: Callable[[Any, Any, Any], tuple[Any, Any]],
    steps: int,
    remainder: Remainder | None = None,
) -> tuple[Any, Any, Any]:
    """Runs `program(source, rows, carry)` over the rows of the next `steps` steps."""
    size = sum(s.size * s.dtype.itemsize for s in jax.tree.leaves(source.element_spec()))
    chunk = chunk_steps(steps, max(1, MOST_BYTES // max(size, 1)))
    words, pieces, left = state.words, [], steps
    outputs: Any = None
    while left or not pieces:
        count = min(chunk, left)
        rows, words = routed_rows(source, words, count, remainder)
        carry, outputs = program(source, source.fetch(rows), carry)
        pieces.append(outputs)
        left -= count
    if len(pieces) > 1:
        outputs = jax.tree.map(lambda *parts: jnp.concatenate(parts), *pieces)
    return PipelineState(words, state.fingerprint), carry, outputs
