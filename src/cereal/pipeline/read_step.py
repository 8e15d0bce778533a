"""Reads one step inside of a program, and lays the batch out as the loader's `sharding=` says.

    rows, divided by lanes  --gather, stages-->  batch, divided by lanes  --> as `sharding=` says

If the rows are divided first, every device reads only its own lanes, and nothing is sent between
devices. If the axes of the mesh are explicit, stages run as if they were not (`auto_axes`): users'
functions need not say where their results go.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec

from ..device.batch_sharding import BatchSharding
from ..device.explicit_axes import explicit_mesh
from ..device.placement import check_in_program, fitted, is_spread, place_step
from ..order.rows import Plan, Rows


def read_step(source: Any, rows: Rows) -> tuple[Any, Any]:
    """The batch of these rows, and its mask."""
    placement = source.traits.placement
    if not is_spread(placement):
        return _read(source, rows)
    check_in_program(placement.rows)
    leaves = jax.tree.leaves((source, rows))
    if not placement.explicit or explicit_mesh(*leaves) is None:
        rows = _divided(_without_padding(source, rows), placement)
        return place_step(*_read(source, rows), placement)
    places = (placement.leaves, placement.mask)

    def read(source: Any, rows: Rows) -> tuple[Any, Any]:
        rows = _divided(_without_padding(source, rows), placement, bare=True)
        values, mask = _read(source, rows)
        return tuple(jax.tree.leaves(values)), mask

    run: Any = jax.sharding.auto_axes(read, out_sharding=places)
    values, mask = run(source, rows)
    return jax.tree.unflatten(placement.spec.structure, values), mask


def rows_of_steps(source: Any, plan: Plan, words: Any, steps: int) -> tuple[Rows, Any]:
    """The routed rows of the next steps, and the words after them; inside of a program.

    With explicit axes, JAX does not find out by itself that each device needs only its own lanes.
    """

    def compute(source: Any, words: Any) -> tuple[Rows, Any]:
        rows, words = plan.rows_for(words, steps)
        return source._route(rows), words

    placement = source.traits.placement
    explicit = is_spread(placement) and placement.explicit and placement.padded == placement.lanes
    if not explicit or explicit_mesh(*jax.tree.leaves((source, words))) is None:
        return compute(source, words)
    rows, _ = jax.eval_shape(compute, source, words)
    divided = rows.map(lambda x: fitted(placement.rows, x.ndim, 1))
    places = (divided.replaced(key=placement.everywhere), placement.everywhere)
    run: Any = jax.sharding.auto_axes(compute, out_sharding=places)
    return run(source, words)


def _read(source: Any, rows: Rows) -> tuple[Any, Any]:
    values, mask = source._read(rows)
    return values, jnp.ones(source.traits.lanes, jnp.bool_) if mask is None else mask


def _divided(rows: Rows, placement: BatchSharding, *, bare: bool = False) -> Rows:
    """The rows with their lanes divided over the mesh; `bare`: inside of `auto_axes`."""
    if placement.padded != placement.lanes or rows.index.shape != placement.lanes:
        return rows
    auto = all(kind != AxisType.Explicit for kind in placement.mesh.axis_types)
    if not auto and not bare:
        return rows

    def divide(x: Any) -> Any:
        sharding = fitted(placement.rows, x.ndim)
        spec = PartitionSpec(*sharding.spec)
        return jax.lax.with_sharding_constraint(x, spec if bare else sharding)

    return rows.map(divide)


def _without_padding(source: Any, rows: Rows) -> Rows:
    """The lanes of the batch alone: stages are given as many as without a mesh."""
    lanes, padded = source.traits.placement.lanes, source.traits.placement.padded
    count = len(lanes)
    if padded == lanes or rows.index.shape[-count:] != padded:
        return rows
    lead = (slice(None),) * (rows.index.ndim - count)

    def cut(x: Any, axes: int = count) -> Any:
        return x[(*lead, *(slice(0, n) for n in lanes[:axes]))]

    last = source._host_stages[-1] if source._host_stages else None
    if last is None or not last.lanes_after:
        return rows.map(cut)
    # What Python made of whole batches need not have their lanes: a number for each batch.
    unit = last.lanes_after
    axes = [count if x.shape[: len(unit)] == unit else count - len(unit) for x in last.spec.leaves]
    leaves, structure = jax.tree.flatten(rows.below)  # the values, and perhaps a mask
    below = jax.tree.unflatten(structure, list(map(cut, leaves, [*axes, count])))
    return rows.replaced(below=None).map(cut).replaced(below=below)
