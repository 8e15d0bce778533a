"""Sources that a Python function reads, element by element."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar

from ..core.host import HostIndexed, first_element
from ..core.host_data import HostData
from ..core.reading import at_element
from ..core.rows import Rows
from ..core.spec import Spec
from ..core.taken import Taken

T_co = TypeVar("T_co", covariant=True)


class ByElement(HostIndexed[T_co]):
    """A host source whose elements may be anything, read by `reader`, which holds the data."""

    data: Any
    spec: Spec

    @property
    def quick(self) -> bool:
        return False

    def element_spec(self) -> Any:
        return self.spec.tree

    def produce(self, rows: Rows) -> Taken:
        return self.data.read(self.label, rows)

    def sample(self) -> Any:
        if self.data.sample is None:
            self.data.sample = first_element(self)
        return self.data.sample

    def filler(self) -> Any:
        return self.data.sample  # None if the spec was given: nothing is read for it


class ElementData(HostData):
    """The data of such a source: something that gives the element at an index."""

    def __init__(self) -> None:
        super().__init__()
        self.sample: Any = None

    @abstractmethod
    def one(self, index: int) -> Any:
        """The element at an index."""

    def read(self, label: str, rows: Rows) -> Taken:
        indices, read = rows.index.tolist(), self.one

        def one(lane: int) -> Any:
            return at_element(label, rows, lane, lambda: read(indices[lane]))

        return Taken(len(indices), one=one)
