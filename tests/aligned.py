"""Arrays of NumPy whose memory JAX would use as it is, without a copy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros that begin at a multiple of 64 bytes."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    return raw[begin : begin + size].view(dtype).reshape(shape)
