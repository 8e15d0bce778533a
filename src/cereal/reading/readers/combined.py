"""Readers of sources that are made of other sources."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ..element_batch import ElementBatch
from ..loop import Link
from ..read_context import SKIPPED, read_context
from ..rows import Rows
from ..structure import Structure
from ..threefry import PART, key_for
from .reader import Place, Reader


class _Over(Reader):
    """A reader over others, the members."""

    members: tuple[Reader, ...]

    @property
    def can_move(self) -> bool:
        return all(each.can_move for each in self.members)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(label for each in self.members for label in each.labels))


def member_key(key: Any, number: int, random: bool) -> Any:
    """The random key of a member; each has its own, so their random stages are independent."""
    return np.stack(key_for((key[0], key[1]), number, PART)) if random else key


@dataclasses.dataclass
class RoutedReader(_Over):
    """Rows of a store, found by a route, which has been computed. `masks`: it leaves some out."""

    store: Reader
    masks: bool

    @property
    def members(self) -> tuple[Reader, ...]:  # type: ignore[override]
        return (self.store,)

    def read(self, rows: Rows) -> ElementBatch:
        taken, valid = self.store.read(rows.below.replaced(key=rows.key)), rows.below.valid
        if self.masks and valid is not None:
            taken.keep = valid if taken.keep is None else taken.keep & valid
        return taken

    def find(self, rows: Rows, lane: int, label: str) -> Place | None:
        return self.store.find(rows.below.replaced(key=rows.key), lane, label)


@dataclasses.dataclass
class StoreReader(_Over):
    """Sources one after another: each reads its own rows of a batch.

    `lengths`: the rows of each are found here; None: they have been found before (`rows.below`).
    """

    members: tuple[Reader, ...]
    starts: tuple[int, ...]
    random: bool
    lengths: tuple[int, ...] | None = None

    def _each(self, rows: Rows, number: int) -> Rows:
        """The rows of one member, for all lanes."""
        if self.lengths is None:
            one = len(self.members) == 1
            key = rows.key if one else member_key(rows.key, number, self.random)
            return rows.below[number].replaced(key=key)
        index = np.clip(rows.index - self.starts[number], 0, self.lengths[number] - 1)
        return rows.replaced(index=index, key=member_key(rows.key, number, self.random))

    def _owners(self, index: np.ndarray) -> np.ndarray:
        return np.searchsorted(np.asarray(self.starts), index, side="right") - 1

    def read(self, rows: Rows) -> ElementBatch:
        if len(self.members) == 1:
            return self.members[0].read(self._each(rows, 0))
        owner, found = self._owners(rows.index), []
        for number in np.unique(owner).tolist():
            member, each = self.members[number], self._each(rows, number)
            lanes = np.flatnonzero(owner == number)
            if len(lanes) == len(owner):
                return member.read(each)
            found.append((lanes, member.read(each[lanes])))
        return _joined(found, len(owner))

    def find(self, rows: Rows, lane: int, label: str) -> Place | None:
        number = int(self._owners(rows.index[lane : lane + 1])[0])
        return self.members[number].find(self._each(rows, number), lane, label)


def _joined(found: list[tuple[np.ndarray, ElementBatch]], n: int) -> ElementBatch:
    """Elements of several readers, each with the lanes that they are for."""
    keep = None
    if any(taken.keep is not None for _, taken in found):
        keep = np.ones(n, np.bool_)
        for lanes, taken in found:
            keep[lanes] = True if taken.keep is None else taken.keep
    if not all(taken.is_stacked for _, taken in found):
        where = {
            lane: (taken, at) for lanes, taken in found for at, lane in enumerate(lanes.tolist())
        }

        def run(_: Any, lane: int) -> Any:
            taken, at = where[lane]
            return taken.element(at)

        return ElementBatch(n, [Link("", None, run)], keep)
    leaves = []
    for columns in zip(*(taken.leaves for _, taken in found), strict=True):
        out = read_context().empty((n, *columns[0].shape[1:]), columns[0].dtype)
        for (lanes, _), column in zip(found, columns, strict=True):
            out[lanes] = column
        leaves.append(out)
    structure = found[0][1].structure
    assert structure is not None
    return ElementBatch.of_arrays(n, leaves, structure, keep)


@dataclasses.dataclass
class ZipReader(_Over):
    """Element i of every member, together; each member is a leaf of `outer`."""

    members: tuple[Reader, ...]
    outer: Structure
    random: bool

    def _each(self, rows: Rows, number: int) -> Rows:
        key = member_key(rows.key, number, self.random)
        return rows.below[number].replaced(key=key)

    def read(self, rows: Rows) -> ElementBatch:
        found = [each.read(self._each(rows, k)) for k, each in enumerate(self.members)]
        keeps = [taken.keep for taken in found if taken.keep is not None]
        keep = np.logical_and.reduce(keeps) if keeps else None
        n, outer = found[0].n, self.outer
        if all(taken.is_stacked for taken in found):
            leaves = [leaf for taken in found for leaf in taken.leaves]
            inner = [taken.structure for taken in found if taken.structure is not None]
            return ElementBatch.of_arrays(n, leaves, outer.of(inner), keep)

        def run(_: Any, lane: int) -> Any:
            parts = [taken.element(lane) for taken in found]
            return SKIPPED if any(part is SKIPPED for part in parts) else outer.unflatten(parts)

        return ElementBatch(n, [Link("", None, run)], keep)

    def find(self, rows: Rows, lane: int, label: str) -> Place | None:
        found = (
            each.find(self._each(rows, number), lane, label)
            for number, each in enumerate(self.members)
        )
        return next((place for place in found if place is not None), None)
