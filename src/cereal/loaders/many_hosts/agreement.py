"""Processes that share batches must have built the same loader, and begin at the same state.

Otherwise their programs would differ, and wait for each other for ever; or they would not differ,
and give wrong batches. So before the first step each process sends a few digests to all others.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

import jax
import numpy as np

from ...base.errors import PipelineError
from ...base.identity import in_words
from ...base.spec import format_spec
from ...device.exchange import exchange
from ...device.placement import is_spread
from ...pipeline.pipeline import root_of
from ...pipeline.positional import Positional
from ..drawing import lines_of
from .checksums import quick_checksum


class Agreement:
    """What the processes of a job compare; does nothing if all devices belong to one process."""

    def __init__(self, source: Any) -> None:
        self._source, self._placement = source, source.traits.placement
        self.agreed = False  # whether it has been checked

    @property
    def needed(self) -> bool:
        return is_spread(self._placement) and not self._placement.is_local

    def check(self, where: str) -> None:
        """Compares the loaders, and where the next step begins, in words."""
        if not self.needed:
            return
        parts = {**self._parts, "the position that it begins at": where}
        found = exchange(np.stack([_digest(text) for text in parts.values()]), self._placement.mesh)
        first = min(found, default=0)
        for process in sorted(found):
            same = (found[process] == found[first]).all(axis=1)
            if not same.all():
                differ = [name for name, equal in zip(parts, same, strict=True) if not equal]
                raise PipelineError(_message(process, first, differ, parts))
        self.agreed = True

    @cached_property
    def _parts(self) -> dict[str, str]:
        source, placement = self._source, self._placement
        traits = source.traits
        devices = [int(device.id) for device in placement.mesh.devices.ravel()]
        parts = {
            "the stages": "\n".join(map(_stage, lines_of(source))),
            "the batches": f"{format_spec(source.element_spec())}, {traits.lanes}, "
            f"{traits.remainder}",
            "`sharding=`": f"{placement.in_words()}, devices {devices}",
            "the data in memory": ", ".join(map(_content, jax.tree.leaves(source))),
        }
        parts["the order"] = "that of a stream"  # the same number of parts in all processes
        if isinstance(source, Positional):
            length, order, random_stages = source._fingerprint
            parts["the order"] = f"{length} elements, {in_words(order)}, {random_stages} random"
        return parts


def _message(process: int, first: int, differ: list[str], parts: dict[str, str]) -> str:
    here = "\n".join(f"{name}: {parts[name]}" for name in differ)
    return (
        f"processes {first} and {process} do not have the same loader: they differ in "
        f"{' and '.join(differ)}. All processes must build the same pipeline over the same data, "
        f"and begin at the same state. In this process, which is number {jax.process_index()}:\n"
        f"{here}"
    )


def _stage(line: Any) -> str:
    """A stage and what it gives. Of a source only its type: hosts may keep files elsewhere."""
    label = line.of._label
    label = label.partition("(")[0] if line.of is root_of(line.source) else label
    return f"{label}: {format_spec(line.source.element_spec())}"


def _digest(text: str) -> np.ndarray:
    return np.frombuffer(hashlib.blake2b(text.encode(), digest_size=8).digest(), np.uint32)


def _content(leaf: Any) -> str:
    """A checksum of an array of which every process has a whole copy; of a large one, of pieces."""
    if not isinstance(leaf, jax.Array) or not leaf.is_fully_replicated:
        return "-"
    if not leaf.addressable_shards:
        return "-"  # this process has none; nobody compares it with the others
    return f"{leaf.dtype}{leaf.shape} {quick_checksum(leaf.addressable_shards[0].data):08x}"
