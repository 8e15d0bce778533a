"""The host part of any pipeline, as a program for worker processes: the pipeline itself.

For sources that have no plain reader: a class of the user, or compiled stages inside of a combined
source. The process then needs cereal and JAX, which it has on the CPU only.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ...base.spec import spec_of
from ...host.read_context import ReadContext, read_context, use_read_context


class WholeProgram:
    """Reads the rows of one step by the pipeline's own `_fetch_here`."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.lanes = source.traits.lanes
        self.labels = (source._label,)
        with use_read_context(ReadContext(masked=True)):
            promised = source._fetch_here(jax.tree.map(spec_of, _one_step(source))).below
        leaves, self._structure = jax.tree.flatten(promised)
        self.leaves = tuple((leaf.shape, np.dtype(leaf.dtype)) for leaf in leaves)

    def read(self, rows: Any) -> tuple[list[np.ndarray], None]:
        """The leaves of what lies below the fetched rows."""
        read_context().masked = True  # as promised
        return jax.tree.leaves(self.source._fetch_here(rows).below), None

    def fetched(self, rows: Any, leaves: list[np.ndarray], keep: Any, *, masked: bool) -> Any:
        """The rows with these leaves below them."""
        del keep, masked
        return rows.replaced(below=jax.tree.unflatten(self._structure, leaves))


def _one_step(source: Any) -> Any:
    rows, _ = source._plan.rows_for(np.zeros(5, np.uint32), 1)
    return source._route(rows)[0]
