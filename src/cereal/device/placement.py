"""Where batches go. Outside of programs arrays are moved; inside, their sharding is constrained.

One sharding serves a whole batch. An array with fewer axes uses only the first parts of the spec.

    P("data", "model")    image [16, 8]  P("data", "model")
                          label [16]     P("data")          and the mask
                          scale []       P()                on every device
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeGuard

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec, SingleDeviceSharding

from ..base.capture import is_concrete, is_traced, staging
from ..base.errors import PipelineError, UsageError, first_line
from ..base.foreign_errors import lacks_mesh
from ..base.spec import format_spec
from .batch_sharding import BatchSharding, axes_in_words
from .transfer import to_device


def place(values: Any, placement: Any, lead: int = 0) -> Any:
    """A tree of arrays, moved to a device or sharding; inside of a program, constrained to it.

    If several batches are stacked, `lead` is the number of axes before those of a batch.
    """
    return jax.tree.map(lambda x: _place(x, placement, lead), values)


def place_step(values: Any, mask: Any, placement: Any, lead: int = 0) -> tuple[Any, Any]:
    """A batch and its mask, moved or constrained to where they go."""
    if not is_spread(placement):
        return place((values, mask), placement, lead)
    values = jax.tree.map(lambda x, each: _place(x, each, lead), values, placement.of(values))
    return values, _place(mask, placement.mask, lead)


def is_spread(placement: Any) -> TypeGuard[BatchSharding]:
    """Whether a loader's `sharding=` says where batches go."""
    return isinstance(placement, BatchSharding)


def put_words(words: Any, placement: Any) -> Any:
    """The words of a state as an array: on every device of a loader's mesh, if it has one."""
    if is_spread(placement) and placement.is_here:
        return placement.replicated(words)
    return to_device(words)


def layout(values: Any, placement: Any) -> Any:
    """The placement of every array, as a tree that `jax.device_put` takes."""
    if not isinstance(placement, NamedSharding):
        return placement
    return jax.tree.map(lambda x: fitted(placement, x.ndim), values)


@lru_cache(maxsize=256)
def fitted(placement: Any, axes: int, lead: int = 0) -> Any:
    """The placement of an array with this number of axes."""
    if not isinstance(placement, NamedSharding):
        return placement
    spec = (*(None,) * lead, *placement.spec)
    if not lead and len(spec) <= axes:
        return placement
    kept = PartitionSpec(*spec[:axes])
    return NamedSharding(placement.mesh, kept, memory_kind=placement.memory_kind)


def in_words(placement: Any) -> str:
    """A placement as drawings and errors print it: `P('data', 'model') over data=4, model=2`."""
    if is_spread(placement):
        return placement.in_words()
    if not isinstance(placement, NamedSharding):
        return str(placement)
    kind = f" in {placement.memory_kind}" if in_other_memory(placement) else ""
    return f"{placement.spec} over {axes_in_words(placement.mesh)}{kind}"


def placed(traits: Any, values: Any, mask: Any) -> tuple[Any, Any]:
    """A step's values and mask, placed as the pipeline says; for programs with many steps."""
    if traits.placement is None:
        return values, mask
    check_callbacks(traits)
    return place_step(values, mask, traits.placement)


def _place(x: Any, placement: Any, lead: int) -> Any:
    if is_traced(x):
        return _constrained(x, placement, lead)
    here = x.devices() if isinstance(x, jax.Array) else None
    if isinstance(placement, jax.Device) and here == {placement}:
        return x  # quicker than `device_put` of an array that is there already
    return jax.device_put(x, fitted(placement, x.ndim, lead))


# Inside of programs


def _constrained(x: Any, placement: Any, lead: int) -> Any:
    if isinstance(placement, jax.Device):
        if placement == _default_device():  # programs run there anyway
            return x
        placement = SingleDeviceSharding(placement)
    check_in_program(placement)
    sharding = fitted(placement, x.ndim, lead)
    recorded = staging()
    if not isinstance(sharding, NamedSharding):
        there = jax.lax.with_sharding_constraint if recorded else jax.device_put
        return there(x, sharding)
    everywhere = NamedSharding(sharding.mesh, PartitionSpec())
    if not recorded:  # an eager `vmap`: it may lie on other devices
        x = jax.device_put(x, everywhere)
    if AxisType.Explicit not in sharding.mesh.axis_types:
        return jax.lax.with_sharding_constraint(x, sharding)
    if jax.typeof(x).sharding.mesh != sharding.mesh.abstract_mesh:
        x = jax.device_put(x, everywhere)  # brings the mesh into the program; `reshard` does not
    return jax.sharding.reshard(x, sharding)


def _default_device() -> Any:
    device = jax.config.jax_default_device  # type: ignore[attr-defined]
    if device is None or isinstance(device, str):
        return jax.local_devices(backend=device)[0]
    return device


def check_in_program(placement: Any) -> None:
    """Raises an error for placements that a program cannot carry out."""
    manual = jax.sharding.get_abstract_mesh().manual_axes
    if manual:
        raise UsageError(
            f"DevicePutTransform and `sharding=` cannot place batches inside of `shard_map` (over "
            f"{manual}), where every device makes its own batch; leave them out of this pipeline."
        )
    if in_other_memory(placement):
        raise UsageError(
            f"DevicePutTransform cannot place batches in {placement.memory_kind!r} memory inside "
            f"of a program; leave `memory_kind=` out, or take batches from `iterate`."
        )
    if isinstance(placement, NamedSharding):
        mesh = placement.mesh
        kind_of = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
        kinds = {kind_of[name] for name in _names(placement.spec)}
        if {AxisType.Auto, AxisType.Explicit} <= kinds:
            raise UsageError(
                f"{placement.spec} names axes of both kinds, Auto and "
                f"Explicit, which JAX cannot place inside of a program; make all axes of the mesh "
                f"of one kind: `jax.make_mesh(..., axis_types=...)`."
            )


