"""Epochs of a source, for tests of combined sources."""

from __future__ import annotations

from typing import Any

import numpy as np

from cereal import BatchTransform, DataLoader
from cereal.core.state import make_words


def visited(source: Any, epochs: int = 1, key: int = 0) -> np.ndarray:
    """The rows of the store that epochs visit, in NumPy; over a range, they are the elements."""
    rows, _ = source._plan.rows_for(make_words((0, key), 0, 0), epochs * source.traits.length)
    return source._route(rows).below.index.reshape(epochs, source.traits.length)


def epoch_of(source: Any, key: int = 0, epoch: int = 0) -> list[int]:
    """An epoch through a loader."""
    loader = DataLoader([source, BatchTransform(source.traits.length)])
    return loader.batch_at(key, epoch)[0].tolist()
