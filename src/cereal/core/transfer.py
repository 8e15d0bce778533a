"""Small arrays between the host and a device: by name where the user forbids it otherwise.

Under `jax_transfer_guard="disallow"` only what is written as a transfer is one. The functions of
JAX that say so cost the CPU 10 to 20 µs more than those that do not, so they are used where it
matters:

    to_device, hand_over   `jax.device_put`, or as an argument of a program
    to_host                `jax.device_get`, or `np.asarray`
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

_FREE = (None, "allow")


@jax.jit
def _pass(values: Any) -> Any:
    return values


def hand_over(values: Any) -> Any:
    """Arrays of NumPy as arrays of JAX, where a program would have them.

    A fifth of the time of `device_put` for small ones.
    """
    if jax.config.jax_transfer_guard_host_to_device in _FREE:  # type: ignore[attr-defined]
        return _pass(values)
    return jax.device_put(values)


def to_device(values: Any) -> Any:
    """Arrays of NumPy as arrays of JAX that are bound to no device, also under `jax.set_mesh`."""
    # An argument is the quicker way on the CPU, and the slower one to a GPU.
    if jax.default_backend() == "cpu" and jax.sharding.get_abstract_mesh().empty:
        return hand_over(values)
    return jax.device_put(values)


def sent(values: Any) -> Any:
    """What is to be an argument of a program: sent ahead, by name, if it must be."""
    if jax.config.jax_transfer_guard_host_to_device in _FREE:  # type: ignore[attr-defined]
        return values
    return jax.device_put(values)


def to_host(array: Any) -> np.ndarray:
    """An array as one of NumPy."""
    if jax.config.jax_transfer_guard_device_to_host in _FREE:  # type: ignore[attr-defined]
        return np.asarray(array)
    return np.asarray(jax.device_get(array))
