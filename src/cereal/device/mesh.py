"""A mesh over all devices, of all processes, from the sizes of its axes."""

from __future__ import annotations

import math
from typing import Any

import jax
from jax.sharding import AxisType, Mesh

from ..base.errors import PipelineError
from ..base.numbers import as_count, as_whole

_OWNER = "mesh"
_WRITE = "`cereal.mesh(data=-1)`"


def mesh(*, axis_types: Any = AxisType.Auto, **axes: int) -> Mesh:
    """A mesh over all devices, with these axes in this order. One size may be -1: what is left.

        data parallel            mesh(data=-1)
        FSDP                     mesh(fsdp=-1)
        both                     mesh(data=2, fsdp=-1)      two groups, each with all parameters
        tensor parallel          mesh(data=-1, model=2)
        sequence parallel        mesh(data=-1, seq=2)

    All devices means those of all processes. `jax.make_mesh` orders them: neighbours in the last
    axes are also near each other in the machine. `axis_types` is one `jax.sharding.AxisType` for
    all axes, or a tuple with one for each.

    >>> import cereal, jax
    >>> mesh = cereal.mesh(data=-1, model=1)
    >>> mesh.axis_names, mesh.shape["data"] == jax.device_count()
    (('data', 'model'), True)
    >>> loader = cereal.DataLoader(
    ...     [cereal.RangeSource(64), cereal.BatchTransform(16)], sharding=(mesh, "data")
    ... )
    """
    if not axes:
        raise PipelineError(f"{_OWNER}: it needs at least one axis; write {_WRITE}.")
    sizes = _sizes(axes, len(jax.devices()))
    return jax.make_mesh(sizes, tuple(axes), axis_types=_types(axis_types, tuple(axes)))


def _sizes(axes: dict[str, Any], devices: int) -> tuple[int, ...]:
    inferred = [name for name, size in axes.items() if as_whole(size) == -1]
    if len(inferred) > 1:
        names = " and ".join(f"`{name}`" for name in inferred)
        raise PipelineError(
            f"{_OWNER}: {names} are both -1, and one size can be inferred; give the other a number."
        )
    hint = "-1 stands for all devices that the other axes leave"
    known = {
        name: as_count(size, name, _OWNER, hint=hint)
        for name, size in axes.items()
        if name not in inferred
    }
    product = math.prod(known.values())
    text = " x ".join(f"{name}={size}" for name, size in known.items())
    if inferred and devices % product:
        raise PipelineError(
            f"{_OWNER}: `{inferred[0]}` cannot be inferred: {text} does not divide the {devices} "
            f"devices; choose sizes whose product divides {devices}."
        )
    if not inferred and product != devices:
        raise PipelineError(
            f"{_OWNER}: {text} is a mesh of {product}, and there are {devices} devices; write -1 "
            f"for one of the axes. A mesh of some of the devices is "
            f"`jax.make_mesh(..., devices=jax.devices()[:n])`."
        )
    return tuple(known.get(name, devices // product) for name in axes)


def _types(given: Any, names: tuple[str, ...]) -> tuple[AxisType, ...]:
    types = (given,) * len(names) if isinstance(given, AxisType) else given
    right = isinstance(types, tuple | list) and len(types) == len(names)
    if not right or not all(isinstance(each, AxisType) for each in types):
        raise PipelineError(
            f"{_OWNER}: `axis_types` must be one `jax.sharding.AxisType`, or one for each of "
            f"{', '.join(names)}, got {given!r:.80}; write `axis_types=AxisType.Explicit`."
        )
    return tuple(types)
