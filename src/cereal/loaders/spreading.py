"""Loaders whose batches are spread over a mesh: `sharding=`."""

from __future__ import annotations

from typing import Any

from ..base.errors import PipelineError
from ..device.placement import in_words
from ..device.sharding_option import batch_sharding
from ..pipeline.source import Source
from ..transforms.spread import SpreadTransform


def spread(source: Source[Any], sharding: Any) -> Source[Any]:
    """The pipeline with its batches spread as `sharding=` says; None: unchanged.

    Data in memory is copied to every device of the mesh, once, unless it was put somewhere.
    """
    if sharding is None:
        return source
    if source.traits.placement is not None:
        raise PipelineError(
            f"DataLoader: `sharding=` says where batches go, and so does the DevicePutTransform to "
            f"{in_words(source.traits.placement)}; leave one of them out."
        )
    placement = batch_sharding(sharding, source)
    made = SpreadTransform(placement)(source)
    return made if made.traits.host else placement.replicated(made)
