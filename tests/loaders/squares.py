"""The squares of 0 to 39, read one by one from the host, in batches of four."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from cereal import BatchTransform, DataLoader, DiskSampleSource

N, B = 40, 4


def make(fn: Any, **options: Any) -> DataLoader[Any]:
    spec = jax.ShapeDtypeStruct((), np.int32)
    source = DiskSampleSource(N, fn, sample_spec=spec, ordering="sequential")
    return DataLoader([source, BatchTransform(B)], **{"workers": 1, "prefetch": 2, **options})


def square(i: int) -> np.int32:
    return np.int32(i * i)


def at(step: int) -> list[int]:
    """What the batch of a step holds."""
    return [(i % N) ** 2 for i in range(step * B, (step + 1) * B)]
