"""Runs one step of a pipeline.

A step is always compiled, also outside of the user's `jit`, because eager float arithmetic differs
in the last bit. The pipeline is an argument of the compiled function, which never closes over it.

A pipeline over data on the host is two programs, and Python runs between them:

    route: which rows  ->  fetch: Python reads them  ->  read: the compiled stages
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ..base.capture import eager, is_concrete, resolve
from ..base.errors import UsageError
from ..base.numbers import as_count
from ..base.spec import Spec
from ..device.masks import FullMasks
from ..device.placement import (
    check_callbacks,
    is_spread,
    joining,
    layout,
    place_step,
    refuse_unmapped,
)
from ..device.placement import place as place
from ..device.transfer import hand_over, sent, to_device, to_host
from ..functions.packed import packed
from ..functions.traced_stage import current
from ..host.callbacks import raise_kept, raising
from ..host.host_data import HostData, identity_on_host
from ..order.rows import routed_at
from ..reading.read_context import SKIPPED
from .read_step import read_step
from .state import PipelineState

if TYPE_CHECKING:
    from ..order.rows import Rows
    from .positional import Positional
    from .source import Source


_LARGE, _LARGE_ON_CPU = 1 << 18, 1 << 20  # bytes, from which on `device_put` is the quicker way


def _step_of(source: Source[Any], state: Any, n: int | None) -> tuple[Any, Any, Any]:
    values, mask, state = source._step(state) if n is None else source._step_many(state, n)
    placement = source.traits.placement
    if is_spread(placement):  # all at once, since a process cannot move arrays of other processes
        values, mask = place_step(values, mask, placement, 0 if n is None else 1)
        if isinstance(state, PipelineState):  # every process reads the words
            state = state.replaced(place(state.words, placement.everywhere))
    return values, mask, state


_in_program = jax.jit(_step_of, static_argnames="n")
run_in_place = jax.jit(
    lambda source, state: packed(_step_of(source, state, None)), donate_argnums=1
)
"""A step of a stream, compiled and packed; it overwrites the state that it gets."""


@partial(jax.jit, static_argnames=("remainder", "steps"))
def _routed(
    source: Positional[Any], words: Any, remainder: Any, steps: int, lanes: Any = None
) -> tuple[Rows, Any]:
    rows, words = source._plan.ending(remainder).rows_for(words, steps, lanes)
    return source._route(rows), words


def stripped(source: Source[Any]) -> Any:
    """The source without its data on the host.

    Compiled code needs only the structure. So one program serves all loaders of that structure, and
    no program holds the data.
    """
    if not source.traits.host:
        return source
    return jax.tree.map(
        lambda x: None if isinstance(x, HostData) else x,
        source,
        is_leaf=lambda x: isinstance(x, HostData),
    )


@jax.jit
def _read_spread(source: Positional[Any], rows: Rows) -> tuple[Any, Any]:
    return read_step(source, rows)


@partial(jax.jit, static_argnames="masked")
def _read(source: Positional[Any], rows: Rows, masked: bool) -> tuple[Any, Any]:
    values, mask = source._read(rows)
    if masked and mask is None:
        mask = jnp.ones(rows.index.shape, jnp.bool_)
    return values, mask if masked else None


def routed_rows(
    source: Positional[Any], words: Any, steps: int, remainder: Any = None, lanes: Any = None
) -> tuple[Rows, Any]:
    """The rows of the next steps as NumPy arrays, routed, and the state's words after them.

    `lanes` are the numbers of the lanes that are wanted; None: all.
    """
    rows, words = rows_begun(source, words, steps, remainder, lanes)
    return jax.device_get(rows), words


def rows_begun(
    source: Positional[Any], words: Any, steps: int, remainder: Any = None, lanes: Any = None
) -> tuple[Rows, Any]:
    """The same as JAX arrays, which may still be computed: `jax.device_get` waits for them."""
    if source._plan.wide or (lanes is not None and not lanes.size):
        plan = source._plan.ending(remainder)
        rows, words = plan.rows_for(to_host(words), steps, lanes)
        return source._route(rows), to_device(words)
    light, words, lanes = sent((stripped(source), words, lanes))
    return _routed(light, words, remainder, steps, lanes)


def read_rows(source: Positional[Any], rows: Rows, *, masked: bool) -> tuple[Any, Any]:
    """Fetches routed rows and runs the compiled stages over them.

    The mask is None if no stage changes masks, unless `masked` is True. Then the same program makes
    the mask, since to make it in another call costs half a millisecond on a GPU.
    """
    return read_fetched(source, source._fetch(rows), masked=masked)


def read_fetched(source: Positional[Any], rows: Rows, *, masked: bool) -> tuple[Any, Any]:
    """The same, for rows that have been fetched already."""
    return Delivery(source)(rows, masked=masked)


class Delivery:
    """Turns fetched rows into arrays on the device. Runs the compiled stages; if there are none, it
    only moves the batch.

    A program that returns its arguments unchanged copies them. For megabytes, that takes longer
    than anything else, so a large batch is moved by `device_put`.
    """

    def __init__(self, source: Positional[Any], *, ahead: bool = False) -> None:
        self._source, self._stripped = source, stripped(source)
        large = _LARGE_ON_CPU if jax.default_backend() == "cpu" else _LARGE
        self._large = Spec(source.element_spec()).nbytes >= large
        placement, self._full = source.traits.placement, None
        if is_spread(placement):
            self._stripped = placement.replicated(self._stripped)
            # (If processes made masks by programs, each would do so in other steps.)
            if ahead and placement.is_local and placement.padded == placement.lanes:
                self._full = FullMasks(placement.padded, placement.mask, spread=True)
        elif ahead:  # many batches will come, and their masks may be made together
            self._full = FullMasks(source.traits.lanes, placement)

    def __call__(self, rows: Rows, *, masked: bool) -> tuple[Any, Any]:
        if self._source._share is not None:
            return self._spread(self._source._share, rows)
        masked = masked or self._source.traits.masks
        found, placement = self._source._untouched(rows), self._source.traits.placement
        if found is None:
            made = _read(self._stripped, sent(rows), masked)
            return made if placement is None else place(made, placement)
        mask = _mask(found, rows)
        # Under a mesh, only a call that moves both puts the mask where it puts the batch.
        full = self._full if masked and jax.sharding.get_abstract_mesh().empty else None
        if full is not None and (mask is None or mask.all()):
            return self._moved((found.values, None))[0], full.take()
        if masked and mask is None:
            mask = np.ones(rows.index.shape, np.bool_)
        return self._moved((found.values, mask if masked else None))

    def _spread(self, share: Any, rows: Rows) -> tuple[Any, Any]:
        """Global arrays, of which this process has read its part."""
        found = self._source._untouched(rows)
        if found is None:
            return _read_spread(self._stripped, share.rows(rows, 0))
        leaves, structure = jax.tree.flatten(found.values)
        values = jax.tree.unflatten(structure, share.batch(leaves, kept=self._source._kept))
        mask = _mask(found, rows)
        # Under a mesh, a program runs on its devices, which may be others.
        full = self._full if jax.sharding.get_abstract_mesh().empty else None
        if full is not None and (mask is None or mask.all()):
            return values, full.take()
        return values, share.mask(np.ones(rows.index.shape, np.bool_) if mask is None else mask)

    def _moved(self, made: tuple[Any, Any]) -> tuple[Any, Any]:
        placement = self._source.traits.placement
        if self._large:
            return jax.device_put(made, layout(made, placement))
        made = hand_over(made)
        return made if placement is None else place(made, placement)


def _mask(found: Any, rows: Rows) -> Any:
    if found.mask is None or rows.valid is None:
        return rows.valid if found.mask is None else found.mask
    return found.mask & rows.valid


def _on_host(source: Any, state: Any, n: int | None) -> tuple[Any, Any, Any]:
    """A step of a pipeline that Python reads, or n stacked steps; outside of programs."""
    if n is not None:
        found = []
        for _ in range(n):
            values, mask, state = _on_host(source, state, None)
            found.append((values, mask))
        return *jax.tree.map(lambda *each: jnp.stack(each), *found), state
    if source._iterators is not None:
        source._iterators.adopt(state.bookmark)
    rows, words = source._next_rows(state.words)
    values, mask = read_fetched(source, rows, masked=True)
    return values, mask, moved(source, state, words)


def moved(source: Positional[Any], state: PipelineState, words: Any) -> PipelineState:
    """The state with other words, outside of programs. If data only iterates, with a bookmark."""
    iterators = source._iterators
    if iterators is None:
        return state.replaced(words)
    return PipelineState(words, state.fingerprint, iterators.bookmark_for(words))


def many_steps(source: Source[Any], state: Any, n: int) -> tuple[Any, Any, Any]:
    """n steps, one after another, as one scan; called while tracing."""

    def one(state: Any, _: None) -> tuple[Any, tuple[Any, Any]]:
        value, mask, state = source._step(state)
        return state, (value, mask)

    state, (values, mask) = jax.lax.scan(one, state, length=n)
    return values, mask, state


def run_many(source: Source[Any], state: Any, n: int) -> tuple[Any, Any, Any]:
    """n stacked steps of a pipeline, made by `run`."""
    n = as_count(n, "n", "next_many", error=UsageError)
    return run(source, state, n)


def run(source: Source[Any], state: Any, n: int | None = None) -> tuple[Any, Any, Any]:
    """A step of a pipeline, or n stacked steps; compiled.

    Outside of `jit`, this also raises the errors of callbacks and moves batches to their devices.
    """
    source = resolve(current(source, state, thorough=False), state)
    traits = source.traits
    if traits.host:
        raise_kept((identity_on_host(source),))
    if is_spread(traits.placement):
        state = joining(state, traits.placement)
    step: Any = _on_host if traits.host and eager() else _in_program
    if not traits.callbacks:
        try:
            values, mask, state = step(source, state, n)
        except ValueError as error:
            refuse_unmapped(error)
            raise
    else:
        with raising(traits.callbacks):
            values, mask, state = step(source, state, n)
            if is_concrete(mask):
                # So that the user's function has run, or has failed, when this returns the batch.
                jax.block_until_ready((values, mask, state))
    if traits.placement is not None:
        if not is_concrete(mask):
            check_callbacks(traits)
        if not is_spread(traits.placement):
            values, mask = place((values, mask), traits.placement, 0 if n is None else 1)
    return values, mask, state


def elements_at(source: Any, indices: np.ndarray) -> list[Any]:
    """The elements at these indices; compiled code is run only if the source needs it."""
    if source.traits.by_python:
        source = source._by_numpy
        taken = source._produce(routed_at(source, indices))
        found = [taken.element(lane) for lane in range(len(indices))]
        left_out = [element is SKIPPED for element in found]
    else:
        made = read_rows(source, routed_at(source, indices), masked=True)
        values, mask = jax.tree.map(lambda x: np.array(x, copy=True), made)  # torch writes into it
        found = [jax.tree.map(lambda x, at=at: x[at], values) for at in range(len(indices))]
        left_out = [not each.all() for each in mask]
    if any(left_out) and source.traits.mask_shape:
        raise UsageError(
            f"{source._label}: element {indices[left_out.index(True)]} has padding, and a dataset "
            f"of another library has no masks; pass `pad=False` to the source."
        )
    if any(left_out):
        raise UsageError(
            f"{source._label}: element {indices[left_out.index(True)]} is filtered out, and a "
            f"dataset has an element at every index; choose them with `select(source, fn)`."
        )
    return found


def refuse_as_dataset(source: Any) -> None:
    """Refuses a source whose elements depend on more than an index."""
    traits, label = source.traits, source._label
    if traits.random_stages or traits.keyed:
        raise UsageError(
            f"{label} is random: its elements depend on a key and an epoch, which `source[i]` does "
            f"not have; read them by a loader, or take from the source below it."
        )
    if traits.varies or not traits.fixed:
        raise UsageError(
            f"{label} has other elements in every epoch, and `source[i]` knows no epoch; read them "
            f"by a loader."
        )
    if source._iterators is not None:
        raise UsageError(
            f"{label} can only be iterated, in its own order, and not read by index; read it by a "
            f"loader."
        )
