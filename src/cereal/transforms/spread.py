"""The last stage of a loader that has a `sharding=`: it says where batches go."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..base.pytree import pytree_dataclass, static_field
from ..base.spec import Spec
from ..device.batch_sharding import BatchSharding, padded_shape
from ..pipeline.stage import Stage
from ..pipeline.traits import StageTraits


@pytree_dataclass
class SpreadTransform(Stage[Any, Any]):
    """Spreads batches over a mesh; `DataLoader(..., sharding=)` adds it.

    If the mesh does not divide a padded batch, it adds lanes, whose mask is False.
    """

    placement: BatchSharding = static_field()

    @property
    def traits(self) -> StageTraits:  # type: ignore[override]
        pads = self.placement.padded != self.placement.lanes
        return StageTraits(
            light=True, hands_through=True, changes_mask=pads, placement=self.placement
        )

    @property
    def _label(self) -> str:
        return f"sharding={self.placement.in_words()}"

    def mask_shape(self, before: tuple[int, ...], spec: Spec) -> tuple[int, ...]:
        del spec
        return padded_shape(before, self.placement.lanes, self.placement.padded)

    def apply(self, values: Any, mask: Any, keys: Any, lanes: tuple[int, ...]) -> tuple[Any, Any]:
        del keys
        padded = self.placement.padded
        if padded == lanes:
            return values, mask
        extra = [(0, new - old) for new, old in zip(padded, lanes, strict=True)]

        def pad(x: Any, **how: Any) -> Any:
            if x.shape[: len(lanes)] != lanes:
                return x
            return jnp.pad(x, [*extra, *[(0, 0)] * (x.ndim - len(lanes))], **how)

        return jax.tree.map(lambda x: pad(x, mode="edge"), values), pad(mask)
