"""How much of a cache is computed at once: about a second of work.

If the process is killed in the middle of a chunk, that chunk is lost. Python's part is measured
while it reads. A program is measured only if it was compiled before, not while it compiles.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from ..order.rows import Rows, routed_at
from ..pipeline.positional import IndexedSource
from .elements import chunks_of

_SECONDS = 1.0
_FIRST_PIECE, _FIRST_CHUNK = 4, 256


class Pace:
    """How many elements of a source are fetched at once, and how many are computed."""

    def __init__(self, upstream: IndexedSource[Any]) -> None:
        self._upstream = upstream
        self._piece = _FIRST_PIECE if upstream.traits.host else 2**62
        self._chunk = _FIRST_CHUNK

    def fetch(self, indices: np.ndarray) -> Rows:
        """Fetches the rows of the first of these indices: as many as Python reads in a second."""
        indices = next(chunks_of(self._upstream, indices))[: self._chunk]
        parts: list[Rows] = []
        done, begin = 0, time.monotonic()
        while done < len(indices) and (not parts or time.monotonic() < begin + _SECONDS):
            piece, since = indices[done : done + self._piece], time.monotonic()
            parts.append(self._upstream._fetch(routed_at(self._upstream, piece)))
            done += len(piece)
            if self._upstream.traits.host:
                took = max(time.monotonic() - since, 1e-6)
                self._piece = max(1, int(len(piece) / took * _SECONDS / 2))
        if len(parts) == 1:
            return parts[0]
        lanes = jax.tree.map(
            lambda *each: np.concatenate(each), *(part.without_key for part in parts)
        )
        return lanes.replaced(key=parts[0].key)

    @contextlib.contextmanager
    def running(self, n: int, *, known: bool) -> Iterator[None]:
        """Within it, a program over n elements runs; `known`: it was compiled before."""
        begin = time.monotonic()
        yield
        took = max(time.monotonic() - begin, 1e-6)
        # The size changes seldom, since every size is another program; sizes are powers of two.
        if known and (took > 2 * _SECONDS or (n >= self._chunk and took < _SECONDS / 8)):
            self._chunk = 1 << max(0, int(n * _SECONDS / 2 / took).bit_length() - 1)
