"""Where a dataset is stored: on the default device, or in host memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from ..base.capture import is_traced
from ..base.errors import PipelineError
from .transfer import sent
from .words import pack, worth_packing


def as_device(device: Any, owner: str) -> Any:
    """Reads "cpu", "gpu:1", a device or a sharding; None is the default device."""
    if device is None:
        return _default_device()
    if isinstance(device, jax.Device | jax.sharding.Sharding):
        return device
    if not isinstance(device, str):
        raise PipelineError(
            f"{owner}: `device` must be a jax.Device, a sharding, None or a name such as "
            f'"gpu:1", got {type(device).__name__}.'
        )
    platform, _, number = device.partition(":")
    try:
        return dict(enumerate(jax.devices(platform)))[int(number or 0)]
    except (RuntimeError, ValueError, KeyError) as error:
        known = sorted({f"{d.platform}:{d.id}" for d in jax.devices()} | {"cpu:0"})
        raise PipelineError(
            f"{owner}: there is no device {device!r}; this process has {', '.join(known)}."
        ) from error


def _default_device() -> Any:
    """The one that `jax.default_device` says; if the user has set a mesh, one of its devices."""
    found = jnp.zeros(()).devices()  # JAX's own set, which must not be changed
    here = [device for device in found if device.process_index == jax.process_index()]
    return min(here or jax.local_devices(), key=lambda device: device.id)


def settle(array: Any) -> Any:
    """An array as a source stores it; on the CPU, narrow integers are stored as 32-bit words."""
    if not is_traced(array) and jax.default_backend() == "cpu":
        array = native(array)
        if worth_packing(array):
            return pack(array)
    return place_array(array)


def place_array(array: Any) -> Any:
    """An array where a source keeps it.

    NumPy data is copied once to the default device; writing into it afterwards changes nothing. A
    `jax.Array` stays where it is, with one exception: if it is in CPU memory and the default device
    is not the CPU, it goes to that device's pinned host memory. Compiled code can read it there,
    and only batches are copied to the device.
    """
    if is_traced(array):
        return array
    array = native(array)
    if not isinstance(array, jax.Array):
        # It copies when the device has time. Until then, the user must not write into the array.
        return jax.block_until_ready(jnp.array(sent(array), copy=True))
    if jax.default_backend() == "cpu":
        return array
    if any(device.platform != "cpu" for device in array.devices()):
        return array
    pinned = SingleDeviceSharding(as_device(None, "storage"), memory_kind="pinned_host")
    return jax.device_put(array, pinned)


def native(array: Any) -> Any:
    """The array in this machine's byte order. Files often have another, which JAX does not take."""
    if isinstance(array, jax.Array) or array.dtype.isnative:
        return array
    return array.astype(array.dtype.newbyteorder("="))
