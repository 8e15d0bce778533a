"""Readers: what reads the elements of a source, and nothing else of it. Plain, without JAX.

reader.read(rows)  ->  the elements of routed rows (one axis), as an ElementBatch
reader.labels          the stages that it runs, as errors name them
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from typing import Any

import numpy as np

from ..element_batch import ElementBatch
from ..loop import Link
from ..read_context import CAUGHT, as_exception, raise_it, read_context
from ..rows import Rows
from ..stages import ElementStage
from ..structure import Structure

Place = tuple[Rows, int]  # rows of one axis, and a lane of them


class Reader:
    """Reads the elements of a source."""

    label: str

    @property
    def can_move(self) -> bool:
        """Whether another process can read in its place."""
        return True

    @property
    def own_memory(self) -> bool:
        """Whether it reads what lies in memory, or is mapped into it, and runs nobody else's code.

        Nobody then sees it if several steps are read at once.
        """
        return False

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.label,)

    def narrowed(self, parts: Any) -> Any:
        """The same reader for parts of elements: for each leaf, sorted indices for each of its axes
        (or None: all). None if it can only read whole elements."""
        del parts
        return None

    @abstractmethod
    def read(self, rows: Rows) -> ElementBatch:
        """The elements of these rows (one axis), as Python reads them."""

    def find(self, rows: Rows, lane: int, label: str) -> Place | None:
        """Which row the stage of this label reads for a lane of these rows; None: it has none."""
        return (rows, lane) if label in self.labels else None


class TakeReader(Reader):
    """Reads a batch at once, with NumPy: `take(indices)` gives the leaves of the elements."""

    structure: Structure

    @abstractmethod
    def take(self, indices: np.ndarray) -> list[Any]:
        """The elements at these indices (one axis), stacked: fresh arrays."""

    def as_batch(self, rows: Rows, leaves: list[Any]) -> ElementBatch:
        """The elements, given what `take` returned for the indices of these rows."""
        return ElementBatch.of_arrays(len(rows.index), leaves, self.structure)

    def read(self, rows: Rows) -> ElementBatch:
        indices, here, structure = rows.index, read_context(), self.structure
        with here.at(self.label, rows):
            try:
                if here.known_to_hang:
                    here.check_known_to_hang()
                return self.as_batch(rows, self.take(indices))
            except CAUGHT as error:
                failed = error

        def run(_: Any, lane: int) -> Any:  # finds out which element failed
            return structure.unflatten([x[0] for x in self.take(indices[lane : lane + 1])])

        return one_by_one(ElementBatch(len(indices), [Link(self.label, rows, run)]), failed)


def one_by_one(taken: ElementBatch, failed: BaseException) -> ElementBatch:
    """Elements one by one, after reading them together has `failed`.

    If errors are raised: the first element that fails raises its own; if none does, `failed` is
    raised.
    """
    if read_context().on_error is raise_it:
        for lane in range(taken.n if taken.n > 1 else 0):
            taken.element(lane)
        raise as_exception(failed)
    return taken


@dataclasses.dataclass
class ChainReader(Reader):
    """The elements of another reader, after stages."""

    reader: Reader
    stages: tuple[ElementStage, ...]

    @property
    def can_move(self) -> bool:
        return self.reader.can_move

    @property
    def labels(self) -> tuple[str, ...]:
        return (*self.reader.labels, *(stage.label for stage in self.stages))

    def read(self, rows: Rows) -> ElementBatch:
        taken = self.reader.read(rows)
        for stage in self.stages:
            taken = taken.linked(stage.link(rows))
        return taken

    def find(self, rows: Rows, lane: int, label: str) -> Place | None:
        found = self.reader.find(rows, lane, label)
        return found if found is not None else super().find(rows, lane, label)
