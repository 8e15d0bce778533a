"""Programs over several devices, and data that goes when they are done; for tests."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

PATIENCE = 10.0


def spread(tree: Any) -> Any:
    """The same arrays on all devices: a program that is given them runs on all."""
    count = jax.device_count()
    assert count > 1
    mesh = jax.make_mesh((count,), ("d",), axis_types=(AxisType.Auto,))
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def gone(reference: weakref.ref[Any]) -> bool:
    """Whether nothing holds it; a thread may be about to let go."""
    end = time.monotonic() + PATIENCE
    while reference() is not None and time.monotonic() < end:
        gc.collect()
        threading.Event().wait(0.02)
    return reference() is None
