"""Processes that share batches must have built the same loader, and begin at the same state.

Otherwise their programs would differ, and wait for each other for ever; or they would not differ,
and give wrong batches. So before the first step each process sends a few digests to all others.
"""

from __future__ import annotations

import hashlib
import zlib
from functools import cached_property
from typing import Any

import jax
import numpy as np

from ..base.errors import PipelineError
from ..base.identity import in_words
from ..base.spec import format_spec
from ..device.exchange import exchange
from ..device.placement import is_spread
from ..pipeline.positional import Positional
from .drawing import draw

_MOST_BYTES = 256 * 2**20
_PIECES, _PIECE = 64, 1 << 20


class Agreement:
    """What the processes of a job compare; does nothing if all devices belong to one process."""

    def __init__(self, source: Any) -> None:
        self._source, self._placement = source, source.traits.placement
        self._agreed = False

    @property
    def needed(self) -> bool:
        return is_spread(self._placement) and not self._placement.is_local

    def check(self, words: Any) -> None:
        """Compares the loaders, and the words of the state that the next step begins with.

        Words of None: only the loaders, and only once.
        """
        if not self.needed or (words is None and self._agreed):
            return
        words = () if words is None else tuple(np.asarray(words).reshape(-1).tolist())
        parts = {**self._parts, "the state that it begins with": str(words)}
        found = exchange(np.stack([_digest(text) for text in parts.values()]), self._placement.mesh)
        first = min(found, default=0)
        for process in sorted(found):
            same = (found[process] == found[first]).all(axis=1)
            if not same.all():
                differ = [name for name, equal in zip(parts, same, strict=True) if not equal]
                raise PipelineError(self._message(process, first, differ, words))
        self._agreed = True

    def _message(self, process: int, first: int, differ: list[str], words: Any) -> str:
        here = ", ".join(f"{name}: {self._said(name, words)}" for name in differ)
        return (
            f"processes {first} and {process} do not have the same loader: they differ in "
            f"{' and '.join(differ)}. All processes must build the same pipeline over the same "
            f"data, and begin at the same state. In this process, {jax.process_index()}: {here}"
        )

    def _said(self, name: str, words: Any) -> str:
        return str(self._parts.get(name, words))

    @cached_property
    def _parts(self) -> dict[str, str]:
        source, placement = self._source, self._placement
        traits = source.traits
        devices = [int(device.id) for device in placement.mesh.devices.ravel()]
        parts = {
            "the stages": draw(source),
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


def _digest(text: str) -> np.ndarray:
    return np.frombuffer(hashlib.blake2b(text.encode(), digest_size=8).digest(), np.uint32)


def _content(leaf: Any) -> str:
    """A checksum of an array of which every process has a whole copy; of a large one, of pieces."""
    if not isinstance(leaf, jax.Array) or not leaf.is_fully_replicated:
        return "-"
    data = leaf.addressable_shards[0].data if leaf.addressable_shards else None
    if data is None:
        return "-"  # this process has none; nobody compares it with the others
    if data.nbytes <= _MOST_BYTES:
        return f"{data.dtype}{data.shape} {zlib.crc32(_bytes(data)):08x}"
    each = max(1, _PIECE * data.shape[0] // data.nbytes)
    starts = np.linspace(0, data.shape[0] - each, _PIECES).astype(int)
    found = 0
    for start in starts.tolist():
        found = zlib.crc32(_bytes(data[start : start + each]), found)
    return f"{data.dtype}{data.shape} {found:08x}"


def _bytes(data: Any) -> Any:
    return np.ascontiguousarray(np.asarray(data)).reshape(-1).view(np.uint8)
