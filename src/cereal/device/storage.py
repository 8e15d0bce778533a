"""Where a dataset is stored: on the default device, or in host memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from ..core.array_trees import array_leaves, leaves_of_tree, refuse_no_data
from ..core.capture import is_traced
from ..core.errors import PipelineError, first_line
from ..core.fitting import check_fits
from ..core.taken import is_leaf
from ..core.transfer import sent
from .words import pack, worth_packing


def as_device(device: Any, owner: str) -> Any:
    """Reads "cpu", "gpu:1", a device or a sharding; None is the default device."""
    if device is None:
        return jnp.zeros(()).devices().pop()  # heeds `jax.default_device`
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


def settle(array: Any) -> Any:
    """An array as a source of its rows keeps it; on the CPU, narrow integers as 32-bit words."""
    if not is_traced(array) and jax.default_backend() == "cpu":
        array = _native(array)
        if worth_packing(array):
            return pack(array)
    return place_array(array)


def place_array(array: Any) -> Any:
    """An array where a source keeps it.

    NumPy data has said nothing about its place: it is copied once to the default device, so
    that writing into it afterwards changes nothing. A `jax.Array` stays where it is; one in CPU
    memory while the default device is another goes to that device's pinned host memory, so that
    compiled code can read it and only batches travel.
    """
    if is_traced(array):
        return array
    array = _native(array)
    if not isinstance(array, jax.Array):
        return jnp.array(sent(array), copy=True)
    if jax.default_backend() == "cpu":
        return array
    if any(device.platform != "cpu" for device in array.devices()):
        return array
    pinned = SingleDeviceSharding(as_device(None, "storage"), memory_kind="pinned_host")
    return jax.device_put(array, pinned)


def dataset_to_jax(dataset: Any, storage_device: Any = "cpu") -> Any:
    """Loads a dataset into JAX arrays, committed to a device.

    `dataset` is a tree of arrays (a dict, a tuple, ...), something with `as_array_dict()`, or
    anything with `len` and indexing, a list included, whose elements are stacked.
    `storage_device=None` is the default device. On a machine with a GPU, data kept on the CPU
    stays there, and only batches travel.

    >>> import cereal
    >>> data = cereal.dataset_to_jax(cereal.DigitsDataset("test"))
    >>> data["image"].shape
    (297, 8, 8, 1)
    """
    owner = "dataset_to_jax"
    device = as_device(storage_device, owner)
    refuse_no_data(dataset, owner, "dataset")
    arrays = _arrays_of(dataset, owner)
    for name, leaf in array_leaves(arrays, owner, "dataset"):
        if isinstance(leaf, np.ndarray | np.generic):
            check_fits(leaf, f"{owner}: {name}")
    return jax.tree.map(lambda x: jax.device_put(_own(x), device), arrays)


def _own(array: Any) -> Any:
    """Memory that nobody else writes into: JAX may use a NumPy array's memory as its own.

    A copy on the host, never by way of the default device.
    """
    return array if isinstance(array, jax.Array) else np.array(_native(array), copy=True)


def _native(array: Any) -> Any:
    """In this machine's byte order; JAX takes no other, and files often have one."""
    if isinstance(array, jax.Array) or array.dtype.isnative:
        return array
    return array.astype(array.dtype.newbyteorder("="))


def _elements_of(dataset: Any) -> list[Any]:
    many, n = getattr(dataset, "__getitems__", None), len(dataset)
    if many is None:
        return [dataset[i] for i in range(n)]
    chunks = [many(list(range(i, min(i + 1024, n)))) for i in range(0, n, 1024)]
    return [element for chunk in chunks for element in chunk]


def _arrays_of(dataset: Any, owner: str) -> Any:
    if hasattr(dataset, "as_array_dict"):
        return dataset.as_array_dict()
    if isinstance(dataset, Mapping):
        return dataset
    # A list is a list of elements, and may be long.
    leaves = [] if isinstance(dataset, list) else leaves_of_tree(dataset, owner, "dataset")
    if leaves and all(isinstance(leaf, jax.Array | np.ndarray) for _, leaf in leaves):
        return dataset
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise PipelineError(
            f"{owner}: `dataset` must be a tree of arrays or have `__len__` and `__getitem__`, "
            f"got {type(dataset).__name__}."
        )
    if len(dataset) == 0:
        raise PipelineError(f"{owner}: `dataset` is empty.")
    elements = _elements_of(dataset)
    try:
        return jax.tree.map(lambda *leaves: np.stack(leaves), *elements, is_leaf=is_leaf)
    except ValueError as error:
        raise PipelineError(
            f"{owner}: the elements do not stack into arrays ({first_line(error)}); they must all "
            f"have one structure and one shape. (A list is a list of elements; for whole arrays "
            f"write a tuple or a dict of them.)"
        ) from error
