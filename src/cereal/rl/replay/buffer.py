"""`BufferTransform`: a stream of elements goes through a buffer."""

from __future__ import annotations

from typing import Any, Literal, TypeVar, get_args

import jax
import jax.numpy as jnp

from ...base.errors import PipelineError
from ...base.numbers import as_count
from ...base.pytree import pytree_dataclass, set_fields, static_field
from ...base.spec import Spec
from ...order.words64 import plus
from ...pipeline.source import Mask, Source, check_source
from ...pipeline.stage import Transform
from ...pipeline.stream_stages import StreamWrapper
from ...pipeline.traits import Traits
from .items import check_values, item_axes
from .state import Write
from .storage.ring import MOST_ITEMS, Ring, below, empty_ring, write_reservoir, write_ring, zeros_of
from .storing import DRAW, WRITE, buffer_key, random_words

T_co = TypeVar("T_co", covariant=True)
Mode = Literal["sequential", "shuffled"]
_OWNER = "BufferTransform"


@pytree_dataclass
class BufferTransform(Transform[Any, Any]):
    """Stores each element that comes, and gives elements that are stored.

        source  ->  [ a buffer of `capacity` elements ]  ->  `sample_size` of them

    Every step takes one element from the source. Until `prefill` elements are stored, the element
    is handed on as it is. (With `sample_size` above 1, the other places of the sample are masked.)
    Then the samples come from the buffer:

        mode="sequential"       the elements of the buffer in order, again and again
        mode="shuffled"         any elements, each with the same probability
        write_mode="fifo"       a new element replaces the oldest
        write_mode="reservoir"  of all elements so far, each is kept with the same probability

    With `sample_size=1` a step is one element; otherwise a batch `[sample_size, ...]`. To train on
    batches of stored steps, with priorities or sequences, use `ReplayTransform`.

    >>> import cereal, jax
    >>> buffer = cereal.BufferTransform(4, prefill=2, sample_size=2)
    >>> loader = cereal.DataLoader([cereal.RangeSource(5), buffer])
    >>> state = loader.init_state(jax.random.key(0))
    >>> for batch, mask in loader.iterate(state, steps=4):
    ...     print(batch.tolist(), mask.tolist())
    [0, 0] [True, False]
    [1, 1] [True, False]
    [0, 1] [True, True]
    [2, 3] [True, True]
    """

    capacity: int = static_field()
    prefill: int = static_field()
    sample_size: int = static_field(default=1)
    mode: Mode = static_field(default="sequential")
    write_mode: Write = static_field(default="fifo")

    def __init__(
        self,
        capacity: int,
        prefill: int,
        sample_size: int = 1,
        mode: Mode = "sequential",
        write_mode: Write = "fifo",
    ) -> None:
        capacity = as_count(capacity, "capacity", _OWNER, most=MOST_ITEMS)
        prefill = as_count(
            prefill, "prefill", _OWNER, most=capacity, hint="no more than `capacity` are stored"
        )
        size = as_count(
            sample_size,
            "sample_size",
            _OWNER,
            most=prefill,
            hint="`prefill` must be at least as large, or a sample had elements several times",
        )
        for name, value, known in (
            ("mode", mode, get_args(Mode)),
            ("write_mode", write_mode, get_args(Write)),
        ):
            if value not in known:
                words = " or ".join(f'"{each}"' for each in known)
                raise PipelineError(f"{_OWNER}: `{name}` must be {words}, got {value!r:.40}.")
        set_fields(
            self,
            capacity=capacity,
            prefill=prefill,
            sample_size=size,
            mode=mode,
            write_mode=write_mode,
        )

    @property
    def _label(self) -> str:
        return (
            f"{_OWNER}({self.capacity}, prefill={self.prefill}, sample_size={self.sample_size}, "
            f'mode="{self.mode}", write_mode="{self.write_mode}")'
        )

    def __call__(self, source: Source[Any]) -> Source[Any]:
        check_source(source, self._label)
        item_axes(source, 1, self._label)  # an item is a whole step, but must be arrays
        traits = source.traits
        # (A batch of a ReplayTransform is masked as a whole; several of them, in part.)
        joined = traits.in_place and len(traits.lanes) > 1
        if traits.lanes and (traits.masks or traits.remainder == "pad" or joined):
            raise PipelineError(
                f"{self._label} stores whole batches, and those of {source._label} may be partly "
                f"masked: their other elements would be lost. Put it before the BatchTransform."
            )
        spec = Spec(source.element_spec())
        return BufferedStream(
            source, self, spec if self.sample_size == 1 else spec.batched(self.sample_size)
        )


