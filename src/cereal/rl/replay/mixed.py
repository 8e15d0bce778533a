"""Batches of several pipelines, joined into one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ...base.errors import PipelineError, StateError
from ...base.pytree import pytree_dataclass, set_fields, static_field
from ...base.spec import Spec
from ...device.transfer import sent
from ...loaders.compose import compose
from ...order.threefry import PART, key_for
from ...pipeline.source import Mask, Source
from ...pipeline.state import key_words
from ...pipeline.stream_stages import CompiledStream
from ...pipeline.traits import Traits
from .state import MixedState

_OWNER = "MixedBatchesSource"


@pytree_dataclass
class MixedBatchesSource(CompiledStream[Any]):
    """Batches of several buffers, or of other pipelines, joined: in proportion to their sizes.

        online    [GymnaxSource(...), ReplayTransform(..., batch_size=192)]    192 items
        demos     [demonstrations, BatchTransform(64)]                          64 items
        MixedBatchesSource([online, demos])                             a batch of 256, 3 : 1

    Each batch has the same share of each part, and its items in the order of the parts. Elements
    must have the same keys, shapes and dtypes. `set_priorities` finds the buffer of an item by its
    place in the batch: pass the whole `batch["index"]`, in the batch's order. A `weight` is
    relative to the largest of its own part.

    >>> import cereal, jax
    >>> old = [cereal.RangeSource(100), cereal.BatchTransform(3)]
    >>> new = [cereal.RangeSource(1000, 1100), cereal.ReplayTransform(50, batch_size=2, collect=2)]
    >>> loader = cereal.DataLoader([cereal.rl.MixedBatchesSource([old, new])])
    >>> batch, state, mask = loader.next_batch(loader.init_state(jax.random.key(0)))
    >>> (batch < 1000).tolist()
    [True, True, True, False, False]
    """

    parts: tuple[Any, ...]
    spec: Spec = static_field()

    def __init__(self, parts: Sequence[Any]) -> None:
        if not isinstance(parts, Sequence) or isinstance(parts, str) or not parts:
            raise PipelineError(
                f"{_OWNER} needs a list of pipelines, got {parts!r:.60}; write "
                f"`{_OWNER}([online, demos])`, each a list of a source and its stages."
            )
        sources = tuple(compose(part) for part in parts)
        for number, source in enumerate(sources):
            _check_part(source, sources[0], number)
        size = sum(source.traits.lanes[0] for source in sources)
        whole = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype), sources[0].element_spec()
        )
        set_fields(self, parts=sources, spec=Spec(whole))

    @property
    def _label(self) -> str:
        return f"{_OWNER}({' + '.join(map(str, self.sizes))})"

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many items of a batch come from each part."""
        return tuple(part.traits.lanes[0] for part in self.parts)

    def element_spec(self) -> Any:
        return self.spec.tree

    @property
    def steps_per_epoch(self) -> int:  # type: ignore[override]
        return max(part.steps_per_epoch for part in self.parts)

    def _describe(self) -> Traits:
        traits = [part.traits for part in self.parts]
        return Traits(
            lanes=(sum(self.sizes), *traits[0].lanes[1:]),
            mask_shape=(sum(self.sizes), *traits[0].mask_shape[1:]),
            callbacks=tuple(each for part in traits for each in part.callbacks),
            masks=any(part.masks or part.in_place or part.remainder == "pad" for part in traits),
            random=True if any(part.random for part in traits) else None,
            random_stages=sum(part.random_stages for part in traits),
            drawn=True,
            in_place=any(part.in_place for part in traits),
            pinned=any(part.pinned for part in traits),
        )

    def close(self) -> None:
        for part in self.parts:
            part.close()

    def init_state(self, key: Any) -> MixedState:
        keys = _keys_of(sent(key_words(key)), len(self.parts))
        states = (part.init_state(own) for part, own in zip(self.parts, keys, strict=True))
        return MixedState(tuple(states), self.sizes)

    def _step(self, state: MixedState) -> tuple[Any, Mask, MixedState]:
        if not isinstance(state, MixedState) or state.sizes != self.sizes:
            found = state.sizes if isinstance(state, MixedState) else type(state).__name__
            raise StateError(
                f"{self._label}: the state is of another mixture, {found}; this one joins "
                f"{self.sizes} items. Make a state with this loader's `init_state(key)`."
            )
        steps = [part._step(own) for part, own in zip(self.parts, state.parts, strict=True)]
        values = jax.tree.map(lambda *each: jnp.concatenate(each), *(step[0] for step in steps))
        mask = jnp.concatenate([step[1] for step in steps])
        return values, mask, MixedState(tuple(step[2] for step in steps), self.sizes)


@partial(jax.jit, static_argnums=1)
def _keys_of(words: jax.Array, count: int) -> list[jax.Array]:
    own = [jnp.stack(key_for((words[0], words[1]), number, PART)) for number in range(count)]
    return [jax.random.wrap_key_data(each, impl="threefry2x32") for each in own]


def _check_part(source: Source[Any], first: Source[Any], number: int) -> None:
    traits = source.traits
    if not traits.lanes:
        raise PipelineError(
            f"{_OWNER}: part {number}, {source._label}, gives single elements; end it with a "
            f"BatchTransform or a ReplayTransform."
        )
    if traits.placement is not None:
        raise PipelineError(
            f"{_OWNER}: part {number}, {source._label}, is put on devices of its own, and a batch "
            f"goes to one place; write one DevicePutTransform, after the mixture."
        )
    if traits.host:
        raise PipelineError(
            f"{_OWNER}: part {number}, {source._label}, is data that Python reads, and the batches "
            f"of a mixture are made by a program; store it in memory, with `ArraySampleSource`, or "
            f"in a buffer."
        )
    one = Spec(jax.tree.map(lambda x: x.shape and _without_first(x), source.element_spec()))
    other = Spec(jax.tree.map(lambda x: x.shape and _without_first(x), first.element_spec()))
    inside = [list(each.mask_shape[1:]) for each in (traits, first.traits)]
    if one == other and inside[0] != inside[1]:
        raise PipelineError(
            f"{_OWNER}: masks of items of part {number}, {source._label}, have the shape "
            f"{inside[0]}, but those of part 0 {inside[1]}: only some of the parts have masks "
            f"inside of items. Make all of them sequences, or windows with `pad=True`."
        )
    if one != other:
        raise PipelineError(
            f"{_OWNER}: items of part {number}, {source._label}, are {one}, but those of part 0 "
            f"are {other}; make them alike in a MapTransform."
        )


def _without_first(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)
