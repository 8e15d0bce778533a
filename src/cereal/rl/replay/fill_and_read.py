"""Arrays go into the buffer of a loader's state, and come out of it."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...base.capture import any_traced, is_concrete
from ...base.errors import StateError, UsageError
from ...base.fitting import check_fits
from ...base.spec import format_spec
from ...device.transfer import copied, to_host
from ...pipeline.source import Source
from .replay_stream import store_all
from .state import Layout, ReplayState, find_buffers, refuse_many, with_changed_buffer
from .storage.host_memory import is_on_host

_FIRST = "Fill the buffer before the first batch: `fill_replay(loader.init_state(key), ...)`."
_CUT = "Pass `truncate=True`, or cut the elements after an end of an episode."


def fill_replay(state: Any, elements: Any, *, truncate: bool = False) -> Any:
    """The state with these items in its buffer: demonstrations, or data from before.

        state = cereal.rl.fill_replay(loader.init_state(key), transitions)

    `elements` is a tree of arrays, like elements of the source, with one axis in front: `[n, ...]`
    in the order of time, with the axis of environments after it if there are several. Of more items
    than the buffer has room for, it keeps the last ones.

    For n-step returns and sequences, the last step must end an episode: what is collected next does
    not follow it. And so must the last step that is stored already, if there are some. If not, it
    is an error; inside of `jit`, nothing is stored, `replay_report(state)` counts that in
    `not_filled`, and the next epoch warns. `truncate=True` stores the last step as a truncation:
    its `done` is True then, and so is `info["truncated"]`. (Single items need no such end, and are
    stored as they are.)
    """
    buffers = find_buffers(state)
    if len(buffers) != 1:
        raise UsageError(
            f"`fill_replay`: this state has {len(buffers)} buffers, and it is not clear which one "
            f"is meant; fill the one in the state of its part."
        )
    buffer = buffers[0]
    if buffer.layout.sample == "queue":
        raise UsageError(
            "`fill_replay`: a queue gives each item once, and could lose some; let it collect "
            "them from a source."
        )
    refuse_many(buffer, "`fill_replay`", "jax.vmap(fill_replay)(state, elements)")
    layout = buffer.layout
    _refuse_joins(_newest_ends(buffer), layout, "the last step that is stored now", _FIRST)
    items = _as_items(elements, buffer)
    items = _truncated(items, layout) if truncate and layout.ends is not None else items
    last = None if layout.ends is None else items[layout.ends][-layout.columns :]
    _refuse_joins(last, layout, "the last step of the elements", _CUT)
    if last is not None and any_traced((buffer.numbers, last)) and _on_host(buffer):
        raise UsageError(
            '`fill_replay`: inside of `jit`, a buffer with `storage="host"` cannot leave out steps '
            "that end no episode; fill it outside of `jit`, before the first batch."
        )
    return with_changed_buffer(state, buffer, _stored(buffer, items))


def _on_host(buffer: ReplayState) -> bool:
    return any(map(is_on_host, jax.tree.leaves(buffer.table)))


@partial(jax.jit, inline=True)
def _stored(buffer: ReplayState, items: Any) -> ReplayState:
    layout = buffer.layout
    real = jnp.ones(jax.tree.leaves(items)[0].shape[0], jnp.bool_)
    if layout.ends is None:
        return store_all(buffer, items, real)
    old_ends = (_newest(buffer) != 0).all() | (buffer.ring.count == 0)
    good = old_ends & (items[layout.ends][-layout.columns :] != 0).all()
    not_filled = buffer.not_filled + jnp.where(good, np.uint32(0), np.uint32(1))
    return store_all(buffer, items, real & good).but(not_filled=not_filled)


def _as_items(elements: Any, buffer: ReplayState) -> Any:
    if isinstance(elements, Source):
        raise UsageError(
            "`fill_replay`: `elements` is a source; of an indexed one, write "
            "`fill_replay(state, source.take(np.arange(len(source))))`."
        )
    wanted = buffer.ring.item
    columns = buffer.layout.columns
    axes = 2 if columns > 1 else 1
    if jax.tree.structure(elements) != wanted.structure:
        raise StateError(
            f"`fill_replay`: the elements have another structure than the items of the buffer: "
            f"items are {wanted}, elements {format_spec(jax.tree.map(jnp.asarray, elements))}."
        )

    def flat(path: Any, leaf: Any, item: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            check_fits(leaf, f"`fill_replay`: `elements{jax.tree_util.keystr(path)}`")
        # The program may run later, when the user writes into his array again.
        leaf = copied(leaf) if isinstance(leaf, np.ndarray) else jnp.asarray(leaf)
        lead = leaf.shape[:axes]
        good = len(lead) == axes and leaf.shape[axes:] == item.shape and leaf.dtype == item.dtype
        if not good or (axes == 2 and lead[1] != columns):
            name = f"elements{jax.tree_util.keystr(path)}"
            between = f" and one of {columns} environments" if axes == 2 else ""
            alone = axes == 2 and leaf.shape[1:] == item.shape and buffer.layout.ends is None
            write = f"x[:len(x) // {columns} * {columns}].reshape(-1, {columns}, *x.shape[1:])"
            more = f" Items that stand alone get it by `{write}`." if alone else ""
            raise StateError(
                f"`fill_replay`: `{name}` is {format_spec(leaf)}; it must be {format_spec(item)} "
                f"with an axis of time{between} in front.{more}"
            )
        return leaf.reshape(math.prod(lead), *item.shape)

    items = jax.tree_util.tree_map_with_path(flat, elements, wanted.tree)
    lengths = {leaf.shape[0] for leaf in jax.tree.leaves(items)}
    if len(lengths) > 1 or 0 in lengths:
        raise StateError(
            f"`fill_replay`: arrays of elements must have one length, and not 0; they have "
            f"{sorted(length // columns for length in lengths)}."
        )
    block = buffer.layout.block
    if lengths.pop() % block:
        raise StateError(
            f'`fill_replay`: with `storage="host"` items are written {block} at a time, so that '
            f"they are never cut in two; pass a multiple of {block // columns} steps."
        )
    return items


def _truncated(items: Any, layout: Layout) -> Any:
    """The items, of which those of the last step end their episodes."""
    info, last = items.get("info"), slice(-layout.columns, None)
    known = isinstance(info, dict) and "terminated" in info
    if layout.returns and not known:
        raise UsageError(
            "`fill_replay`: without `info['terminated']`, each `done` is a termination, so a "
            "truncated episode would not be bootstrapped; cut the elements after an end of an "
            "episode, or give elements that key."
        )
    ends = jnp.asarray(items[layout.ends])
    items = {**items, layout.ends: ends.at[last].set(jnp.ones((), ends.dtype))}
    if known and "truncated" in info:
        flag = jnp.asarray(info["truncated"])
        going_on = ~jnp.asarray(info["terminated"])[last].astype(jnp.bool_)
        items["info"] = {**info, "truncated": flag.at[last].set(going_on.astype(flag.dtype))}
    return items


def _newest_ends(buffer: ReplayState) -> Any:
    """Whether the newest step that is stored ends its episode; None if that is not known."""
    count = buffer.ring.count
    known = buffer.layout.ends is not None and is_concrete(count) and bool(count)
    return _newest(buffer) if known else None


def _newest(buffer: ReplayState) -> jax.Array:
    """What the newest step says of the end of its episodes."""
    ages = jnp.arange(buffer.layout.columns, 0, -1, dtype=jnp.int32)
    return buffer.ring.take(buffer.ring.slot_of_age(ages))[buffer.layout.ends]


def _refuse_joins(newest: Any, layout: Layout, what: str, remedy: str) -> None:
    """Refuses steps in a row that go on, from an episode that has not ended, in other data."""
    if newest is None or not is_concrete(newest):
        return
    going_on = np.flatnonzero(to_host(newest) == 0)
    if len(going_on):
        where = f" of environment {going_on[0]}" if layout.columns > 1 else ""
        raise UsageError(
            f"`fill_replay`: {what}{where} ends no episode (`{layout.ends}` is False), so windows "
            f"would go on from it in steps that do not follow it. {remedy}"
        )


def read_replay(state: Any) -> Any:
    """The items in the buffer of a state, the oldest first, as NumPy arrays.

        steps = cereal.rl.read_replay(state)             # {"reward": [time, 64], ...}
        np.savez("steps.npz", state=steps["state"], ...)
        state = cereal.rl.fill_replay(other.init_state(key), steps)

    It is a tree like elements of the source, with an axis of time in front, and after it the axis
    of environments if there are several. (Of a reservoir, the items are in no order.) If the
    capacity is no multiple of the environments, the items of a step that is not whole are left out.

    >>> import cereal
    >>> replay = cereal.ReplayTransform(4, batch_size=2, collect=3)
    >>> loader = cereal.DataLoader([cereal.RangeSource(9), replay])
    >>> state, _, _ = loader.scan_epoch(loader.init_state(0), 0, lambda *each: (0, None), steps=2)
    >>> cereal.rl.read_replay(state).tolist()
    [2, 3, 4, 5]
    """
    buffers = find_buffers(state)
    if len(buffers) != 1:
        raise UsageError(
            f"`read_replay`: this state has {len(buffers)} buffers, and it reads one; pass the "
            f"state of a ReplayTransform, or of the part with the buffer that you want."
        )
    ring, layout = buffers[0].ring, buffers[0].layout
    if any_traced(ring):
        raise UsageError("`read_replay` is for states outside of `jit`: how much there is varies.")
    if ring.count.ndim:
        raise UsageError(
            f"`read_replay`: this state has an axis of {ring.count.shape[0]} in front, as "
            f"`jax.vmap` makes it; take one, with `jax.tree.map(lambda x: x[0], state)`."
        )
    steps = int(ring.count) // layout.columns
    items = steps * layout.columns  # of the oldest step, some environments may be overwritten
    begin = int(ring.head) - items if layout.write == "fifo" else 0
    slots = (begin + np.arange(items)) % layout.capacity
    lead = (steps, layout.columns) if layout.columns > 1 else (steps,)
    return jax.tree.map(lambda x: to_host(x)[slots].reshape(*lead, *x.shape[1:]), ring.data)
