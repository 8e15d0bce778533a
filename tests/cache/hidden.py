"""A number that functions depend on, and that no digest of code sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cereal import (
    BatchTransform,
    CacheTransform,
    DataLoader,
    HostMapTransform,
    MapTransform,
    RangeSource,
)

N = 40
HOW = {"host": HostMapTransform, "compiled": MapTransform}


def hidden(path: Path) -> int:
    """A number that no digest of code sees."""
    return int(path.read_text())


def batches(stages: list[Any], size: int = 8) -> np.ndarray:
    loader = DataLoader([*stages, BatchTransform(size)])
    pairs = loader.iterate(loader.init_state(0))
    return np.concatenate([np.asarray(batch) for batch, _ in pairs])


def scaled(how: str, path: Path, folder: Path, version: Any = None) -> list[Any]:
    """The pipeline of a user whose function depends on a number in a file."""
    stage = HOW[how](lambda x: x * hidden(path))
    return [RangeSource(1, N + 1), stage, CacheTransform(folder, version=version)]
