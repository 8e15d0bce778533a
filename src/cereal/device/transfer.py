"""Moving small arrays between the host and a device.

Under `jax_transfer_guard="disallow"`, JAX allows only explicit transfers, by `device_put` and
`device_get`. These take 10 to 20 µs more on the CPU, so they are used only if the guard is on:

    to_device, hand_over   `jax.device_put`, or as an argument of a program
    from_parts             `jax.make_array_from_callback`, which the guard takes for an implicit one
    to_host                `jax.device_get`, or `np.asarray`
    copied                 a copy that is made now, and not when the device has time
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_FREE = (None, "allow")
_pass = jax.jit(lambda values: values)
_config: Any = jax.config


def hand_over(values: Any) -> Any:
    """NumPy arrays as JAX arrays, on the device where a program would put its arguments.

    For small arrays this takes a fifth of the time of `device_put`.
    """
    free = _config.jax_transfer_guard_host_to_device in _FREE
    return _pass(values) if free else jax.device_put(values)


def to_device(values: Any) -> Any:
    """NumPy arrays as JAX arrays that are not committed to a device, also under `jax.set_mesh`."""
    # Passing them through a program is quicker on the CPU, and slower on a GPU.
    if jax.default_backend() == "cpu" and jax.sharding.get_abstract_mesh().empty:
        return hand_over(values)
    return jax.device_put(values)


def sent(values: Any) -> Any:
    """The arguments of a program; moved to the device here if the transfer guard is on."""
    free = _config.jax_transfer_guard_host_to_device in _FREE
    return values if free else jax.device_put(values)


def copied(array: np.ndarray) -> jax.Array:
    """An array of NumPy as one of JAX, by a copy: the user may write into his at once.

    `jnp.array(array, copy=True)` does not promise that. It copies when the device has time, and
    reads what is there then.
    """
    return jnp.asarray(sent(np.array(array)))


def from_parts(shape: tuple[int, ...], sharding: Any, part: Any, dtype: Any) -> jax.Array:
    """A global array of which `part(index)` gives what the devices of this process have."""
    if _config.jax_transfer_guard_host_to_device not in ("disallow", "log"):
        return jax.make_array_from_callback(shape, sharding, part, dtype=dtype)
    with jax.transfer_guard_host_to_device("allow"):
        return jax.make_array_from_callback(shape, sharding, part, dtype=dtype)


def to_host(array: Any) -> np.ndarray:
    """An array as a NumPy array."""
    free = _config.jax_transfer_guard_device_to_host in _FREE
    return np.asarray(array if free else jax.device_get(array))
