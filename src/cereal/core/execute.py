"""One step of a pipeline, compiled, whoever asks for it.

Compiled always, also outside of the user's `jit`: eager float arithmetic differs in the last bit.
The pipeline is an argument of the compiled function, never captured by it.

A pipeline over data on the host is two programs with Python between them:

    route: which rows  ->  fetch: Python reads them  ->  read: the compiled stages
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from .callback import raise_kept, raising
from .capture import eager, is_concrete, resolve
from .errors import UsageError
from .host_data import HostData, identity_on_host
from .masks import FullMasks
from .numbers import as_whole
from .placement import check_callbacks, layout, refuse_unmapped
from .placement import place as place
from .spec import Spec
from .traced_stage import current
from .transfer import hand_over, sent, to_device, to_host

if TYPE_CHECKING:
    from .positional import Positional
    from .rows import Rows
    from .source import Source


_LARGE = 1 << 18


@jax.jit
def _next(source: Source[Any], state: Any) -> tuple[Any, Any, Any]:
    return source.step(state)


@partial(jax.jit, static_argnames="n")
def _next_many(source: Source[Any], state: Any, n: int) -> tuple[Any, Any, Any]:
    return source.step_many(state, n)


@partial(jax.jit, static_argnames=("remainder", "steps"))
def _routed(source: Positional[Any], words: Any, remainder: Any, steps: int) -> tuple[Rows, Any]:
    rows, words = source.plan.ending(remainder).rows_for(words, steps)
    return source.route(rows), words


def stripped(source: Source[Any]) -> Any:
    """The source without its data on the host.

    What is compiled needs only its structure: so one program serves all loaders of that structure,
    and no program knows of the data.
    """
    if not source.host:
        return source
    return jax.tree.map(
        lambda x: None if isinstance(x, HostData) else x,
        source,
        is_leaf=lambda x: isinstance(x, HostData),
    )


@partial(jax.jit, static_argnames="masked")
def _read(source: Positional[Any], rows: Rows, masked: bool) -> tuple[Any, Any]:
    values, mask = source.read(rows)
    if masked and mask is None:
        mask = jnp.ones(rows.index.shape, jnp.bool_)
    return values, mask if masked or source.masks else None


def routed_rows(
    source: Positional[Any], words: Any, steps: int, remainder: Any = None
) -> tuple[Rows, Any]:
    """The rows of the next steps as NumPy arrays, routed, and the state's words after them."""
    if source.plan.wide:
        plan = source.plan.ending(remainder)
        rows, words = plan.rows_for(to_host(words), steps)
        return source.route(rows), to_device(words)
    light, words = sent((stripped(source), words))
    rows, words = _routed(light, words, remainder, steps)
    return jax.device_get(rows), words


def read_rows(source: Positional[Any], rows: Rows, *, masked: bool) -> tuple[Any, Any]:
    """Fetches routed rows and runs the compiled stages over them.

    The mask is None if no stage changes masks, unless it is to be `masked` anyhow: then it
    is made by the same program, since an array made by itself costs a GPU half a millisecond.
    """
    return read_fetched(source, source.fetch(rows), masked=masked)


def read_fetched(source: Positional[Any], rows: Rows, *, masked: bool) -> tuple[Any, Any]:
    """The same for rows that have been fetched."""
    return Delivery(source)(rows, masked=masked)


class Delivery:
    """From fetched rows to arrays on the device: the compiled stages, or if there are none, and
    the batch is large, nothing but the transfer.

    A program that only hands its arguments through copies them; of megabytes that takes longer
    than all else.
    """

    def __init__(self, source: Positional[Any], *, ahead: bool = False) -> None:
        self._source, self._stripped = source, stripped(source)
        self._large = Spec(source.element_spec()).nbytes >= _LARGE
        # `ahead`: many batches will come, and their masks may be made together.
        self._full = FullMasks(source.lanes, source.placement) if ahead else None

    def __call__(self, rows: Rows, *, masked: bool) -> tuple[Any, Any]:
        masked = masked or self._source.masks
        found, placement = self._source.passes(rows), self._source.placement
        if found is None:
            made = _read(self._stripped, sent(rows), masked)
            return made if placement is None else place(made, placement)
        mask = _mask(found, rows)
        # Under a mesh the batch goes where only a call with both of them would put the mask.
        full = self._full if masked and jax.sharding.get_abstract_mesh().empty else None
        if full is not None and (mask is None or mask.all()):
            return self._moved((found.values, None))[0], full.take()
        if masked and mask is None:
            mask = np.ones(rows.index.shape, np.bool_)
        return self._moved((found.values, mask if masked else None))

    def _moved(self, made: tuple[Any, Any]) -> tuple[Any, Any]:
        placement = self._source.placement
        if self._large:
            return jax.device_put(made, layout(made, placement))
        made = hand_over(made)
        return made if placement is None else place(made, placement)


def _mask(found: Any, rows: Rows) -> Any:
    if found.mask is None or rows.valid is None:
        return rows.valid if found.mask is None else found.mask
    return found.mask & rows.valid


def _next_on_host(source: Positional[Any], state: Any) -> tuple[Any, Any, Any]:
    if source.stream is not None:
        source.stream.adopt(state.bookmark)
    rows, words = source.next_rows(state.words)
    values, mask = read_fetched(source, rows, masked=True)
    return values, mask, source.moved(state, words)


def _many_on_host(source: Positional[Any], state: Any, n: int) -> tuple[Any, Any, Any]:
    found = []
    for _ in range(n):
        values, mask, state = _next_on_host(source, state)
        found.append((values, mask))
    return *jax.tree.map(lambda *each: jnp.stack(each), *found), state


def many_steps(source: Source[Any], state: Any, n: int) -> tuple[Any, Any, Any]:
    """n steps, one after another, as one scan; traced by whoever calls."""

    def one(state: Any, _: None) -> tuple[Any, tuple[Any, Any]]:
        value, mask, state = source.step(state)
        return state, (value, mask)

    state, (values, mask) = jax.lax.scan(one, state, length=n)
    return values, mask, state


def run_many(source: Source[Any], state: Any, n: int) -> tuple[Any, Any, Any]:
    """`source.step_many(state, n)`, compiled, with what belongs around it outside of `jit`."""
    number = as_whole(n)
    if number is None or number < 1:
        raise UsageError(f"`next_many(state, n)` needs a positive integer n, got {n!r}.")
    on_host, in_program = partial(_many_on_host, n=number), partial(_next_many, n=number)
    return _run(source, state, on_host, in_program, lead=1)


def run_next(source: Source[Any], state: Any) -> tuple[Any, Any, Any]:
    """`source.step(state)`, compiled, with what belongs around it outside of `jit`."""
    return _run(source, state, _next_on_host, _next)


def _run(
    source: Source[Any], state: Any, on_host: Any, in_program: Any, lead: int = 0
) -> tuple[Any, Any, Any]:
    source = resolve(current(source, state, thorough=False), state)
    if source.host:
        raise_kept((identity_on_host(source),))
    step: Any = on_host if source.host and eager() else in_program
    if not source.callbacks:
        try:
            values, mask, state = step(source, state)
        except ValueError as error:
            refuse_unmapped(error)
            raise
    else:
        with raising(source.callbacks):
            values, mask, state = step(source, state)
            if is_concrete(mask):
                # The user's function has run, or has failed, when the batch is handed out.
                jax.block_until_ready((values, mask, state))
    if source.placement is not None:
        if not is_concrete(mask):
            check_callbacks(source)
        values, mask = place((values, mask), source.placement, lead)
    return values, mask, state
