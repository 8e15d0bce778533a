"""What `DataLoader(sharding=...)` says, worked out for every array of a batch.

    NamedSharding(mesh, P("data"))            one for all: arrays with fewer axes use its beginning
    (mesh, "data")                            the same, shorter
    {"x": NamedSharding(mesh, P("data", "seq")), "y": NamedSharding(mesh, P("data"))}
    (mesh, {"x": P("data", "seq"), "y": P("data")})

If the mesh does not divide a batch that may be padded, the arrays have more lanes than the batch:

    batch of 10, 4 devices      0 1 2 | 3 4 5 | 6 7 8 | 9 _ _       the mask is False at _
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from ..base.errors import PipelineError, first_line
from ..base.numbers import multiples_near
from ..base.spec import Spec, format_spec
from .batch_sharding import BatchSharding, axes_in_words, padded_shape
from .placement import fitted, in_other_memory

_OWNER = "DataLoader: `sharding`"
_WRITE = "write `sharding=NamedSharding(mesh, P('data'))` or `sharding=(mesh, 'data')`"


def batch_sharding(given: Any, source: Any, **options: Any) -> BatchSharding:
    """What `sharding=` means for the batches of a pipeline; an error if it does not fit them.

    The other options of the loader that concern global batches are kept with it.
    """
    traits, spec = source.traits, Spec(source.element_spec())
    leaves = leaf_shardings(given, spec, _OWNER)
    if not traits.lanes:
        raise PipelineError(
            f"{_OWNER}: this pipeline gives single elements, {format_spec(spec.tree)}, and a "
            f"sharding divides batches; add a BatchTransform."
        )
    mask = _mask_sharding(leaves, spec, traits)
    padded = _padded(leaves, mask, spec, traits)
    shapes = [
        jax.ShapeDtypeStruct(padded_shape(leaf.shape, traits.lanes, padded), leaf.dtype)
        for leaf in spec.leaves
    ]
    made = Spec(jax.tree.unflatten(spec.structure, shapes))
    for sharding, leaf in zip(leaves, made.leaves, strict=True):
        _check_divides(sharding, leaf)
    return BatchSharding(leaves, mask, traits.lanes, padded, made, **options)


def leaf_shardings(given: Any, spec: Spec, owner: str) -> tuple[NamedSharding, ...]:
    """One sharding for each array of this spec, in the order of `jax.tree.leaves`.

    Errors begin with `owner`.
    """
    try:
        leaves = _for_leaves(_with_mesh(given), spec)
        _check_mesh(leaves)
    except PipelineError as error:
        raise PipelineError(f"{owner}{error}{_as_one_spec(given)}") from error.__cause__
    return leaves


# From what the user wrote to one sharding for each array; errors go on after "`sharding`"


def _is_sharding(x: Any) -> bool:
    return isinstance(x, Sharding)


def _has_mesh(given: Any) -> bool:
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], Mesh)


def _with_mesh(given: Any) -> Any:
    """The shardings that `(mesh, ...)` stands for; anything else unchanged."""
    if not _has_mesh(given):
        return given
    mesh, parts = given

    def named(part: Any) -> NamedSharding:
        spec = part if isinstance(part, PartitionSpec) else PartitionSpec(part)
        try:
            return NamedSharding(mesh, spec)
        except (ValueError, TypeError) as error:
            raise PipelineError(
                f": {spec} does not fit the mesh, whose axes are "
                f"{', '.join(map(repr, mesh.axis_names))}: {first_line(error)}"
            ) from error

    one = lambda x: isinstance(x, PartitionSpec) or _is_entry(x)  # noqa: E731
    return jax.tree.map(named, parts, is_leaf=one)


def _are_names(x: Any) -> bool:
    return isinstance(x, tuple) and bool(x) and all(isinstance(name, str) for name in x)


def _as_one_spec(given: Any) -> str:
    """What to write, if a tuple that is read as a tree looks like the axes of one spec."""
    parts = given[1] if _has_mesh(given) else None
    if isinstance(parts, PartitionSpec) or not isinstance(parts, tuple | list):
        return ""
    if not parts or _are_names(parts) or not all(_is_entry(part) for part in parts):
        return ""
    axes = ", ".join(map(repr, parts))
    return (
        f" `{parts!r}` is read as one entry for each part of a batch; for one spec of all arrays "
        f"write `sharding=(mesh, P({axes}))`."
    )


def _is_entry(x: Any) -> bool:
    return x is None or isinstance(x, str) or _are_names(x)


def _for_leaves(given: Any, spec: Spec) -> tuple[NamedSharding, ...]:
    paths = jax.tree_util.tree_flatten_with_path(given, is_leaf=_is_sharding)[0]
    known = {tuple(path): _as_named(sharding, path) for path, sharding in paths}
    if not known:
        raise PipelineError(f" is empty, {given!r:.60}; {_WRITE}.")
    found, used = [], set()
    for path, leaf in jax.tree_util.tree_flatten_with_path(spec.tree)[0]:
        begins = [path[:count] for count in range(len(path) + 1) if path[:count] in known]
        if not begins:
            raise PipelineError(
                f" says nothing about `batch{_text(path)}`; it has "
                f"{', '.join(f'`batch{_text(each)}`' for each in known)}. One sharding for "
                f"all arrays works too: {_WRITE}."
            )
        used.add(begins[0])
        sharding = known[begins[0]]
        if begins[0] == path and path and len(sharding.spec) > len(leaf.shape):
            raise PipelineError(
                f": {sharding.spec} has more axes than `batch{_text(path)}`, which is "
                f"{format_spec(leaf)}; leave the last ones out."
            )
        found.append(fitted(sharding, len(leaf.shape)))
    extra = [each for each in known if each not in used]
    if extra:
        raise PipelineError(
            f" has `batch{_text(extra[0])}`, and there is no such array in a batch, which "
            f"is {format_spec(spec.tree)}."
        )
    return tuple(found)


def _text(path: Any) -> str:
    return jax.tree_util.keystr(tuple(path))


def _as_named(sharding: Any, path: Any) -> NamedSharding:
    if isinstance(sharding, SingleDeviceSharding):
        (device,) = sharding.device_set
        sharding = NamedSharding(Mesh(np.array([device]), ("device",)), PartitionSpec())
    if not isinstance(sharding, NamedSharding):
        where = f" for `batch{_text(path)}`" if path else ""
        hint = _WRITE
        if isinstance(sharding, PartitionSpec):
            hint = "a spec alone has no mesh: write `sharding=(mesh, specs)`"
        if isinstance(sharding, jax.Device | str):
            hint = "for one device add `DevicePutTransform(device)` to the pipeline"
        raise PipelineError(
            f" must be a NamedSharding, a tree of them, or `(mesh, axis)`, got "
            f"{type(sharding).__name__}{where}; {hint}."
        )
    if not isinstance(sharding.mesh, Mesh):
        raise PipelineError(
            ": its mesh is abstract and has no devices; pass the mesh that "
            "`jax.make_mesh` returned."
        )
    if in_other_memory(sharding):
        raise PipelineError(
            f": batches cannot be put into {sharding.memory_kind!r} memory; leave "
            f"`memory_kind=` out."
        )
    return sharding


def _check_mesh(leaves: tuple[NamedSharding, ...]) -> None:
    for each in leaves:
        if each.mesh != leaves[0].mesh:
            raise PipelineError(
                f": the arrays of a batch go to different meshes, {leaves[0].mesh} and "
                f"{each.mesh}; one program uses one mesh."
            )


# The mask, and padding


def _mask_sharding(leaves: Any, spec: Spec, traits: Any) -> NamedSharding:
    """As the batch axes of the first array that is spread over them."""
    shape = traits.mask_shape
    axes = len(traits.lanes) if shape[: len(traits.lanes)] == traits.lanes else len(shape)
    for sharding, leaf in zip(leaves, spec.leaves, strict=True):
        if leaf.shape[:axes] == shape[:axes] and any(sharding.spec[:axes]):
            more = leaf.shape[: len(shape)] == shape  # a finer mask goes with the array it is for
            kept = sharding.spec[: len(shape) if more else axes]
            return NamedSharding(sharding.mesh, PartitionSpec(*kept))
    return NamedSharding(leaves[0].mesh, PartitionSpec())


def _padded(leaves: Any, mask: Any, spec: Spec, traits: Any) -> tuple[int, ...]:
    """The lanes of the arrays: as many as the batch has, or more if it may be padded."""
    lanes = traits.lanes
    aligned = [
        sharding
        for sharding, leaf in zip(leaves, spec.leaves, strict=True)
        if leaf.shape[: len(lanes)] == lanes
    ]
    made = []
    for axis, size in enumerate(lanes):
        parts = math.lcm(*(_parts(sharding, axis) for sharding in (*aligned, mask)))
        if size % parts and traits.remainder != "pad":
            padded = (
                f" Or write `BatchTransform({size}, pad_last_batch=True)`: then batches are "
                f"padded, and the mask says where."
            )
            raise PipelineError(
                f"{_OWNER}: a batch of {size} cannot be divided into {parts} equal parts over "
                f"{axes_in_words(mask.mesh)}; the nearest sizes that can are "
                f"{multiples_near(size, parts)}.{'' if traits.drawn else padded}"
            )
        made.append(-(-size // parts) * parts)
    if tuple(made) != lanes and traits.mask_shape[: len(lanes)] != lanes:
        raise PipelineError(
            f"{_OWNER}: batches of {list(lanes)} elements would have to be padded to {made} over "
            f"{axes_in_words(mask.mesh)}, and their mask {list(traits.mask_shape)} has no place "
            f"to say so; choose a batch size that the mesh divides."
        )
    return tuple(made)


def _parts(sharding: NamedSharding, axis: int) -> int:
    """Into how many parts a sharding divides an axis."""
    entry = sharding.spec[axis] if axis < len(sharding.spec) else None
    names = entry if isinstance(entry, tuple) else () if entry is None else (entry,)
    return math.prod(sharding.mesh.shape[name] for name in names)


def _check_divides(sharding: NamedSharding, leaf: Any) -> None:
    try:
        sharding.shard_shape(leaf.shape)
    except (ValueError, IndexError) as error:
        raise PipelineError(
            f"{_OWNER}: {sharding.spec} over {axes_in_words(sharding.mesh)} cannot divide "
            f"{format_spec(leaf)}: {first_line(error)}"
        ) from error
