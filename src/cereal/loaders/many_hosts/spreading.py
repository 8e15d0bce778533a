"""Loaders that share their batches: `sharding=` over a mesh, `shard=` without one."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import jax

from ...base.capture import callers_level, eager, is_concrete
from ...base.errors import OptionWarning, PipelineError
from ...base.numbers import as_optional_count
from ...base.spec import format_spec
from ...device.batch_sharding import BatchSharding
from ...device.placement import in_words
from ...device.sharding_option import batch_sharding
from ...functions.traced_stage import with_arrays, with_current_stages
from ...pipeline.source import Source
from ...pipeline.state import PipelineState
from ...transforms.spread import SpreadTransform
from ..compose import refuse_pinned
from .agreement import Agreement
from .replicas import ReplicaCheck, some_rows_are_shared
from .shards import take_shard


def divided(
    source: Source[Any], sharding: Any, shard: Any, check_replicas: Any, skips: bool
) -> Source[Any]:
    """The pipeline as these options of a loader say; `skips`: elements that fail are left out.

    Data in memory is copied to every device of the mesh, once, unless it was put somewhere.
    """
    every = as_optional_count(check_replicas, "check_replicas", "DataLoader")
    if sharding is not None and shard is not None:
        raise PipelineError(
            "DataLoader: `sharding=` gives every process its part of global batches, and `shard=` "
            "gives local ones; pass one of them."
        )
    if sharding is None:
        if every is not None:
            raise PipelineError(
                "DataLoader: `check_replicas=` compares the batches of processes that share a "
                "mesh; pass `sharding=`, too."
            )
        return take_shard(source, shard)
    if source.traits.placement is not None:
        raise PipelineError(
            f"DataLoader: `sharding=` says where batches go, and so does the DevicePutTransform to "
            f"{in_words(source.traits.placement)}; leave one of them out."
        )
    placement = _comparing(batch_sharding(sharding, source, check_replicas=every, skips=skips))
    refuse_pinned(source, placement)
    if source.traits.unknown_length and not placement.is_here:
        raise PipelineError(
            "DataLoader: no device of this process is in the mesh of `sharding=`, so it would not "
            "hear where the iterator ends in the others; pass `IterableSource(..., length=...)`, "
            "or leave this loader out in this process."
        )
    made = SpreadTransform(placement)(source)
    if placement.explicit:  # stages were traced under the mesh, if the user has set it
        made = with_current_stages(made)
    _check_arrays(made, placement)
    return made if made.traits.host else with_arrays(made, placement.replicated)


def _comparing(placement: BatchSharding) -> BatchSharding:
    """Without `check_replicas`, if no two processes hold the same rows."""
    every = placement.check_replicas
    if every is None or placement.is_local or some_rows_are_shared(placement):
        return placement
    warnings.warn(
        f"DataLoader: `check_replicas={every}` has no effect: no two processes hold the same rows "
        f"of batches that are divided as {placement.in_words()}; leave it out.",
        OptionWarning,
        stacklevel=callers_level(),
    )
    return dataclasses.replace(placement, check_replicas=None)


def _check_arrays(source: Any, placement: BatchSharding) -> None:
    """Refuses arrays that were put on other devices: a program runs on those of one mesh."""
    wanted = list(placement.mesh.devices.ravel())
    for leaf in jax.tree.leaves(source):
        if not is_concrete(leaf) or not leaf.committed:
            continue
        mesh = getattr(leaf.sharding, "mesh", None)
        found = list(leaf.sharding.device_set if mesh is None else mesh.devices.ravel())
        if found != wanted:
            raise PipelineError(
                f"DataLoader: `sharding=` puts batches on devices {_ids(wanted)}, in this order, "
                f"but an array of the pipeline, {format_spec(leaf)}, was put on {_ids(found)}; "
                f"leave it in NumPy, or write `jax.device_put(array, NamedSharding(mesh, P()))` "
                f"with the same mesh."
            )


def _ids(devices: list[Any]) -> str:
    ids = [str(device.id) for device in devices]
    return ", ".join(ids if len(ids) <= 8 else [*ids[:7], "...", ids[-1]])


class Together:
    """What the processes of a job do together: they compare their loaders, and some batches."""

    def __init__(self, source: Any) -> None:
        placement = source.traits.placement
        self._agreement = Agreement(source)
        self._check = None
        if self._agreement.needed and placement.check_replicas:
            self._check = ReplicaCheck(placement)
        self.needed = self._agreement.needed

    def begin(self, where: str) -> None:
        """Before the first step of an iteration; `where` says in words from where."""
        if self.needed:
            self._agreement.check(where)

    def begin_scan(self, state: Any, steps: int) -> None:
        """Before a scan, outside of programs. Only the first one looks at its state: later states
        would have to be waited for."""
        if self.needed and not self._agreement.agreed and eager():
            where = repr(state) if isinstance(state, PipelineState) else "a stream"
            self._agreement.check(f"{where}, {steps} steps to go")

    def made(self, step: int, batch: Any, mask: Any) -> None:
        """After each batch; `step` counts them, from 0 on."""
        if self._check is not None:
            self._check(step, batch, mask)
