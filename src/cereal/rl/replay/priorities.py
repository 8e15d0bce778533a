"""New priorities for items in the buffer of a loader's state."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...base.capture import is_concrete
from ...base.errors import UsageError
from ...base.pytree import set_copy
from ...base.spec import format_spec
from ...device.explicit_axes import everywhere
from ...device.transfer import to_host
from .buffer import BufferState
from .state import MixedState, ReplayState, refuse_many
from .storage.ring import NO_AGE
from .storage.sum_tree import LARGEST, SMALLEST, set_priority
from .storing import are_whole

_WRITE = "`set_priorities(state, batch['index'], priority)`"


def set_priorities(state: Any, index: Any, priority: Any) -> Any:
    """The state with new priorities of items; for `ReplayTransform(sample="prioritized")`.

        def update(carry, batch, mask):                 # the body of `scan_epoch`
            ...
            return carry, {"index": batch["index"], "priority": jnp.abs(td_error)}

        def feedback(state, carry, output):             # `scan_epoch(..., feedback=feedback)`
            return cereal.rl.set_priorities(state, output["index"], output["priority"])

    If that is all, write `feedback=cereal.rl.set_priorities`: it takes both from such an output.

    `index` is the key of batches. An item is then drawn in proportion to `priority**alpha`. With
    priority 0 it is never drawn again, so add a little to errors that may be 0. If an item is there
    several times, the largest priority counts. Of a `MixedBatchesSource`, pass the indices of the
    whole batch in its order: the place of an item says which buffer it is in.

    What cannot be used is left out and counted in `replay_report(state)`: priorities of items that
    have been overwritten meanwhile, and priorities that are negative, NaN or infinite. (These raise
    an error if you call the function outside of `jit`; if not, the next epoch warns.)
    """
    if isinstance(priority, Mapping):  # as `feedback`: (state, carry, output)
        index, priority = _of_output(priority)
    index, priority = everywhere(jnp.asarray(index)), everywhere(jnp.asarray(priority))
    if index.dtype != jnp.uint32 or priority.shape != index.shape:
        raise UsageError(
            f"`set_priorities`: `index` is {format_spec(index)} and `priority` "
            f"{format_spec(priority)}; write {_WRITE}, with one priority for each index."
        )
    if not jnp.issubdtype(priority.dtype, jnp.floating):
        raise UsageError(
            f"`set_priorities`: `priority` is {format_spec(priority)}; priorities are floats."
        )
    _refuse_bad(priority)
    made, found = _given(state, index, priority)
    if not found:
        raise UsageError(
            "`set_priorities`: this state has no buffer with priorities; build the loader with "
            '`ReplayTransform(..., sample="prioritized")`.'
        )
    return made


def _of_output(output: Mapping[str, Any]) -> tuple[Any, Any]:
    missing = [name for name in ("index", "priority") if name not in output]
    if missing:
        raise UsageError(
            f"`feedback=set_priorities`: the body's output has no {missing[0]!r}, it has "
            f"{sorted(map(str, output))}; return "
            f"`{{'index': batch['index'], 'priority': ...}}` from it."
        )
    return output["index"], output["priority"]


def _given(state: Any, index: Any, priority: Any, *, drawn: bool = False) -> tuple[Any, int]:
    """The state with these priorities, and how many buffers took them.

    `drawn`: the items of a batch were drawn, by a buffer above, from several batches below.
    """
    nodes, structure = jax.tree.flatten(state, is_leaf=_takes_priorities)
    found = 0
    for number, node in enumerate(nodes):
        if isinstance(node, MixedState):
            _refuse_drawn(drawn)
            nodes[number], inside = _given_parts(node, index, priority)
            found += inside
        elif isinstance(node, ReplayState) and node.nodes is not None:
            nodes[number] = _prioritized(node, index, priority)
            found += 1
        elif isinstance(node, ReplayState | BufferState):  # perhaps a buffer below has them
            source, inside = _given(node.source, index, priority, drawn=True)
            nodes[number] = set_copy(node, source=source)
            found += inside
    if found > 1 and not any(isinstance(node, MixedState) for node in nodes):
        raise UsageError(
            f"`set_priorities`: this state has {found} buffers with priorities, and it is not "
            f"clear which one is meant; set them in the states of the parts."
        )
    return jax.tree.unflatten(structure, nodes), found


def _refuse_drawn(drawn: bool) -> None:
    if drawn:
        raise UsageError(
            "`set_priorities`: a buffer drew these items from batches of a MixedBatchesSource, so "
            "their places do not say which part they are of; put the mixture after the buffer, or "
            "set priorities in the states of the parts."
        )


def _given_parts(state: MixedState, index: Any, priority: Any) -> tuple[MixedState, int]:
    if index.shape != (sum(state.sizes),):
        raise UsageError(
            f"`set_priorities`: a batch joins parts of {state.sizes} items, and `index` is "
            f"{format_spec(index)}; pass the whole `batch['index']`."
        )
    parts, found, begin = [], 0, 0
    for part, size in zip(state.parts, state.sizes, strict=True):
        which = slice(begin, begin + size)
        made, inside = _given(part, index[which], priority[which])
        parts.append(made)
        found, begin = found + inside, begin + size
    return MixedState(tuple(parts), state.sizes), found


@partial(jax.jit, inline=True)
def _prioritized(state: ReplayState, index: Any, priority: Any) -> ReplayState:
    refuse_many(state, "`set_priorities`", "jax.vmap(set_priorities)(state, index, priority)")
    ring, layout = state.ring, state.layout
    index, priority, positive = index.reshape(-1), *_as_float32(priority.reshape(-1))
    age = ring.last_number - index  # how many numbers were given since, modulo 2^32
    there = (age > 0) & (age <= ring.count.astype(jnp.uint32))
    late = ~there & (age < np.uint32(NO_AGE))
    age = jnp.where(there, age, 1).astype(jnp.int32)
    stored = priority ** np.float32(layout.alpha)
    # (False for NaN. With `alpha=0`, infinity is stored as 1.)
    good = (priority >= 0) & (stored <= np.float32(LARGEST)) & jnp.isfinite(priority)
    stored = jnp.where(positive, jnp.maximum(stored, np.float32(SMALLEST)), np.float32(0))
    # Batches that are masked may name items that are not whole yet, or that do not exist.
    used = there & good & are_whole(state, age)
    gone = late & good & (ring.count > layout.behind)
    slots = ring.slot_of_age(age)
    largest = jnp.max(jnp.where(used, stored, np.float32(0)), initial=np.float32(0))
    state = state.but(
        largest=jnp.maximum(state.largest, largest),
        overwritten=state.overwritten + jnp.sum(gone, dtype=jnp.uint32),
        refused=state.refused + jnp.sum(~good & (there | late), dtype=jnp.uint32),
    )
    nodes = set_priority(state.nodes, layout.capacity, slots, stored, used)
    return set_copy(state, nodes=nodes)


def _as_float32(priority: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The priorities, and whether each is above 0: also one so small that float32 has no such
    number, or that a CPU takes for 0."""
    found = priority.astype(jnp.float32)
    return found, (priority > 0) | (lax.bitcast_convert_type(found, jnp.int32) > 0)


def _refuse_bad(priority: Any) -> None:
    if not is_concrete(priority):
        return
    values = to_host(priority).astype(np.float64)
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(bad):
        raise UsageError(
            f"`set_priorities`: priority {bad[0]} is {values.reshape(-1)[bad[0]]}; priorities are "
            f"finite and not negative. ({len(bad)} of {values.size} are not.)"
        )


def _takes_priorities(node: Any) -> bool:
    return isinstance(node, ReplayState | MixedState | BufferState)
