"""Sources that a Python function reads, element by element."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar

from ..base.spec import Spec
from ..host.element_batch import ElementBatch
from ..host.host_data import HostData
from ..host.read_context import at_element
from ..order.rows import Rows
from ..pipeline.host_source import HostIndexed, first_element
from ..pipeline.traits import Traits

T_co = TypeVar("T_co", covariant=True)


class ByElement(HostIndexed[T_co]):
    """A host source whose elements may be anything; its `data` reads them one by one."""

    data: Any
    spec: Spec
    by_epoch: bool  # whether an element depends on the epoch

    def _describe(self) -> Traits:
        return self._describe_by()

    def _describe_by(self, **known: Any) -> Traits:
        known = {"quick": False, "varies": self.by_epoch, **known}
        return self._describe_as(host=True, by_python=True, wide=True, **known)

    def element_spec(self) -> Any:
        return self.spec.tree

    def _produce(self, rows: Rows) -> ElementBatch:
        return self.data.read(self._label, rows)

    def _sample(self) -> Any:
        if self.data.sample is None:
            self.data.sample = first_element(self)
        return self.data.sample

    def _filler(self) -> Any:
        return self.data.sample  # None if the user stated the spec: then no sample was read


class ElementData(HostData):
    """The data of such a source: `one` gives the element at an index.

    If elements depend on the epoch, `one` takes the epoch as well.
    """

    def __init__(self, by_epoch: bool = False) -> None:
        super().__init__()
        self.sample: Any = None
        self.by_epoch = by_epoch

    @abstractmethod
    def one(self, *at: int) -> Any:
        """The element at an index; if elements depend on the epoch: at an index and an epoch."""

    def read(self, label: str, rows: Rows) -> ElementBatch:
        indices, read = rows.index.tolist(), self.one

        def one(lane: int) -> Any:
            return at_element(label, rows, lane, read, indices[lane])

        epochs = rows.epoch.tolist() if self.by_epoch else []

        def one_in_epoch(lane: int) -> Any:
            return at_element(label, rows, lane, read, indices[lane], epochs[lane])

        return ElementBatch(len(indices), one=one_in_epoch if self.by_epoch else one)
