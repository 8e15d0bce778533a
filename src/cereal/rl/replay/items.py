"""What the items of a stream are: the axes of a step, taken apart.

collect=4, batches [8], environments [64], elements [3]     a step  [8, 64, 3]
items                                                       4 x 8 x 64 of [3]
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ...base.errors import PipelineError
from ...base.fitting import canonical
from ...base.spec import Spec, format_spec, named_places
from ...host.element_spec import check_arrays
from ...pipeline.positional import Positional
from ...pipeline.source import Source

if TYPE_CHECKING:
    from .replay import ReplayTransform


@dataclasses.dataclass(frozen=True)
class ItemAxes:
    """How many items `collect` steps of a source hold, and what an item is."""

    collect: int
    lanes: tuple[int, ...]
    envs: tuple[int, ...]
    spec: Spec  # of an item
    items_of_epoch: int  # of the source, if none is masked

    @property
    def columns(self) -> int:
        """How many items belong to one moment."""
        return math.prod(self.envs)

    @property
    def added(self) -> int:
        """How many items `collect` steps have."""
        return self.collect * math.prod(self.lanes) * self.columns

    @property
    def in_words(self) -> str:
        parts = [f"{self.collect} step{'s' if self.collect > 1 else ''}"]
        parts += [f"batches of {each}" for each in self.lanes]
        parts += [f"{each} environments" for each in self.envs]
        return " x ".join(parts)

    @property
    def hint(self) -> str:
        """What may be wrong with the shape of an item."""
        return "" if self.envs else "; if its first axis is one of environments, pass `num_envs=`"

    def capacity_for(self, replay: ReplayTransform) -> int:
        """The capacity. In host memory, only whole steps can be written."""
        if replay.capacity is None:
            return self.items_of_epoch
        if replay.storage == "host":
            return -(-replay.capacity // self.added) * self.added
        return replay.capacity

    def flat(self, values: Any, mask: Any, steps: int) -> tuple[Any, jax.Array]:
        """The items of steps [(steps,) lanes, environments, ...], and which are real."""
        axes = (steps, *self.lanes, *self.envs)
        count = math.prod(axes)  # (not -1, which an array without numbers does not know)
        items = jax.tree.map(lambda x, s: x.reshape(count, *s.shape), values, self.spec.tree)
        whole = mask.reshape(*axes[: 1 + len(self.lanes)], -1).all(axis=-1)
        real = jnp.broadcast_to(whole.reshape(*whole.shape, *(1,) * len(self.envs)), axes)
        return items, real.reshape(-1)


def refuse_drawn(source: Any, label: str) -> None:
    """Refuses a source whose steps do not follow each other, for a stage that needs that."""
    if isinstance(source, Source) and source.traits.drawn:
        raise PipelineError(
            f"{label} needs steps in a row, but those before it were shuffled, or drawn from a "
            f"buffer, in any order; put it before the buffer, or pass `n_step=` or `sequence=` to "
            f"the ReplayTransform. (On sequences, call `cereal.rl.reward_to_go`, `n_step_returns` "
            f"or `gae` in your training step.)"
        )


def check_values(source: Source[Any], values: Any, front: int) -> None:
    """Refuses values that are not as their source said; `front` axes of steps are before them.

    Stored under another dtype or shape, their bits would mean something else.
    """
    wanted = Spec(
        jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, canonical(x.dtype)), source.element_spec()
        )
    )
    found = Spec(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[front:], x.dtype), values))
    if found != wanted:
        raise PipelineError(
            f"{source._label} gives {found}, but its `element_spec` says {wanted}; mend one of "
            f"them."
        )


def item_axes(
    source: Source[Any], collect: int, label: str, num_envs: int | None = None
) -> ItemAxes:
    """Takes the axes of a source's steps apart; an error if an array does not have them."""
    traits, spec = source.traits, source.element_spec()
    stated = () if num_envs in (None, 1) else (num_envs,)
    envs = stated if traits.envs is None else traits.envs
    if num_envs is not None and envs != stated:
        raise PipelineError(
            f"{label}: `num_envs={num_envs}`, but {source._label} has environments of shape "
            f"{list(envs)}; leave `num_envs` out."
        )
    inside = traits.mask_shape[len(traits.lanes) :]
    if inside:
        drawn = "leave `sequence=` to the last buffer, or put this stage before it"
        raise PipelineError(
            f"{label}: elements of {source._label} have a mask inside, of shape {list(inside)}, "
            f"which a buffer does not keep; {drawn if traits.drawn else 'pass `pad=False` to it'}."
        )
    fix = "turn it into one in a MapTransform before"
    check_arrays(spec, f"{label} stores arrays", fix)
    axes = (*traits.lanes, *envs)
    if not jax.tree.leaves(spec):
        raise PipelineError(f"{label}: elements hold no arrays, so there is nothing to store.")
    for name, leaf in named_places(spec, "element"):
        if not isinstance(leaf.dtype, np.dtype):
            raise PipelineError(
                f"{label}: {name} is {format_spec(leaf)}; random keys cannot be stored, pass "
                f"`jax.random.key_data(key)` instead."
            )
        if leaf.shape[: len(axes)] != axes:
            raise PipelineError(
                f"{label}: {name} is {format_spec(leaf)}, but all arrays of a step begin with the "
                f"axes {list(axes)}, of batches and environments; give it these axes, or leave it "
                f"out, in a MapTransform before."
            )
    item = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[len(axes) :], x.dtype), spec)
    count = source.steps_per_epoch * math.prod(traits.lanes)
    if isinstance(source, Positional):
        count = min(count, traits.length)  # the last batch may go on with the next epoch
    return ItemAxes(collect, traits.lanes, envs, Spec(item), count * math.prod(envs))