def in_other_memory(sharding: Any) -> bool:
    """Whether it names other memory than the device's own, such as pinned host memory."""
    usual = next(iter(sharding.device_set)).default_memory().kind
    return sharding.memory_kind not in (None, usual)


def _names(spec: Any) -> list[str]:
    """The axes of the mesh that a spec names."""
    parts = [part if isinstance(part, tuple) else (part,) for part in spec]
    return [name for part in parts for name in part if isinstance(name, str)]


def check_callbacks(traits: Any) -> None:
    """Refuses ordered callbacks on several devices: JAX runs them on one only."""
    placement = traits.placement
    devices = getattr(placement, "device_set", ())
    if traits.callbacks and len(devices) > 1:
        raise UsageError(
            f"a HostCallbackTransform runs in order, which JAX does on one device only, and "
            f"this program is spread over {len(devices)}; take batches from "
            f"`iterate` or `next_batch` outside of `jit`, or leave one of them out."
        )


def refuse_unmapped(error: ValueError) -> None:
    """Explains this error of JAX, about functions that were traced without the mesh."""
    if lacks_mesh(error):
        raise UsageError(
            "JAX cannot map these states over a mesh with explicit axes: a stage has a loop, or a "
            "function with its own gradient (`jax.nn.relu`), that was traced without the mesh. "
            "Make the mesh with `jax.make_mesh(..., axis_types=(jax.sharding.AxisType.Auto,))`."
        ) from error


def check_given(placement: Any, **given: Any) -> None:
    """Refuses arguments that lie on other devices than the batches: a program runs on one set."""
    if placement is None:
        return
    there = {placement} if isinstance(placement, jax.Device) else placement.device_set
    for name, tree in given.items():
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            if is_concrete(leaf) and leaf.committed and leaf.sharding.device_set != there:
                named = isinstance(placement, NamedSharding) or is_spread(placement)
                wanted = "NamedSharding(mesh, PartitionSpec())" if named else "device"
                who = "`sharding=`" if is_spread(placement) else "DevicePutTransform"
                raise UsageError(
                    f"one program runs on one set of devices: {who} puts batches on "
                    f"{_devices(there)}, but `{name}{jax.tree_util.keystr(path)}` was put on "
                    f"{_devices(leaf.sharding.device_set)}; write "
                    f"`{name} = jax.device_put({name}, {wanted})` before."
                )


def joining(state: Any, placement: Any) -> Any:
    """The state on all devices of the placement, where a program over them would return it.

    Otherwise the second epoch would compile again: its state comes from the first epoch's program,
    and so lies on other devices than the first state did. A state may come from another mesh.
    """
    if is_spread(placement):
        return jax.tree.map(placement.joined, state) if placement.is_here else state
    if not isinstance(placement, NamedSharding):
        return state
    everywhere = NamedSharding(placement.mesh, PartitionSpec())

    def put(leaf: Any) -> Any:
        moves = is_concrete(leaf) and (leaf.is_fully_replicated or not leaf.committed)
        return jax.device_put(leaf, everywhere) if moves else leaf

    return jax.tree.map(put, state)


def joined_by(carry: Any, placement: Any) -> Any:
    """A carry whose arrays are on all devices of a loader's mesh, unless they were put somewhere.

    Otherwise the second epoch would compile again, since the first one returns them there.
    """
    if not is_spread(placement) or not placement.is_here:
        return carry
    weak = lambda x: getattr(x, "weak_type", False)  # noqa: E731 (a copy may lose this)
    return jax.tree.map(lambda x: x if weak(x) else placement.replicated(x), carry)


def _devices(devices: Any) -> str:
    ids = sorted(devices, key=lambda d: d.id)
    names = ", ".join(f"{d.platform}:{d.id}" for d in ids[:4])
    return names if len(ids) <= 4 else f"{names} and {len(ids) - 4} more"


# When a pipeline is built


def check_layout(sharding: Any, spec: Any, lanes: tuple[int, ...], label: str) -> None:
    """Refuses batches, or masks of these lanes, that a sharding cannot divide."""
    leaves = [(leaf, "") for leaf in jax.tree.leaves(spec)]
    mask = jax.ShapeDtypeStruct(lanes, bool)
    for leaf, name in (*leaves, (mask, "the mask, ")):
        try:
            fitted(sharding, len(leaf.shape)).shard_shape(leaf.shape)
        except (ValueError, IndexError) as error:
            raise PipelineError(
                f"{label}: {name}{format_spec(leaf)} cannot be laid out so: {first_line(error)}; "
                f"choose a batch size that the devices divide, and put this stage after the "
                f"BatchTransform."
            ) from error
    spread = isinstance(sharding, NamedSharding) and _names(sharding.spec)
    if spread and not any(leaf.shape for leaf, _ in leaves):
        raise PipelineError(
            f"{label}: {format_spec(spec)} cannot be spread, since it has no axes; put this stage "
            f"after the BatchTransform."
        )
