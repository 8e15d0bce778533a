"""Stages at their places: the list of a pipeline has these.

    CompiledStage   changes values and masks, in programs          read(values, mask, rows)
    HostPlace       does so in Python, on workers                  (in `host_loop`)
    Batching        elements become batches: rows get one more axis

Each knows the shape of a step at its place (`lanes`), how many random stages are before it, and the
spec of its result.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ..base.pytree import pytree_dataclass, static_field
from ..base.spec import Spec
from ..host.element_spec import as_arrays, form_of
from ..order.position import Remainder
from ..order.rows import Part, Rows
from ..reading.collate import Collated
from ..reading.program import Stacked
from ..reading.stages import Filler
from .check_stage import as_built
from .traits import Traits


class Placed:
    """A stage at its place in a pipeline."""

    on_host: ClassVar[bool] = False  # whether Python runs it

    stage: Any
    spec: Spec  # of its result
    lanes: tuple[int, ...]  # of its input: () is one element
    number: int  # how many random stages are before it

    @property
    def _label(self) -> str:
        return self.stage._label

    @property
    def lanes_after(self) -> tuple[int, ...]:
        """The lanes of its result."""
        return self.lanes

    def over(self, traits: Traits) -> Traits:
        """The traits of a pipeline after it, from those before it."""
        raise TypeError(f"{type(self).__name__} is no stage")

    def sample(self, before: Any) -> Any:
        """An example of a step after it, made by Python; `before` is the pipeline before it."""
        raise TypeError(f"{self._label} is compiled")

    def read(self, values: Any, mask: Any, rows: Rows) -> tuple[Any, Any]:
        """The values and the mask (None: all real) after it, in a program."""
        del rows
        return values, mask


@pytree_dataclass
class CompiledStage(Placed):
    """A stage that compiled programs run: over one element, or over a batch.

    Values may have more leading axes than `lanes`: the stage is mapped over these.
    """

    stage: Any
    spec: Spec = static_field()
    lanes: tuple[int, ...] = static_field()
    number: int = static_field()

    def over(self, traits: Traits) -> Traits:
        after = traits.over(self.stage.traits)
        return after.but(mask_shape=self.stage.mask_shape(traits.mask_shape, self.spec))

    def read(self, values: Any, mask: Any, rows: Rows) -> tuple[Any, Any]:
        stage, traits, lanes = self.stage, self.stage.traits, self.lanes
        seen = jnp.ones(rows.index.shape, jnp.bool_) if mask is None else mask
        keys = rows.element_keys(self.number) if traits.random else None

        def apply(values: Any, mask: Any, keys: Any) -> tuple[Any, Any]:
            return stage.apply(values, mask, keys, lanes)

        mapped = rows.index.ndim - len(lanes)
        for _ in range(mapped):
            apply = jax.vmap(apply, in_axes=(0, 0, 0 if traits.random else None))
        values, changed = apply(values, seen, keys)
        return as_built(stage, values, self.spec, mapped), changed if traits.changes_mask else mask


@pytree_dataclass
class Batching(Placed):
    """Elements, or batches, become batches."""

    stage: Any
    spec: Spec = static_field()
    lanes: tuple[int, ...] = static_field()
    remainder: Remainder = static_field()  # the rule for the end of an epoch, of all batchings
    part: Part | None = static_field(default=None)  # which part of a batch, if not all of it

    @property
    def lanes_after(self) -> tuple[int, ...]:
        return (self.stage.batch_size, *self.lanes)

    def over(self, traits: Traits) -> Traits:
        made = traits.batched(self.stage.batch_size, self.remainder)
        return made if self.part is None else made.but(part=self.part)

    def collect(self, spec: Spec, filler: Filler) -> Stacked | Collated:
        """How Python makes batches of elements of this spec."""
        return Stacked(self._label, form_of(spec), filler)

    def sample(self, before: Any) -> Any:
        sample = before._sample()
        if not self.lanes:
            sample = as_arrays(sample, Spec(before.element_spec()))
        size = self.stage.batch_size
        return jax.tree.map(lambda x: np.broadcast_to(x, (size, *x.shape)), sample)


@pytree_dataclass
class Cutting(Placed):
    """Takes a part of every batch, after stages that are given whole batches."""

    stage: Any
    spec: Spec = static_field()
    lanes: tuple[int, ...] = static_field()
    part: Part = static_field()

    @property
    def lanes_after(self) -> tuple[int, ...]:
        return (*self.lanes[:-1], -(-self.lanes[-1] // self.part.count))

    def over(self, traits: Traits) -> Traits:
        lanes, mask_shape = self.lanes_after, traits.mask_shape
        if mask_shape[: len(lanes)] == self.lanes:
            mask_shape = (*lanes, *mask_shape[len(lanes) :])
        pads = lanes[-1] * self.part.count != self.part.size
        return traits.but(
            lanes=lanes,
            mask_shape=mask_shape,
            read_lanes=self.lanes,
            by_python=False,
            masks=traits.masks or pads,
        )

    def read(self, values: Any, mask: Any, rows: Rows) -> tuple[Any, Any]:
        axis, size = rows.index.ndim - 1, self.lanes_after[-1]
        numbers = self.part.index * size + np.arange(size)
        real = numbers < self.part.size
        taken = np.where(real, numbers, 0)

        def cut(x: Any) -> Any:
            return x if x.shape[: axis + 1] != rows.index.shape else jnp.take(x, taken, axis=axis)

        values = jax.tree.map(cut, values)
        if mask is None or real.all():
            return values, None if mask is None else cut(mask)
        shape = (size, *(1,) * (mask.ndim - axis - 1))
        return values, cut(mask) & jnp.asarray(real).reshape(shape)
