"""Stages: transforms of one step's values, and the contract of all transforms.

A stage says what it does to one step's values; where it stands decides what a step is (`staged`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, Self, TypeVar

from .elsewhere import refuse_elsewhere
from .errors import PipelineError
from .positional import IndexedSource, Positional
from .promise import infer_spec
from .pytree import said
from .source import Source
from .staged import BatchStage, ElementStage, StreamStage

A = TypeVar("A")
B = TypeVar("B")


class Transform(ABC, Generic[A, B]):
    """Anything that makes a source from a source: `Transform(...)(source)`, or in a list.

    Any callable from Source to Source is a stage too; this is the base of those that come with
    cereal.

    >>> import cereal
    >>> def every_pixel_twice(source):
    ...     return cereal.MapTransform(lambda x: 2 * x)(source)
    >>> loader = cereal.DataLoader([cereal.RangeSource(3), every_pixel_twice])
    >>> [int(x) for x, mask in loader]
    [0, 2, 4]
    """

    def __new__(cls, *_: Any, **options: Any) -> Self:
        """Says where options of other libraries went, which `__init__` would only not know."""
        if options:
            refuse_elsewhere(cls, options)
        return super().__new__(cls)

    @abstractmethod
    def __call__(self, source: Source[A]) -> Source[B]:
        """The source with this transform around it."""

    @property
    def label(self) -> str:
        """How drawings and error messages call this transform."""
        return type(self).__name__

    def __repr__(self) -> str:
        return said(lambda: self.label, f"{type(self).__name__}(...)")


class Stage(Transform[A, B]):
    """A transform of one step's values."""

    random: ClassVar[bool] = False
    changes_mask: ClassVar[bool] = False
    light: ClassVar[bool] = False
    hands_through: ClassVar[bool] = False
    """Whether it leaves values and mask as they are."""

    @abstractmethod
    def apply(self, values: Any, mask: Any, keys: Any, lanes: tuple[int, ...]) -> tuple[Any, Any]:
        """New values and mask. Arrays have `lanes` as leading axes: none for an element.

        `keys` has one key per lane for a random stage and is None for others.
        """

    def mask_shape(self, source: Source[Any]) -> tuple[int, ...]:
        """The shape of the masks that it makes of those of a source."""
        return source.mask_shape

    @property
    def callbacks(self) -> tuple[Any, ...]:
        """The Python functions that this stage runs once per batch."""
        return ()

    @property
    def placement(self) -> Any:
        """The device or sharding that batches go to from here on."""
        return None

    def __call__(self, source: Source[A]) -> Source[B]:
        if not isinstance(source, Source):
            raise PipelineError(
                f"{self.label} must be called with a source, got {type(source).__name__}; "
                f"write `{type(self).__name__}(...)(source)`."
            )
        if not isinstance(source, Positional):
            return StreamStage(source, *infer_spec(self, source, source.lanes))
        if source.lanes:
            return BatchStage(source, *infer_spec(self, source, source.lanes))
        assert isinstance(source, IndexedSource)
        return ElementStage(source, *infer_spec(self, source, ()))
