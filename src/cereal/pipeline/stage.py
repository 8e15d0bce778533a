"""Stages: transforms of one step's values, and the interface of all transforms.

A step is one element before the BatchTransform, and a batch after it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, Self, TypeVar

from ..base.elsewhere import refuse_elsewhere
from ..base.errors import said
from ..base.spec import Spec
from .check_stage import infer_spec
from .pipeline import attach
from .placed import CompiledStage
from .positional import Positional
from .source import Source, check_source
from .stream_stages import StreamStage
from .traits import StageTraits

A = TypeVar("A")
B = TypeVar("B")


class Transform(ABC, Generic[A, B]):
    """Anything that makes a source from a source: `Transform(...)(source)`, or in a list.

    Any function from Source to Source can be a stage too. This is the base class of cereal's own.

    >>> import cereal
    >>> def every_pixel_twice(source):
    ...     return cereal.MapTransform(lambda x: 2 * x)(source)
    >>> loader = cereal.DataLoader([cereal.RangeSource(3), every_pixel_twice])
    >>> [int(x) for x, mask in loader]
    [0, 2, 4]
    """

    def __new__(cls, *_: Any, **options: Any) -> Self:
        """Raises an error for options of other libraries, which says what to write here."""
        if options:
            refuse_elsewhere(cls, options)
        return super().__new__(cls)

    @abstractmethod
    def __call__(self, source: Source[A]) -> Source[B]:
        """The source with this transform around it."""

    @property
    def _label(self) -> str:
        """The name of this transform in drawings and error messages."""
        return type(self).__name__

    def __repr__(self) -> str:
        return said(lambda: self._label, f"{type(self).__name__}(...)")


class Stage(Transform[A, B]):
    """A transform of one step's values."""

    traits: ClassVar[StageTraits] = StageTraits()

    @abstractmethod
    def apply(self, values: Any, mask: Any, keys: Any, lanes: tuple[int, ...]) -> tuple[Any, Any]:
        """The new values and mask. `lanes` are the first axes of all arrays: () for one element.

        `keys` has one key per lane if the stage is random; otherwise it is None.
        """

    def mask_shape(self, before: tuple[int, ...], spec: Spec) -> tuple[int, ...]:
        """The shape of masks after the stage; `before` is the shape before it. `spec` is the spec
        of its result."""
        del spec
        return before

    def __call__(self, source: Source[A]) -> Source[B]:
        check_source(source, self._label)
        traits = source.traits
        stage, spec = infer_spec(self, source)
        if not isinstance(source, Positional):
            return StreamStage(source, stage, spec)
        return attach(source, CompiledStage(stage, spec, traits.lanes, traits.random_stages))