@pytree_dataclass
class BufferState:
    """The state of a `BufferTransform`: what is stored, and what it reads next."""

    source: Any
    ring: Ring
    read: jax.Array  # the slot that is next in order
    key: jax.Array
    batches: jax.Array  # how many samples were made: two words


@pytree_dataclass
class BufferedStream(StreamWrapper[T_co]):
    """Each step stores an element of the source, and gives some that are stored."""

    source: Any
    buffer: BufferTransform
    spec: Spec = static_field()

    @property
    def _label(self) -> str:
        return self.buffer._label

    def _describe(self) -> Traits:
        before, size = self.source.traits, self.buffer.sample_size
        lead = () if size == 1 else (size,)
        random = self.buffer.mode == "shuffled" or self.buffer.write_mode == "reservoir"
        return Traits(
            lanes=(*lead, *before.lanes),
            mask_shape=(*lead, *before.mask_shape),
            callbacks=before.callbacks,
            placement=before.placement,
            envs=before.envs,
            masks=True,
            random=True if random else before.random,
            random_stages=before.random_stages + 1,
            drawn=True,  # also in order: from the newest slot it goes on with the oldest
            in_place=True,
            pinned=before.pinned,
        )

    def init_state(self, key: Any) -> BufferState:
        ring = empty_ring(Spec(self.source.element_spec()), self.buffer.capacity)
        own, zero = buffer_key(key, self.source), zeros_of(jnp.uint32, 2)
        return BufferState(self.source.init_state(key), ring, zeros_of(jnp.int32), own, zero)

    def _step(self, state: BufferState) -> tuple[T_co, Mask, BufferState]:
        value, mask, below_state = self.source._step(state.source)
        check_values(self.source, value, 0)
        real = mask.all()
        one = jax.tree.map(lambda x: x[None], value)
        if self.buffer.write_mode == "fifo":
            ring, _ = write_ring(state.ring, one, real[None])
        else:
            ring, _ = write_reservoir(
                state.ring,
                one,
                real[None],
                random_words(state.key, state.ring.written, WRITE, 4, 1),
            )
        slots, read = self._slots(state, ring)
        ready = state.ring.count >= self.buffer.prefill  # before this element
        first = jnp.arange(self.buffer.sample_size) == 0
        stored = ring.take(slots)
        values = jax.tree.map(lambda x, new: jnp.where(ready, x, new[None]), stored, value)
        passed = (first & real).reshape(-1, *(1,) * mask.ndim) & mask[None]
        full = jnp.where(ready, jnp.ones_like(passed), passed)
        if self.buffer.sample_size == 1:
            values, full = jax.tree.map(lambda x: x[0], values), full[0]
        batches = jnp.stack(plus(state.batches[0], state.batches[1], jnp.uint32(1)))
        return values, full, BufferState(below_state, ring, read, state.key, batches)

    def _slots(self, state: BufferState, ring: Ring) -> tuple[jax.Array, jax.Array]:
        """The slots of this sample, and the slot at which the next one begins, in order."""
        size, count = self.buffer.sample_size, jnp.maximum(ring.count, 1)
        if self.buffer.mode == "shuffled":
            words = random_words(state.key, state.batches, DRAW, 2, size)
            return below(words, count).astype(jnp.int32), state.read
        slots = (state.read + jnp.arange(size, dtype=jnp.int32)) % count
        read = (state.read + size) % count
        return slots, jnp.where(state.ring.count >= self.buffer.prefill, read, state.read)
