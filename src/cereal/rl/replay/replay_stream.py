"""A stream that stores the steps of a source, and gives batches of what is stored."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ...base.capture import eager, is_concrete
from ...base.errors import PipelineError, StateError
from ...base.pytree import pytree_dataclass, set_copy, static_field
from ...base.spec import Spec
from ...order.words64 import plus
from ...pipeline.execute import run_many
from ...pipeline.positional import Positional
from ...pipeline.source import Mask
from ...pipeline.stream_stages import StreamWrapper
from ...pipeline.traits import Traits
from .drawing import (
    Drawn,
    draw_prioritized,
    draw_uniform,
    next_in_queue,
    no_item,
    number_of,
    windows,
    with_n_steps,
)
from .items import ItemAxes, check_values
from .state import Layout, ReplayState, empty_replay, refuse_many
from .storing import buffer_key, store

if TYPE_CHECKING:
    from .replay import ReplayTransform

_DRAWS = {"uniform": draw_uniform, "prioritized": draw_prioritized, "queue": next_in_queue}


@pytree_dataclass
class ReplayStream(StreamWrapper[Any]):
    """Each step collects steps of the source, stores them, and draws a batch."""

    source: Any
    replay: ReplayTransform
    layout: Layout = static_field()
    axes: ItemAxes = static_field()

    @property
    def _label(self) -> str:
        return self.replay._label

    def _describe(self) -> Traits:
        traits, size = self.source.traits, self.replay.batch_size
        finer = (self.replay.sequence,) if self.replay.sequence else ()
        return Traits(
            lanes=(size,),
            mask_shape=(size, *finer),
            callbacks=traits.callbacks if self.replay.collect else (),
            placement=traits.placement,
            random=True,
            random_stages=traits.random_stages + 1,
            drawn=True,
            in_place=True,
            pinned=traits.pinned or self.replay.storage == "host",
        )

    @property
    def steps_per_epoch(self) -> int:  # type: ignore[override]
        replay = self.replay
        if not replay.collect:
            items = min(self.layout.capacity, self.axes.items_of_epoch)
            return -(-items // replay.batch_size)
        return -(-self.source.steps_per_epoch // replay.collect)

    @cached_property
    def spec(self) -> Spec:  # type: ignore[override]
        """The spec of a batch."""

        def drawn(key: Any) -> Any:
            return self._drawn(self._empty(None, key))[0]

        return Spec(jax.eval_shape(drawn, jax.ShapeDtypeStruct((2,), jnp.uint32)))

    # States

    def init_state(self, key: Any) -> ReplayState:
        own = buffer_key(key, self.source)
        below = self.source.init_state(key)
        if self.replay.collect:
            return self._empty(below, own)
        state = _filled(self, self._empty(None, own), below)
        if not is_concrete(state.ring.count):
            return state
        stored = int(state.counted("written")[1])
        if self.layout.write == "fifo" and stored > self.layout.capacity:
            raise PipelineError(
                f"{self._label}: {stored} items of {self.source._label} are real, and only the "
                f"last {self.layout.capacity} would be kept; leave `capacity` out, or raise it."
            )
        if not self.replay.waits and int(state.ring.count) < self.replay.prefill:
            raise PipelineError(
                f"{self._label}: only {int(state.ring.count)} items of {self.source._label} are "
                f"real, fewer than `prefill={self.replay.prefill}`, so no batch would ever be "
                f"real; lower `prefill` and `batch_size`."
            )
        return state

    def _empty(self, below: Any, key: Any) -> ReplayState:
        on_host = self.replay.storage == "host"
        return empty_replay(below, self.axes.spec, self.layout, key, on_host=on_host)

    # Steps

    def _step(self, state: ReplayState) -> tuple[Any, Mask, Any]:
        if not isinstance(state, ReplayState) or state.layout != self.layout:
            theirs = state.layout if isinstance(state, ReplayState) else None
            found = f"({theirs.capacity}, {theirs.in_words})" if theirs else type(state).__name__
            raise StateError(
                f"{self._label}: the state is of another buffer, {found}; this one is "
                f"({self.layout.capacity}, {self.layout.in_words}). Make a state with this "
                f"loader's `init_state(key)`."
            )
        refuse_many(state, self._label, "jax.vmap(loader.next_batch)(state)")
        if self.replay.collect:
            state = self._collected(state)
        return self._drawn(state)

    def _collected(self, state: ReplayState) -> ReplayState:
        steps = self.replay.collect
        if steps == 1:
            values, mask, below = self.source._step(state.source)
        else:
            values, mask, below = self.source._step_many(state.source, steps)
        check_values(self.source, values, int(steps > 1))
        return store(set_copy(state, source=below), *self.axes.flat(values, mask, steps))

    def _drawn(self, state: ReplayState) -> tuple[Any, Mask, ReplayState]:
        replay, layout, ring = self.replay, self.layout, state.ring
        drawn = _DRAWS[layout.sample](state, replay.batch_size)
        ready = drawn.ready & (ring.count >= replay.prefill)
        mask = jnp.broadcast_to(ready, (replay.batch_size,))
        columns = layout.columns
        if replay.sequence:
            found = windows(ring, drawn.slots, replay.sequence, columns, replay.episode_end)
            values, mask = found[0], found[1] & ready
        elif replay.n_step:
            values = with_n_steps(ring, drawn.slots, replay.n_step, columns, replay.gamma)
        else:
            values = ring.take(drawn.slots)
        if layout.sample == "prioritized":
            values = values if isinstance(values, dict) else {"element": values}
            values = {**values, **self._weighted(state, drawn, ready)}
        batches = jnp.stack(plus(state.batches[0], state.batches[1], jnp.uint32(1)))
        state = state.but(batches=batches)
        if layout.sample == "queue":
            taken = jnp.where(ready, jnp.int32(replay.batch_size), jnp.int32(0))
            state = state.but(waiting=state.waiting - taken)
        return values, mask, state

    def _weighted(self, state: ReplayState, drawn: Drawn, ready: Any) -> dict[str, Any]:
        """The numbers of the items, their probabilities, and their importance weights.

        The weight is (n * probability)**-beta, divided by the largest of the batch. That division
        leaves nothing of n and of the sum of priorities.
        """
        beta = self.replay.weight_exponent(state.batches)
        # (Of square roots: a quotient of priorities may be too small for a float32.)
        root = jnp.sqrt(drawn.priority)
        weight = (jnp.min(root) / root) ** (2 * beta)
        return {
            "index": jnp.where(ready, number_of(state.ring, drawn.slots), no_item(state.ring)),
            "weight": jnp.where(ready, weight, np.float32(0)),
            "probability": jnp.where(ready, drawn.priority / drawn.total, np.float32(0)),
        }


def _filled(stream: ReplayStream, state: ReplayState, below: Any) -> ReplayState:
    """The state with one epoch of the data below."""
    source: Positional[Any] = stream.source
    steps = source.steps_per_epoch
    read = run_many if eager() else type(source)._step_many
    values, mask, _ = read(source, below, steps)
    check_values(source, values, 1)
    items, real = stream.axes.flat(values, mask, steps)
    # The last batch may go on with the next epoch, whose elements are there already.
    return store_all(state, items, real & (np.arange(len(real)) < stream.axes.items_of_epoch))


def store_all(state: ReplayState, items: Any, real: Any) -> ReplayState:
    """Stores items, of which there may be more than the buffer has room for."""
    part, n = _most_at_once(state.layout), real.shape[0]
    whole = n // part * part

    def stored(state: ReplayState, both: tuple[Any, Any]) -> tuple[ReplayState, None]:
        return store(state, *both), None

    if whole:
        lead = (whole // part, part)
        parts = jax.tree.map(lambda x: x[:whole].reshape(*lead, *x.shape[1:]), (items, real))
        state = jax.lax.scan(stored, state, parts)[0]
    if whole == n:
        return state
    return store(state, jax.tree.map(lambda x: x[whole:], items), real[whole:])


def _most_at_once(layout: Layout) -> int:
    """How many items may be stored at once: whole steps, which do not overwrite each other."""
    if layout.block > 1:
        return layout.block
    most = layout.capacity - layout.behind
    return most // layout.columns * layout.columns or most
