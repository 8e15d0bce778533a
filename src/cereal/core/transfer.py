"""Small arrays between the host and a device.

Under `jax_transfer_guard="disallow"` JAX moves arrays only by functions that are called for it.
These take 10 to 20 µs more on the CPU, so they are used only where the guard asks for them:

    to_device, hand_over   `jax.device_put`, or as an argument of a program
    to_host                `jax.device_get`, or `np.asarray`
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

_FREE = (None, "allow")
_pass = jax.jit(lambda values: values)
_config: Any = jax.config


def hand_over(values: Any) -> Any:
    """Arrays of NumPy as arrays of JAX, where a program would put its arguments.

    For small arrays this takes a fifth of the time of `device_put`.
    """
    free = _config.jax_transfer_guard_host_to_device in _FREE
    return _pass(values) if free else jax.device_put(values)


def to_device(values: Any) -> Any:
    """Arrays of NumPy as arrays of JAX that are bound to no device, also under `jax.set_mesh`."""
    # An argument is the quicker way on the CPU, and the slower one to a GPU.
    if jax.default_backend() == "cpu" and jax.sharding.get_abstract_mesh().empty:
        return hand_over(values)
    return jax.device_put(values)


def sent(values: Any) -> Any:
    """What is to be an argument of a program; moved here, explicitly, if the guard asks for it."""
    free = _config.jax_transfer_guard_host_to_device in _FREE
    return values if free else jax.device_put(values)


def to_host(array: Any) -> np.ndarray:
    """An array as one of NumPy."""
    free = _config.jax_transfer_guard_device_to_host in _FREE
    return np.asarray(array if free else jax.device_get(array))
