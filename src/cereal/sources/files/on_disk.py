"""A source over arrays in files, read in the way that is fastest for the device."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ...base.numbers import as_count
from ...pipeline.positional import IndexedSource
from ..array import ArraySampleSource
from .memmap import MemmapSource


def source_on_disk(
    arrays: Any, ordering: Any, prefetch_size: int, owner: str
) -> IndexedSource[Any]:
    """Reads rows of mapped files: with compiled code on the CPU, with Python on other devices.

        np.memmap  ==same memory==  jax.Array on the CPU  --gather-->  a batch, 3x as fast

    If a mapped file is aligned, JAX can use its memory as an array, without a copy.
    """
    ahead = as_count(prefetch_size, "prefetch_size", owner)
    if jax.default_backend() == "cpu":
        taken = jax.tree.map(lambda x: jax.device_put(x, may_alias=True), arrays)
        if all(map(_same_memory, jax.tree.leaves(taken), jax.tree.leaves(arrays))):
            return ArraySampleSource(taken, ordering)
    return MemmapSource(arrays, ordering, prefetch_size=ahead)


def _same_memory(taken: jax.Array, array: np.ndarray) -> bool:
    """Whether JAX uses the memory of the file itself, and has not read it into other memory.

    The bet: on the CPU, `unsafe_buffer_pointer` is where the data of a `jax.Array` lies. If it is
    wrong, reading is slower and still correct: the loader reads the rows. The test of this bet is
    `test_the_memory_of_the_files_is_the_memory_of_the_source` in `tests/sources/test_on_disk.py`.
    """
    return taken.unsafe_buffer_pointer() == array.ctypes.data
