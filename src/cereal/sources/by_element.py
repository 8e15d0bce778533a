"""Sources that a Python function reads, element by element."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any, TypeVar

from ..base.spec import Spec
from ..host.element_spec import form_of
from ..host.host_data import HostData
from ..pipeline.host_source import HostIndexed, first_element
from ..pipeline.traits import Traits
from ..reading.readers.reader import Reader
from ..reading.tables.table import WithIndex

T_co = TypeVar("T_co", covariant=True)


class ByElement(HostIndexed[T_co]):
    """A host source whose elements may be anything; its `data` reads them one by one."""

    data: Any
    spec: Spec
    _by_epoch: bool  # whether an element depends on the epoch

    def _describe(self) -> Traits:
        return self._describe_by()

    def _describe_by(self, **known: Any) -> Traits:
        known = {"quick": False, "varies": self._by_epoch, **known}
        return self._describe_as(host=True, by_python=True, wide=True, **known)

    def element_spec(self) -> Any:
        return self.spec.tree

    @cached_property
    def _reader(self) -> Reader:
        return reader_of(self)

    def _sample(self) -> Any:
        return sample_of(self)

    def _filler(self) -> Any:
        return self.data.sample  # None if the user stated the spec: then no sample was read


def reader_of(source: Any) -> Reader:
    """What reads the elements of a source with `data`; with an `index_key`, their index too."""
    reader, index_key = source.data.reader(source._label), getattr(source, "index_key", None)
    if index_key is None:
        return reader
    return WithIndex(reader, index_key, form_of(source.spec).structure)


def sample_of(source: Any) -> Any:
    """An element of a source with `data`, which is read once."""
    if source.data.sample is None:
        source.data.sample = first_element(source)
    return source.data.sample


class ElementData(HostData):
    """The data of such a source, and an example of an element, if one is known."""

    def __init__(self) -> None:
        super().__init__()
        self.sample: Any = None

    @abstractmethod
    def reader(self, label: str) -> Reader:
        """What reads the elements; errors name the source by this label."""
